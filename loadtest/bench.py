"""`catalejo bench loadtest`: how far harnesses are from the truth, on this machine, interleaved.

A truth server (own process) answers on a fixed timetable and logs what it did. Each client drives N streams against it;
its own mean and p99 TTFT and its ITL are compared with the server's. Clients: ours; a bare asyncio client that only stamps
socket reads; AIPerf and GuideLLM when installed. The bare client is what this machine allows at best.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import statistics as stdlib_statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from loadtest.executor import Load
from loadtest.payloads.text import Calibration
from loadtest.running import Options, Target, run
from loadtest.scenario import Scenario

TOKENS = 50
SECONDS = 6.0


@dataclass(frozen=True, slots=True)
class Seen:
    """What one client reported, milliseconds; `valid` is its own opinion where it has one."""

    ttft_mean: float
    ttft_p99: float
    itl_mean: float
    valid: bool | None = None


@dataclass(frozen=True, slots=True)
class Errors:
    ttft_mean_ms: float
    ttft_p99_ms: float
    itl_mean_share: float
    valid: bool | None


@contextmanager
def truth_server() -> Any:
    """Yields the URL of a fresh truth server."""
    command = [sys.executable, "-m", "loadtest.truth_server", "--tokens", str(TOKENS)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        port = int(process.stdout.readline().rsplit(" ", 1)[1])
        yield f"http://127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()


def truth(url: str) -> Seen:
    with urllib.request.urlopen(url + "/truth", timeout=30) as response:  # noqa: S310 - our own server on loopback
        rows = np.array(json.loads(response.read()), dtype=np.float64)
    ttft, itl = (rows[:, 1] - rows[:, 0]) / 1e6, (rows[:, 2] - rows[:, 1]) / 1e6 / (rows[:, 3] - 1)
    return Seen(float(ttft.mean()), float(np.percentile(ttft, 99)), float(itl.mean()))


def ours(url: str, streams: int) -> Seen:
    scenario = Scenario.model_validate(
        {"name": "bench", "description": "one turn", "new_tokens": 64, "output_tokens": TOKENS}
    )
    load = Load(mode="closed", concurrency=streams, warmup_s=0.0, duration_s=SECONDS, ramp_s=0.5)
    result = run(Options(Target(url, "m"), scenario, load, workers=1), calibration=Calibration())
    ttft, itl = result["latency_ms"]["ttft"], result["latency_ms"]["itl"]
    return Seen(ttft["mean"], ttft["p99"], itl["mean"], bool(result["verdict"]["valid"]))


def bare(url: str, streams: int) -> Seen:
    """asyncio streams, one stamp per read, nothing else."""
    ttfts: list[float] = []
    itls: list[float] = []

    async def user(host: str, port: int, until: float) -> None:
        reader, writer = await asyncio.open_connection(host, port)
        body = b'{"model":"m","stream":true,"messages":[{"role":"user","content":"x"}]}'
        head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n".encode()
        while time.monotonic() < until:
            sent = time.monotonic_ns()
            writer.write(head + body)
            stamps: list[int] = []
            tail = b""
            while not tail.endswith(b"0\r\n\r\n"):
                data = await reader.read(65536)
                tail = (tail + data)[-16:]
                if b'content"' in data:
                    stamps.append(time.monotonic_ns())
            ttfts.append((stamps[0] - sent) / 1e6)
            itls.append((stamps[-1] - stamps[0]) / 1e6 / (TOKENS - 1))
        writer.close()

    async def everybody() -> None:
        host, port = url.removeprefix("http://").split(":")
        until = time.monotonic() + SECONDS
        await asyncio.gather(*(user(host, int(port), until) for _ in range(streams)))

    try:
        import uvloop
    except ImportError:
        asyncio.run(everybody())
    else:
        uvloop.run(everybody())
    return Seen(stdlib_statistics.fmean(ttfts), float(np.percentile(ttfts, 99)), stdlib_statistics.fmean(itls))


def aiperf(url: str, streams: int) -> Seen:
    """AIPerf's command with its built-in settings; tokens counted by the server (usage)."""
    with tempfile.TemporaryDirectory() as folder:
        command = [
            "aiperf", "profile", "-m", "m", "--endpoint-type", "chat", "--streaming", "-u", url, "--concurrency", str(streams),
            "--request-count", str(streams * 5), "--use-server-token-count", "--tokenizer", "builtin",
            "--output-artifact-dir", folder, "--ui", "none",
        ]  # fmt: skip
        subprocess.run(command, check=True, capture_output=True, timeout=300)
        found = next(Path(folder).rglob("profile_export_aiperf.json"))
        metrics = json.loads(found.read_text())
    ttft, itl = metrics["time_to_first_token"], metrics["inter_token_latency"]
    return Seen(ttft["avg"], ttft["p99"], itl["avg"])


