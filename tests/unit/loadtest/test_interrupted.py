"""A run that is cut short keeps what it has, and says INVALID."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from loadtest import spool, workers
from loadtest.executor import Executor
from loadtest.live import Live
from loadtest.load import Health, Load
from loadtest.payloads.conversation import Sessions
from loadtest.payloads.text import Calibration
from loadtest.running import Options, Target, run
from loadtest.scenario import Scenario
from loadtest.truth_server import Timetable
from loadtest.verdict import judge
from loadtest.wire_client import Pool
from tests.unit.loadtest.servers import truth

ONE_TURN = Scenario.model_validate({"name": "t", "description": "one turn", "new_tokens": 16, "output_tokens": 5})


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_run_with_a_report_of_what_came(number: signal.Signals, tmp_path: Path) -> None:
    """SIGINT goes to the whole group, as from a terminal; SIGTERM to the command alone, as from a container runtime."""
    out = tmp_path / "out.json"
    command = [
        sys.executable, "-m", "loadtest.cli", "run", "--model", "m", "--concurrency", "4", "--duration", "300",
        "--warmup", "0", "--progress-every", "0.5", "-o", str(out), "--url",
    ]  # fmt: skip
    with truth(Timetable(ttft_s=0.05, gap_s=0.01, tokens=5)) as url:
        process = subprocess.Popen([*command, url], stderr=subprocess.PIPE, text=True, start_new_session=True)
        assert process.stderr is not None
        for line in process.stderr:
            if "TTFT ms p50" in line and "TTFT ms p50 -" not in line:  # some requests are back
                break
        if number == signal.SIGINT:
            os.killpg(process.pid, number)
        else:
            process.send_signal(number)
        process.stderr.read()
        assert process.wait(60) == 3
        process.stderr.close()
    result = json.loads(out.read_bytes())
    assert not result["verdict"]["valid"]
    assert "cut short" in result["verdict"]["reasons"][0]
    assert result["requests"]["ok"] > 0
    assert result["latency_ms"]["ttft"]["count"] == result["requests"]["ok"]
    assert set(result["requests"]["errors"]) <= {"cancelled"}


def test_a_worker_that_dies_costs_its_share_and_not_the_report(monkeypatch: pytest.MonkeyPatch) -> None:
    def kill_one(progress: workers.Progress) -> None:
        if progress.offset_s > 1.0 and (children := _children()):
            os.kill(children[0], signal.SIGKILL)

    load = Load(rate=40, arrival="constant", warmup_s=0, duration_s=60)
    with truth(Timetable(ttft_s=0.02, gap_s=0.002, tokens=5)) as url:
        result = run(Options(Target(url, "m"), ONE_TURN, load), kill_one, calibration=Calibration())
    assert "died" in result["verdict"]["reasons"][0]
    assert result["requests"]["ok"] > 5
    assert 0 < result["interrupted_s"] < 60


def _children() -> list[int]:
    import multiprocessing

    return [p.pid for p in multiprocessing.active_children() if p.pid is not None]


@pytest.mark.parametrize("mode", ["open", "closed"])
@pytest.mark.parametrize("after", [0.0, 0.05, 0.3])
async def test_stopping_at_any_moment_keeps_every_request_that_was_sent(
    mode: Any, after: float, tmp_path: Path
) -> None:
    """Also those whose connection was not made yet."""
    path = tmp_path / "w.spool"
    with truth(Timetable(ttft_s=0.1, gap_s=0.05, tokens=5)) as url:
        pool, out = Pool(url), spool.Spool(path)
        load = Load(mode=mode, rate=50, concurrency=8, warmup_s=0, duration_s=60)
        executor = Executor(
            pool, "/v1/chat/completions", Sessions(ONE_TURN, "m", 0), load, out, worker=0, workers=1, seed=0
        )
        asyncio.get_running_loop().call_later(after, executor.stop)
        health = await executor.run(asyncio.get_running_loop().time())
        pool.close()
        out.close()
        await asyncio.sleep(0.05)
    with path.open("rb") as f:
        records = list(spool.read(f))
    assert len(records) == health.sent
    assert all(e.error in ("", "cancelled") and e.end >= e.due for _, e in records)
    if after == 0.3:
        assert any(e.error == "cancelled" for _, e in records)


async def test_a_full_disk_ends_the_run_and_is_named(tmp_path: Path) -> None:
    class Full(spool.Spool):
        def add(self, *_: Any) -> None:
            raise OSError(28, "No space left on device")

    out = Full(tmp_path / "w.spool")
    with truth(Timetable(ttft_s=0.01, gap_s=0.001, tokens=2)) as url:
        pool = Pool(url)
        load = Load(rate=50, warmup_s=0, duration_s=60)
        executor = Executor(
            pool, "/v1/chat/completions", Sessions(ONE_TURN, "m", 0), load, out, worker=0, workers=1, seed=0
        )
        with pytest.raises(OSError, match="No space"):
            await executor.run(asyncio.get_running_loop().time())
        pool.close()
        out.close()
        await asyncio.sleep(0.05)


def _spool_of(path: Path, count: int) -> None:
    from loadtest.wire_client import Exchange

    out = spool.Spool(path)
    for i in range(count):
        exchange = Exchange(due=100 + i, sent=100 + i, end=200 + i, raw=bytearray(b"x" * 100))
        exchange.stamps.append(150 + i)
        exchange.ends.append(100)
        out.add(spool.Plan(0, i, 0, 5, 0, 0, 10, "measure"), exchange)
    out.close()


def test_a_spool_cut_anywhere_gives_its_whole_records_and_can_be_read_on(tmp_path: Path) -> None:
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    _spool_of(whole, 3)
    data = whole.read_bytes()
    size = len(data) // 3
    for end in {
        *range(0, len(data), 5),
        *(n * size + d for n in range(4) for d in (-1, 0, 1) if 0 <= n * size + d <= 3 * size),
    }:
        cut.write_bytes(data[:end])
        with cut.open("rb") as f:
            first = [e.due for _, e in spool.read(f)]
            assert f.tell() <= end
            cut.write_bytes(data)
            assert first + [e.due for _, e in spool.read(f)] == [100, 101, 102]
        assert len(first) == min(3, end // size)
    with whole.open("rb") as f:
        assert (next(spool.read(f))[1].due, spool.skip(f), list(spool.read(f))) == (100, 2, [])


def test_a_client_that_stood_still_is_invalid_however_few_of_its_ticks_were_late() -> None:
    """A frozen or suspended client answers one tick in thousands late, which no percentile shows."""
    from tests.unit.loadtest.test_metrics import made

    rows = [made([0.1, 0.2], 2) for _ in range(100)]
    load = Load(mode="closed", concurrency=4)
    for stall, valid in ((0.0, True), (5.0, False)):
        health = Health([0.001] * 3000 + [stall], cpu_s=1, wall_s=30, planned=100, sent=100)
        verdict = judge(rows, [health], load, 0.1)
        assert verdict.valid == valid
    assert "stood still for 5.0 s" in verdict.reasons[0]


def test_live_figures_are_those_of_the_report(tmp_path: Path) -> None:
    """Read from the workers' spools while the run goes on; printed as plain lines where there is no terminal."""
    import io

    from rich.console import Console

    said = io.StringIO()
    load = Load(mode="closed", concurrency=4, warmup_s=0, duration_s=3)
    with truth(Timetable(ttft_s=0.1, gap_s=0.01, tokens=5)) as url:
        with Live(load, every_s=0.5, console=Console(file=said, width=200)) as live:
            result = run(Options(Target(url, "m"), ONE_TURN, load), live.update, calibration=Calibration())
            figures = live._figures
            assert 0 < sum(figures.ttft.counts.values()) <= result["requests"]["ok"]
            assert figures.errors == 0
            low, high = result["latency_ms"]["ttft"]["min"], result["latency_ms"]["ttft"]["max"]
            assert low * 0.99 <= (figures.ttft.percentile(50) or 0) * 1e3 <= high * 1.01
            assert (figures.tokens_per_s() or 0) > 0
    lines = said.getvalue().splitlines()
    assert len(lines) >= 3
    assert all("in flight" in line and "tokens/s" in line for line in lines)
