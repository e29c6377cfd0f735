"""Known distributions in, right percentiles and intervals out."""

from __future__ import annotations

import numpy as np
import pytest

from loadtest.compare import compare
from loadtest.statistics import (
    Histogram,
    bootstrap_difference,
    mean_interval,
    percentile,
    percentile_interval,
    samples_needed,
)


def test_empty_input_has_no_value_rather_than_zero() -> None:
    assert percentile([], 50) is None
    assert percentile_interval([], 50) is None
    assert mean_interval([1.0]) is None
    assert Histogram().percentile(50) is None


@pytest.mark.parametrize(("p", "want"), [(0, 1), (50, 5.5), (90, 9.1), (100, 10)])
def test_percentile_interpolates_between_order_statistics(p: float, want: float) -> None:
    assert percentile(range(1, 11), p) == pytest.approx(want)


@pytest.mark.parametrize("p", [50, 90, 99])
def test_percentile_interval_covers_the_true_value_about_95_times_of_100(p: float) -> None:
    rng = np.random.default_rng(int(p))
    true = -np.log(1 - p / 100)  # exponential with mean 1
    hits = 0
    for _ in range(1000):
        bounds = percentile_interval(rng.exponential(size=800), p)
        assert bounds is not None
        hits += bounds.low <= true <= bounds.high
    assert 930 <= hits <= 990


def test_mean_interval_covers_the_true_mean() -> None:
    rng = np.random.default_rng(1)
    hits = 0
    for _ in range(1000):
        bounds = mean_interval(rng.normal(3, 2, 100))
        assert bounds is not None
        hits += bounds.low <= 3 <= bounds.high
    assert 925 <= hits <= 975


def test_a_sample_too_small_for_a_percentile_gives_no_interval() -> None:
    assert percentile_interval(range(50), 99) is None
    need = samples_needed(99)
    assert percentile_interval(range(need), 99) is not None
    assert 300 <= need <= 600


@pytest.mark.parametrize("p", [1, 50, 90, 99, 99.9])
def test_merged_histograms_stay_within_their_stated_error(p: float) -> None:
    rng = np.random.default_rng(2)
    values = rng.lognormal(-3, 1.5, 20_000)
    parts = [Histogram(error=0.005) for _ in range(3)]
    for i, value in enumerate(values):
        parts[i % 3].add(float(value))
    for other in parts[1:]:
        parts[0].merge(other)
    exact = float(np.sort(values)[max(0, int(np.ceil(len(values) * p / 100)) - 1)])
    assert parts[0].percentile(p) == pytest.approx(exact, rel=0.005 + 1e-9)


def test_a_histograms_curve_ends_at_everything_and_agrees_with_its_percentiles() -> None:
    histogram = Histogram()
    for value in (0.01, 0.02, 0.02, 0.5):
        histogram.add(value)
    values, shares = histogram.cumulative()
    assert shares == [0.25, 0.75, 1.0]
    assert values == [histogram.percentile(p) for p in (25, 75, 100)]
    assert Histogram().cumulative() == ([], [])


def test_histograms_with_other_buckets_refuse_to_merge() -> None:
    with pytest.raises(ValueError, match="different buckets"):
        Histogram(0.01).merge(Histogram(0.02))


def run_of(values: np.ndarray) -> dict[str, object]:
    rows = [{"session": i, "ttft": v, "tpot": v, "e2e": v, "error": ""} for i, v in enumerate(values)]
    return {"samples": rows}


def test_compare_says_no_difference_when_there_is_none_and_finds_one_when_there_is() -> None:
    rng = np.random.default_rng(3)
    a, b = rng.lognormal(0, 0.3, 300), rng.lognormal(0, 0.3, 300)
    same = {d.figure: d for d in compare(run_of(a), run_of(b))}
    slower = {d.figure: d for d in compare(run_of(a), run_of(b * 1.2))}
    assert same["ttft mean"].words == "no difference shown"
    assert slower["ttft mean"].shown
    assert slower["ttft mean"].ratio == pytest.approx(1.2, abs=0.08)
    assert "higher" in slower["ttft p50"].words


def test_bootstrap_interval_excludes_zero_about_5_times_of_100_when_nothing_differs() -> None:
    rng = np.random.default_rng(4)
    shown = 0
    for i in range(200):
        a, b = list(rng.normal(size=(60, 1))), list(rng.normal(size=(60, 1)))
        interval = bootstrap_difference(a, b, lambda v: float(v.mean()), resamples=400, seed=i)
        shown += interval.low > 0 or interval.high < 0
    assert shown <= 24


def test_compare_gives_the_reports_own_figures_and_draws_whole_sessions() -> None:
    """A long session weighs by its requests; and where sessions differ more than requests, their number is what counts."""
    rng = np.random.default_rng(5)

    def run(shift: float) -> dict[str, object]:
        rows = []
        for session in range(12):
            level = rng.normal(10 + shift, 3)
            for _ in range(5 + 40 * (session % 3)):
                value = float(level + rng.normal(0, 0.1))
                rows.append({"session": session, "ttft": value, "tpot": value, "e2e": value, "error": ""})
        return {"samples": rows}

    a, b = run(0), run(0)
    found = {d.figure: d for d in compare(a, b)}
    assert found["ttft mean"].a == pytest.approx(1e3 * np.mean([r["ttft"] for r in a["samples"]]))  # type: ignore[attr-defined]
    assert "ttft p50" in found and not found["ttft mean"].shown
    wide = found["ttft mean"].interval
    alone = [{**r, "session": i} for i, r in enumerate(a["samples"])]  # type: ignore[arg-type,var-annotated]
    others = [{**r, "session": i} for i, r in enumerate(b["samples"])]  # type: ignore[arg-type,var-annotated]
    narrow = {d.figure: d for d in compare({"samples": alone}, {"samples": others})}["ttft mean"].interval
    assert wide.high - wide.low > 3 * (narrow.high - narrow.low)


def test_compare_leaves_out_percentiles_that_a_sample_cannot_hold() -> None:
    few = run_of(np.linspace(1, 2, 20))
    assert {d.figure for d in compare(few, few)} == {
        f"{n} {w}" for n in ("ttft", "tpot", "e2e") for w in ("mean", "p50")
    }
