"""The commands, in process: bad use is named before any load, results survive bad files and failed pushes."""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest
from prometheus_client.parser import text_string_to_metric_families
from typer.testing import CliRunner

from loadtest.cli import app
from loadtest.load import Health, Load
from loadtest.metrics.rates import Objectives
from loadtest.report import files, push
from loadtest.report.summary import result
from tests.unit.loadtest.test_metrics import made

CLI = CliRunner()


def outcome(scenario: str = "chat", seed: int = 0, ttft: float = 0.1, count: int = 60, **load: Any) -> dict[str, Any]:
    """A result as a run makes it, through JSON, of `count` samples."""
    rows = [made([ttft + i / 1e4, 0.5], 2, due=i / 10) for i in range(count)]
    for i, row in enumerate(rows):
        row.plan = replace(row.plan, session=i)
    health = [Health([0.001] * 100, cpu_s=1, wall_s=10, planned=count, sent=count)]
    config = {"scenario": scenario, "model": "m", "seed": seed, "started_unix": 1.0}
    settings = Load(mode="closed", concurrency=4, warmup_s=1, **load)
    made_result = result(rows, health, settings, config=config, objectives=Objectives(ttft_s=1))
    back: dict[str, Any] = orjson.loads(orjson.dumps(made_result))
    return back


def saved(path: Path, document: dict[str, Any]) -> str:
    path.write_bytes(orjson.dumps(document))
    return str(path)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("run", "either --rate"),
        ("run --rate 1 --concurrency 1", "either --rate"),
        ("run --rate nan", "--rate"),
        ("run --rate inf", "finite"),
        ("run --rate 0", "--rate"),
        ("run --rate 1 --duration 0", "--duration"),
        ("run --rate 1 --duration nan", "--duration"),
        ("run --rate 1 --duration inf", "finite"),
        ("run --rate 1 --warmup -1", "--warmup"),
        ("run --concurrency 0", "--concurrency"),
        ("run --rate 1 --seed -1", "--seed"),
        ("run --rate 1 --arrival sometimes", "--arrival"),
        ("run --rate 1 --ttft-ms nan", "--ttft-ms"),
        ("run --rate 1 --url ftp://x", "--url"),
        ("run --rate 1 --url http://127.0.0.1:9", "does not answer"),
        ("run --rate 1 -s nonsense", "no scenario"),
        ("run --rate 1 -o x.pdf", ".pdf is not one of"),
        ("run --rate 1 -o /nonexistent/x.json", "cannot be written"),
        ("sweep 1 2", "needs an objective"),
        ("sweep 2 1 --ttft-ms 5", "0 < low <= high"),
        ("sweep nan 1 --ttft-ms 5", "low"),
        ("replay /nonexistent", "No such file"),
        ("compare /nonexistent /nonexistent", "No such file"),
    ],
)
def test_bad_use_is_named_and_exits_with_2(arguments: str, words: str) -> None:
    done = CLI.invoke(app, arguments.split(), env={"COLUMNS": "300"})
    assert done.exit_code == 2
    assert words in done.stderr


def test_every_command_shows_its_help() -> None:
    for command in ("run", "sweep", "replay", "compare", "report", "merge", "scenarios"):
        done = CLI.invoke(app, [command, "--help"], env={"COLUMNS": "200"})
        assert done.exit_code == 0
        assert ("--ttft-ms" in done.stdout) == (command in ("run", "sweep", "replay"))


def test_a_cut_file_is_named_wherever_it_is_cut(tmp_path: Path) -> None:
    data = orjson.dumps(outcome(count=3), option=orjson.OPT_INDENT_2)
    path = tmp_path / "r.json"
    for end in range(0, len(data) - 1, 97):
        path.write_bytes(data[:end])
        with pytest.raises(files.ResultError, match="cut short"):
            files.read(path)
    assert CLI.invoke(app, ["report", str(path)]).exit_code == 2