def guidellm(url: str, streams: int) -> Seen:
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out.json"
        command = [
            "guidellm", "benchmark", "run", "--target", url, "--model", "m", "--rate-type", "concurrent", "--rate", str(streams),
            "--max-seconds", str(int(SECONDS)), "--data", "prompt_tokens=64,output_tokens=50", "--output-path", str(out),
        ]  # fmt: skip
        subprocess.run(command, check=True, capture_output=True, timeout=300)
        metrics = json.loads(out.read_text())["benchmarks"][0]["metrics"]
    ttft = metrics["time_to_first_token_ms"]["successful"]
    itl = metrics["inter_token_latency_ms"]["successful"]
    return Seen(ttft["mean"], ttft["percentiles"]["p99"], itl["mean"])


CLIENTS: dict[str, Callable[[str, int], Seen]] = {"catalejo": ours, "bare asyncio": bare}
OTHERS: dict[str, tuple[str, Callable[[str, int], Seen]]] = {
    "AIPerf": ("aiperf", aiperf),
    "GuideLLM": ("guidellm", guidellm),
}


def measure(streams: int, repeats: int, clients: dict[str, Callable[[str, int], Seen]]) -> dict[str, list[Errors]]:
    """Each client in turn, `repeats` times round, each against a fresh server."""
    out: dict[str, list[Errors]] = {name: [] for name in clients}
    for _ in range(repeats):
        for name, client in list(clients.items()):
            with truth_server() as url:
                try:
                    seen = client(url, streams)
                except (subprocess.SubprocessError, OSError, LookupError, StopIteration) as e:
                    if name in CLIENTS:
                        raise
                    print(f"{name}: did not run here ({type(e).__name__}); left out", file=sys.stderr)  # noqa: T201
                    del clients[name], out[name]
                    continue
                real = truth(url)
            out[name].append(
                Errors(
                    seen.ttft_mean - real.ttft_mean,
                    seen.ttft_p99 - real.ttft_p99,
                    seen.itl_mean / real.itl_mean - 1,
                    seen.valid,
                )
            )
    return out


def main(streams: list[int] | None = None, repeats: int = 5, as_json: bool = False) -> None:
    from rich.console import Console
    from rich.table import Table

    clients = dict(CLIENTS)
    for name, (command, client) in OTHERS.items():
        if shutil.which(command):
            clients[name] = client
        else:
            print(f"{name}: not installed ({command} is not on PATH)", file=sys.stderr)  # noqa: T201
    table = Table(title=f"client minus server truth, medians of {repeats}")
    for column in ("streams", "client", "TTFT mean, ms", "TTFT p99, ms", "ITL mean, %", "says VALID"):
        table.add_column(column)
    document: dict[str, Any] = {}
    for count in streams or [64, 256]:
        for name, errors in measure(count, repeats, clients).items():
            row = [
                stdlib_statistics.median(getattr(e, f) for e in errors)
                for f in ("ttft_mean_ms", "ttft_p99_ms", "itl_mean_share")
            ]
            valid = [e.valid for e in errors if e.valid is not None]
            document[f"{count}/{name}"] = row
            said = f"{sum(valid)} of {len(valid)}" if valid else "-"
            table.add_row(str(count), name, f"{row[0]:+.2f}", f"{row[1]:+.2f}", f"{row[2] * 100:+.2f}", said)
    if as_json:
        print(json.dumps(document, indent=2))  # noqa: T201
    else:
        Console(width=120).print(table)


if __name__ == "__main__":
    main()
