"""The supervisor when things go wrong around it: a start that fails, a stop that comes too early, its own death."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import aiohttp
import pytest
from typer.testing import CliRunner

from gateway.cli import app
from tests.api.harness import TINY
from tests.reliability.processes.command import Command

pytestmark = pytest.mark.slow


def children(pid: int) -> list[int]:
    return [int(p) for p in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


async def started(command: Command, count: int) -> list[int]:
    async def true() -> bool:
        return len(children(command.process.pid)) == count

    await command.until(true)
    return children(command.process.pid)


async def gone(command: Command, pids: list[int]) -> None:
    async def true() -> bool:
        return not any(alive(p) for p in pids)

    await command.until(true)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split(") ")[1][0] != "Z"
    except FileNotFoundError:
        return False


async def test_a_supervisor_that_is_killed_takes_its_processes_with_it(tmp_path: Path) -> None:
    async with Command(tmp_path, 2) as command:
        pids = children(command.process.pid)
        assert len(pids) == 2
        command.process.kill()
        await command.process.wait()
        await gone(command, pids)
        with pytest.raises(aiohttp.ClientConnectionError):
            await command.call("GET", "/health")
    assert command.left_behind == [], "its settings hold secrets"


async def test_a_process_that_hangs_is_replaced(tmp_path: Path) -> None:
    async with Command(tmp_path, 2, worker_timeout_s=1) as command:
        hung, well = children(command.process.pid)
        os.kill(hung, signal.SIGSTOP)
        await gone(command, [hung])

        async def again() -> bool:
            return command.log.count("engine engine-0 is up") == 3

        await command.until(again)
        assert "process 0 has not answered" in command.log and "process 1" not in command.log
        assert alive(well)
        # One that was paused with its supervisor (a laptop that slept) has not hung.
        for pid in (command.process.pid, well):
            os.kill(pid, signal.SIGSTOP)
        await asyncio.sleep(3)
        for pid in (well, command.process.pid):
            os.kill(pid, signal.SIGCONT)
        await asyncio.sleep(1)
        assert alive(well) and "process 1" not in command.log


async def test_a_start_that_fails_ends_the_command_and_says_why(tmp_path: Path) -> None:
    command = Command(tmp_path, 2, media={"files": {"location": "nosuchscheme://x"}})
    with pytest.raises(AssertionError, match="did not start"):
        async with command:
            pass
    log = (tmp_path / "log").read_text()
    assert "media.files.location" in log and "did not start; stopping" in log
    assert command.left_behind == [], "its folder is removed"


def test_a_temporary_folder_that_is_too_deep_is_one_clear_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deep = tmp_path / ("x" * 100)
    deep.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(deep))
    monkeypatch.setattr("gateway.commands.serve.configure", lambda settings: None)
    result = CliRunner().invoke(app, ["gateway", "--model", str(TINY), "--port", "0", "--workers", "2"])
    assert result.exit_code == 1 and "set TMPDIR" in result.output and not list(deep.iterdir())


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_stop_while_the_processes_start_is_heeded(tmp_path: Path, number: int) -> None:
    command = Command(tmp_path, 2)
    task = asyncio.create_task(command.__aenter__())
    while not hasattr(command, "process"):
        await asyncio.sleep(0.01)
    pids = await started(command, 2)
    os.kill(command.process.pid, number)
    async with asyncio.timeout(60):
        assert await command.process.wait() == 0
    await gone(command, pids)
    with pytest.raises(AssertionError):
        await task
