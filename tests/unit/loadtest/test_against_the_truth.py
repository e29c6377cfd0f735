"""Against a server that knows the truth: latency counts from the plan, and a stall cannot hide."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from loadtest.load import Load
from loadtest.merge import MergeError, merge
from loadtest.payloads.text import Calibration
from loadtest.replay import read_trace
from loadtest.report import files
from loadtest.running import Options, ServerError, Target, run
from loadtest.scenario import Scenario
from loadtest.truth_server import Timetable
from tests.unit.loadtest.servers import truth as server

ONE_TURN = Scenario.model_validate({"name": "t", "description": "one turn", "new_tokens": 16, "output_tokens": 5})


def go(url: str, **load: Any) -> dict[str, Any]:
    options = Options(Target(url, "m"), ONE_TURN, Load(**load), workers=1)
    return run(options, calibration=Calibration())


def test_every_planned_request_is_measured_and_counted_from_usage() -> None:
    with server(Timetable(ttft_s=0.05, gap_s=0.01, tokens=5)) as url:
        result = go(url, rate=40, arrival="constant", warmup_s=0.5, duration_s=2)
    assert result["requests"]["measured"] == result["requests"]["ok"] == 80
    assert result["tokens"]["output"] == 400
    assert result["latency_ms"]["ttft"]["min"] >= 50


def test_a_stall_is_charged_to_every_request_that_was_due_in_it() -> None:
    """Coordinated omission: 20 requests/s are due all through a stall of a second, so about 20 of them saw it, and their
    mean wait is half of it. A harness that waits for answers before it sends would show one slow request."""
    with server(Timetable(ttft_s=0.01, gap_s=0.001, tokens=2, stall_at_s=1.0, stall_s=1.0)) as url:
        result = go(url, rate=20, arrival="constant", warmup_s=0, duration_s=3)
    slow = [s["ttft"] for s in result["samples"] if s["ttft"] > 0.1]
    assert len(slow) >= 12
    assert sum(slow) / len(slow) >= 0.3


def test_refusals_and_dead_servers_are_errors_not_fast_answers() -> None:
    with pytest.raises(ServerError, match="does not answer"):
        run(Options(Target("http://127.0.0.1:9", "m"), ONE_TURN, Load()))
    result = go("http://127.0.0.1:9", rate=20, warmup_s=0, duration_s=1)
    assert result["requests"]["ok"] == 0
    assert set(result["requests"]["errors"]) == {"connect"}
    assert result["latency_ms"]["ttft"] is None
    assert not result["verdict"]["valid"]


def test_results_survive_the_disk_and_the_page_opens_with_the_verdict(tmp_path: Any) -> None:
    with server(Timetable(ttft_s=0.01, gap_s=0.001, tokens=3)) as url:
        result = go(url, mode="closed", concurrency=4, warmup_s=0, duration_s=1)
    for suffix in (".json", ".csv", ".html"):
        files.write(result, tmp_path / f"r{suffix}")
    assert files.read(tmp_path / "r.json")["requests"] == result["requests"]
    html = (tmp_path / "r.html").read_text()
    assert "<svg" in html
    assert ("INVALID" in html) == (not result["verdict"]["valid"])
    assert "http://" not in html.replace(url, "").replace("http://www.w3.org", "")
    with pytest.raises(files.ResultError):
        files.write(result, tmp_path / "r.pdf")
    (tmp_path / "x.json").write_text("{}")
    with pytest.raises(files.ResultError):
        files.read(tmp_path / "x.json")


def test_merged_machines_give_the_figures_of_all_their_requests() -> None:
    with server(Timetable(ttft_s=0.02, gap_s=0.002, tokens=4)) as url:
        parts = [
            run(
                Options(Target(url, "m"), ONE_TURN, Load(rate=20, warmup_s=0, duration_s=1), seed=seed),
                calibration=Calibration(),
            )
            for seed in (1, 2)
        ]
    whole = merge(parts)
    rows = [s["ttft"] * 1e3 for p in parts for s in p["samples"]]
    assert whole["latency_ms"]["ttft"]["count"] == len(rows)
    assert whole["latency_ms"]["ttft"]["p90"] == pytest.approx(float(np.percentile(rows, 90)))
    assert whole["tokens"]["output"] == 4 * len(rows)
    assert whole["latency_ms"]["itl"]["tokens"] == sum(
        (p["latency_ms"]["itl"] or {"tokens": 0})["tokens"] for p in parts
    )
    assert whole["requests"]["asked_per_s"] == 40
    with pytest.raises(MergeError, match="seed"):
        merge([parts[0], parts[0]])
    with pytest.raises(MergeError, match="scenario"):
        merge([parts[0], {**parts[1], "config": {**parts[1]["config"], "scenario": "other"}}])


def test_the_gateways_access_log_is_a_trace(tmp_path: Any) -> None:
    log = tmp_path / "access.jsonl"
    log.write_text(
        '{"time": "2026-11-30T10:00:05.000Z", "logger": "catalejo.failure", "message": "x"}\n'
        '{"time": "2026-11-30T10:00:02.000Z", "logger": "catalejo.access", "duration_ms": 1000, "prompt_tokens": 1100,'
        ' "completion_tokens": 7, "blocks": [5, 6]}\n'
        '{"time": "2026-11-30T10:00:04.500Z", "logger": "catalejo.access", "duration_ms": 500, "prompt_tokens": 30,'
        ' "completion_tokens": 2}\n'
    )
    entries = read_trace(log)
    assert [(e.at_s, e.input_tokens, e.output_tokens, e.blocks) for e in entries] == [
        (0.0, 1100, 7, (5, 6)),
        (3.0, 30, 2, ()),
    ]