@pytest.mark.parametrize("part", ["verdict", "load", "requests", "latency_ms", "tokens", "client", "samples", "config"])
@pytest.mark.parametrize("value", [None, {}, [7]])
def test_a_result_without_one_of_its_parts_is_refused_by_name(part: str, value: Any, tmp_path: Path) -> None:
    path = Path(saved(tmp_path / "r.json", {**outcome(count=3), part: value}))
    with pytest.raises(files.ResultError, match=part):
        files.read(path)


def test_report_writes_every_form_and_a_failing_one_costs_no_other(tmp_path: Path) -> None:
    source = saved(tmp_path / "r.json", outcome())
    outs = [tmp_path / name for name in ("a.csv", "a.html", "a.prom", "a.json")]
    done = CLI.invoke(app, ["report", source, *(f"-o{path}" for path in outs)])
    assert done.exit_code == 0
    assert all(path.stat().st_size > 100 for path in outs)
    assert files.read(outs[3]) == files.read(Path(source))
    done = CLI.invoke(app, ["report", source, "--push-gateway", "http://127.0.0.1:9", "-o", str(tmp_path / "b.csv")])
    assert done.exit_code == 2
    assert "127.0.0.1:9" in done.stderr
    assert (tmp_path / "b.csv").exists()


def test_the_goodput_curve_of_a_run_with_failures_ends_below_100() -> None:
    from loadtest.report.html import _within

    assert _within([1.0, 2.0], 4) == ([1.0, 2.0], [25.0, 50.0])


def test_runs_that_do_not_belong_together_are_compared_with_a_warning_and_exit_code_3(tmp_path: Path) -> None:
    a, same = saved(tmp_path / "a.json", outcome()), saved(tmp_path / "same.json", outcome())
    other = saved(tmp_path / "b.json", outcome("agentic", duration_s=10))
    empty = saved(tmp_path / "c.json", outcome(count=0))
    done = CLI.invoke(app, ["compare", a, same])
    assert (done.exit_code, "no difference shown" in done.stdout) == (0, True)
    done = CLI.invoke(app, ["compare", a, other])
    assert done.exit_code == 3
    assert "scenario differs" in done.stderr
    done = CLI.invoke(app, ["compare", a, empty])
    assert done.exit_code == 2
    assert "nothing to compare" in done.stderr


@pytest.fixture
def gateway() -> Iterator[tuple[str, list[tuple[str, str, bytes]]]]:
    """A Pushgateway's HTTP side: takes PUT, keeps what came."""
    got: list[tuple[str, str, bytes]] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_PUT(self) -> None:
            got.append((self.command, self.path, self.rfile.read(int(self.headers["content-length"]))))
            self.send_response(400 if "refuse" in self.path else 200)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}", got
        server.shutdown()
        thread.join(10)


def test_a_result_is_pushed_under_its_scenario_model_and_load(gateway: Any, tmp_path: Path) -> None:
    url, got = gateway
    document = outcome("agentic")
    done = CLI.invoke(app, ["report", saved(tmp_path / "r.json", document), "--push-gateway", url])
    assert done.exit_code == 0
    [(method, path, body)] = got
    assert method == "PUT"
    assert path.startswith("/metrics/job/catalejo_loadtest/")
    assert {"scenario/agentic", "model/m"} <= {"/".join(p) for p in zip(*[iter(path.split("/")[4:])] * 2, strict=True)}
    found = {
        (s.name, s.labels.get("quantile")): s.value
        for family in text_string_to_metric_families(body.decode())
        for s in family.samples
    }
    assert found["catalejo_loadtest_valid", None] == 1
    assert found["catalejo_loadtest_ttft_seconds", "0.99"] == pytest.approx(document["latency_ms"]["ttft"]["p99"] / 1e3)
    assert found["catalejo_loadtest_goodput_ratio", None] == 1
    assert ("catalejo_loadtest_requests_asked_per_second", None) not in found  # a closed loop asks for no rate


def test_a_refusing_gateway_is_named(gateway: Any) -> None:
    url, _ = gateway
    with pytest.raises(push.PushError, match="400"):
        push.push(outcome(), url + "/refuse")


def test_numbers_beyond_floats_do_not_reach_a_result() -> None:
    text = json.dumps(outcome(count=0))
    assert "NaN" not in text
    assert "Infinity" not in text
