"""A chunk is not a token, a failed request is not fast, and no value is not zero."""

from __future__ import annotations

import pytest

from loadtest.metrics import latency, rates
from loadtest.metrics.rates import Objectives
from loadtest.reading import Sample
from loadtest.spool import Plan

PLAN = Plan(0, 0, 0, 10, 0, 0, 100, "measure")


def made(chunks: list[float], tokens: int | None, *, end: float = 1.0, error: str = "", due: float = 0.0) -> Sample:
    return Sample(PLAN, due, 0.001, end, chunks, error=error, output_tokens=tokens, prompt_tokens=10)


def test_itl_spreads_a_gap_over_the_tokens_it_brought() -> None:
    # 3 events, 9 tokens: the first brings one, the others four each (speculative decoding)
    gaps = latency.itl(made([0.1, 0.5, 0.9], 9))
    assert [(pytest.approx(g), n) for g, n in gaps] == [(0.1, 4.0), (0.1, 4.0)]
    assert latency.tpot(made([0.1, 0.5, 0.9], 9)) == pytest.approx(0.1)


def test_events_of_one_read_share_its_gap() -> None:
    gaps = latency.itl(made([0.1, 0.1, 0.1, 0.4, 0.4], 5))
    assert sum(n for _, n in gaps) == pytest.approx(4)
    assert sum(g * n for g, n in gaps) == pytest.approx(0.3)


@pytest.mark.parametrize(("chunks", "tokens"), [([], 5), ([0.2], 5), ([0.2, 0.3], 1), ([0.2, 0.3], None)])
def test_tpot_without_two_tokens_has_no_value(chunks: list[float], tokens: int | None) -> None:
    assert latency.tpot(made(chunks, tokens)) is None
    assert latency.itl(made(chunks, tokens)) == []


def test_failed_requests_have_no_latency_and_meet_no_objective() -> None:
    failed = made([0.1, 0.2], 2, error="reset")
    assert latency.ttft(failed) is None
    assert latency.e2e(failed) is None
    assert not rates.meets(failed, Objectives(ttft_s=10))


def test_goodput_needs_every_objective() -> None:
    s = made([0.1, 0.5], 2, end=0.6)
    assert rates.meets(s, Objectives(ttft_s=0.1, e2e_s=0.6))
    assert not rates.meets(s, Objectives(ttft_s=0.1, tpot_s=0.3))
    assert rates.meets(made([0.1], 1), Objectives(tpot_s=0.001))


def test_cost_and_concurrency() -> None:
    assert rates.cost_per_million(2.0, 8, 3600, 1e6) == pytest.approx(16.0)
    assert rates.cost_per_million(2.0, 8, 3600, 0) is None
    samples = [made([0.1], 1, due=0.0), made([0.1], 1, due=0.5), made([0.1], 1, due=2.0)]
    assert rates.most_concurrent(samples) == 2


def test_neighbouring_ticks_have_different_labels() -> None:
    from loadtest.report.plot import _labels, ticks

    for low, high in ((19.97, 20.08), (0, 1), (0, 0.004), (3, 250_000), (199, 206)):
        marks = ticks(low, high)
        labels = _labels(marks)
        assert len(set(labels)) == len(marks) >= 3
