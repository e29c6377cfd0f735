"""Arrivals keep their rate and their seed; every shipped scenario loads and makes valid requests."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import numpy as np
import pytest

from loadtest.arrival import due_times, expected_count
from loadtest.distribution import Lognormal
from loadtest.payloads.conversation import Sessions
from loadtest.payloads.text import Calibration
from loadtest.replay import TraceError, read_trace
from loadtest.scenario import Scenario, ScenarioError, load, shipped
from loadtest.sweep import search


@pytest.mark.parametrize("kind", ["constant", "poisson", "gamma"])
@pytest.mark.parametrize("ramp", [0.0, 20.0])
def test_arrivals_keep_their_rate(kind: str, ramp: float) -> None:
    times = list(due_times(kind, 50, 100, np.random.default_rng(0), burstiness=0.5, ramp_s=ramp))  # type: ignore[arg-type]
    want = expected_count(50, 100, ramp)
    assert abs(len(times) - want) <= 4 * want**0.5 * 1.5
    assert times == sorted(times)
    assert all(0 < t < 100 for t in times)


def test_gamma_below_one_is_burstier_than_poisson() -> None:
    def spread(kind: str, shape: float) -> float:
        gaps = np.diff(list(due_times(kind, 10, 500, np.random.default_rng(1), burstiness=shape)))  # type: ignore[arg-type]
        return float(gaps.std() / gaps.mean())

    assert spread("gamma", 0.25) > 1.5 > spread("poisson", 1) > 0.8 > spread("gamma", 16)


@pytest.mark.parametrize("rate", [0, -1, float("nan"), float("inf")])
def test_impossible_rates_are_refused(rate: float) -> None:
    with pytest.raises(ValueError, match="rate"):
        next(due_times("poisson", rate, 1, np.random.default_rng(0)))


def test_lognormal_has_the_median_and_mean_it_was_given() -> None:
    d = Lognormal(median=4000, mean=6000)
    rng = np.random.default_rng(2)
    draws = np.array([d.draw(rng) for _ in range(20_000)])
    assert np.median(draws) == pytest.approx(4000, rel=0.05)
    assert draws.mean() == pytest.approx(6000, rel=0.05)


@pytest.mark.parametrize("name", sorted(shipped()))
def test_every_shipped_scenario_loads(name: str) -> None:
    assert load(name).name == name


def test_a_wrong_field_is_named(tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    path.write_text("name: x\ndescription: y\nnew_tokns: 5\n")
    with pytest.raises(ScenarioError, match="new_tokns"):
        load(str(path))
    with pytest.raises(ScenarioError, match="no scenario"):
        load("nonsense")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b"", "the file"),
        (b"[1, 2]", "the file"),
        (b"\xff\xfe\x00", "UTF-8"),
        (b"name: [", "YAML"),
        (b"new_tokens: .nan", "new_tokens"),
        (b"new_tokens: .inf", "new_tokens"),
        (b"new_tokens: -5", "new_tokens"),
        (b"new_tokens: true", "new_tokens"),
        (b"new_tokens: 1e12", "new_tokens"),
        (b"turns: {kind: uniform, low: 9, high: 3}", "low is above high"),
        (b"turns: {kind: exponential, mean: 4, max: -1}", "turns"),
        (b"gap_s: {kind: lognormal, median: 5, mean: 2}", "at least its median"),
        (b"gap_s: {kind: mixture, parts: [], weights: []}", "mixture"),
        (b"images: {width: 1e6, per_turn: 1}", "images.width"),
        (b"images: {distinct: 0}", "distinct"),
        (b"videos: {seconds: 0}", "seconds"),
        (b"videos: {fps: -1}", "fps"),
        (b"prefix: {zipf: .inf}", "zipf"),
        (b"extra_body: {stream: false}", "stream is the harness's own"),
        (b"mix: {nonsense: 1}", "nonsense"),
        (b"mix: {chat: 0}", "all zero"),
        (b"mix: {mixed: 1}", "mixed"),
        (b"x: " + b"[" * 1200, "nested|YAML"),
    ],
)
def test_bad_scenario_files_are_refused_by_field(text: bytes, words: str, tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    path.write_bytes(text if text[:1] in (b"", b"[", b"\xff") else b"name: x\ndescription: y\n" + text)
    with pytest.raises(ScenarioError, match=words):
        load(str(path))


def test_new_text_of_an_agent_is_the_result_of_the_call_before() -> None:
    session = Sessions(load("agentic-60k"), "m", 0, Calibration()).open(0)
    session.next()
    session.answered("looking")
    turn = session.next()
    assert turn is not None
    *_, first, answer, new = json.loads(turn.body)["messages"]
    assert first["role"] == "user"
    assert new["role"] == "tool"
    assert new["tool_call_id"] == answer["tool_calls"][0]["id"]
    assert answer["content"] == "looking"


def test_a_mix_counts_the_turns_of_its_parts() -> None:
    """The open loop divides the asked rate by it: a mix of long sessions would otherwise bring several times the load."""
    mix = {"chat": 3.0, "agentic": 1.0}
    sessions = Sessions(Scenario(name="x", description="y", mix=mix), "m", 0, Calibration())
    chat, agentic = (load(name).turns.mean_value() for name in mix)
    assert sessions.mean_turns == pytest.approx(0.75 * chat + 0.25 * agentic)
    assert sessions.mean_turns > 5


def test_a_session_repeats_its_history_and_depends_on_seed_and_number_alone() -> None:
    def bodies(number: int) -> list[bytes]:
        session = Sessions(load("agentic-60k"), "m", 7, Calibration()).open(number)
        out = []
        while (turn := session.next()) is not None:
            out.append(turn.body)
            session.answered("fine")
        return out

    first = bodies(3)
    assert first == bodies(3)
    assert first != bodies(4)
    messages = [json.loads(b)["messages"] for b in first]
    assert len(first) == 4
    for before, after in itertools.pairwise(messages):
        assert after[: len(before)] == before
    assert messages[0][0] == json.loads(bodies(4)[0])["messages"][0]  # the shared prefix is shared


def test_pictures_are_seeded_and_of_the_asked_size() -> None:
    import io

    from PIL import Image

    from loadtest.payloads.pictures import picture

    for look in ("screenshot", "photo", "document"):
        data = picture(5, 320, 200, look, "png")  # type: ignore[arg-type]
        assert data == picture(5, 320, 200, look, "png")  # type: ignore[arg-type]
        assert Image.open(io.BytesIO(data)).size == (320, 200)


def test_traces_are_read_and_broken_lines_named(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text(
        '{"timestamp": 2000, "input_length": 1100, "output_length": 5, "hash_ids": [1, 2, 3]}\n'
        '{"timestamp": 1000, "input_length": 512, "output_length": 1, "hash_ids": [1]}\n'
    )
    entries = read_trace(path)
    assert [e.at_s for e in entries] == [0.0, 1.0]
    assert entries[1].blocks == (1, 2, 3)
    path.write_text('{"timestamp": 1}\n')
    with pytest.raises(TraceError, match="line 1"):
        read_trace(path)


@pytest.mark.parametrize("limit", [1.0, 3.0, 37.0, 63.9, 64.0, 1000.0])
def test_sweep_finds_the_limit_within_its_precision(limit: float) -> None:
    found = search(lambda load, _: (load <= limit, ""), low=1, high=64, precision=0.05)
    assert found.load is not None
    assert found.load <= limit
    if limit < 64:
        assert found.load >= min(limit, 64) * 0.93
        assert found.bounded
    else:
        assert (found.load, found.bounded) == (64, False)


def test_sweep_reports_only_what_a_second_run_confirms() -> None:
    found = search(lambda load, seed: (load <= (10 if seed == 0 else 5), ""), low=1, high=64, seed=0)
    assert found.load == 4
