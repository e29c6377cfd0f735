"""`catalejo bench million`: one very long prompt of token ids, end to end.

mock   gateway + an engine that answers at once: what the gateway adds to the first token (the same ids asked of the engine
       directly are taken off), and the gateway's peak resident memory
local  gateway + embedded engine with the model of engine/bench/needle.py, on a GPU when there is one: the first token's
       time; the needle's block is chosen in every sparse layer; a second turn finds the first in the prefix cache; a client
       that leaves in mid-prefill leaves no page in use"""

from __future__ import annotations

import http.client
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from pathlib import Path
from typing import Any, Final

import numpy as np

from engine.wire import ROUTE, GenerateRequest, encode_request
from gateway.bench.processes import free_port, running
from gateway.commands.paths import tiny_checkpoint

BLOCK: Final = 128
REPEATS: Final = 5
PATIENCE_S: Final = 1800.0


def body_of(port: int, ids: np.ndarray, max_tokens: int = 1) -> bytes:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/v1/models", timeout=60) as answer:
        model = json.load(answer)["data"][0]["id"]
    fields = {"model": model, "max_tokens": max_tokens, "temperature": 0, "ignore_eos": True, "stream": True}
    fields |= {"stream_options": {"include_usage": True}}
    return json.dumps(fields | {"prompt": ids.tolist()}).encode()


def ask(port: int, path: str, body: bytes, kind: str) -> tuple[float, list[bytes]]:
    """Seconds from the first byte sent to the answer's first line that says something, and all its lines."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
    try:
        began = time.perf_counter()
        connection.request("POST", path, body, {"content-type": kind})
        answer = connection.getresponse()
        first = answer.readline()
        while first and is_keep_alive(first):
            first = answer.readline()
        took = time.perf_counter() - began
        lines = [first, *answer.read().splitlines()]
        if answer.status != 200:
            raise SystemExit(f"catalejo bench: {path} answered {answer.status}: {first[:300].decode(errors='replace')}")
        return took, lines
    finally:
        connection.close()


def is_keep_alive(line: bytes) -> bool:
    """What a stream says while there is nothing to say: an empty line, in server-sent events a comment too."""
    return not line.strip() or line.startswith(b":")


def completion(port: int, ids: np.ndarray, max_tokens: int = 1) -> tuple[float, dict[str, Any]]:
    """Seconds to the first token, and the usage."""
    took, lines = ask(port, "/v1/completions", body_of(port, ids, max_tokens), "application/json")
    events = [json.loads(line[6:]) for line in lines if line.startswith(b"data: {")]
    if any("error" in event for event in events):
        raise SystemExit(f"catalejo bench: {next(event['error'] for event in events if 'error' in event)}")
    return took, events[-1]["usage"]


def peak_bytes(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(next(line.split()[1] for line in status.splitlines() if line.startswith("VmHWM"))) * 1024


def gateway_command(port: int, engine: int, model: Path) -> list[str]:
    where = ["--model", str(model), "--engine", f"http://127.0.0.1:{engine}", "--port", str(port)]
    return [sys.executable, "-m", "gateway.cli", "gateway", *where]


def longer_checkpoint(folder: Path, positions: int) -> Path:
    """The shipped tiny checkpoint with that many positions: what the gateway reads a context length from."""
    shutil.copytree(tiny_checkpoint(), folder)
    config = json.loads((folder / "config.json").read_text())
    config["text_config"]["max_position_embeddings"] = positions
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def mock(tokens: int) -> dict[str, Any]:
    engine, port, cores = free_port(), free_port(), set(os.sched_getaffinity(0))
    ids = np.random.default_rng(0).integers(100, 400, tokens, dtype=np.uint32)
    command = [sys.executable, "-m", "gateway.bench.engine", "--port", str(engine), "--context", str(tokens + 4096)]
    sampling = {"max_new_tokens": 1, "temperature": 0.0}
    direct = b"".join(encode_request(GenerateRequest(rid="0", input_ids=ids, sampling=sampling)))
    with tempfile.TemporaryDirectory() as made, running(command, cores, engine, f"http://127.0.0.1:{engine}/health"):
        serve = gateway_command(port, engine, longer_checkpoint(Path(made) / "model", tokens + 4096))
        with running(serve, cores, port, f"http://127.0.0.1:{port}/ready") as pid:
            completion(port, ids[:100])
            idle = peak_bytes(pid)
            through = sorted(completion(port, ids)[0] for _ in range(REPEATS))
            bare = sorted(ask(engine, ROUTE, direct, "application/octet-stream")[0] for _ in range(REPEATS))
            peak, size = peak_bytes(pid), len(body_of(port, ids))
    first, engines = through[REPEATS // 2], bare[REPEATS // 2]
    return {
        "tokens": tokens, "body_bytes": size, "first_token_s": first, "engine_alone_s": engines,
        "gateway_s": first - engines, "idle_rss_mib": idle / 2**20, "peak_rss_mib": peak / 2**20,
    }  # fmt: skip


def gauge(port: int, name: str) -> float:
    """One value of the engine's metrics."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
        for line in answer.read().decode().splitlines():
            if line.startswith(f"catalejo_engine_{name} "):
                return float(line.split()[-1])
    raise SystemExit(f"catalejo bench: the engine's metrics have no {name}")


def wait_for(what: str, true: Any, seconds: float = PATIENCE_S) -> float:
    began = time.monotonic()
    while not true():
        if time.monotonic() - began > seconds:
            raise SystemExit(f"catalejo bench: waited {seconds:g} s for: {what}")
        time.sleep(0.05)
    return time.monotonic() - began


def local(tokens: int, chunk: int, checkpoint: Path | None = None) -> dict[str, Any]:
    """`checkpoint`: a folder that `python -m engine.bench.needle make` has filled; made here when None."""
    with tempfile.TemporaryDirectory() as made:
        folder = checkpoint or Path(made)
        needle = [sys.executable, "-m", "engine.bench.needle"]
        if checkpoint is None:
            subprocess.run([*needle, "make", str(folder), "--tokens", str(tokens)], check=True, capture_output=True)
        first, other = np.load(folder / "first.npy"), np.load(folder / "other.npy")
        choices = folder / "choices.jsonl"
        choices.unlink(missing_ok=True)
        engine, port, cores = free_port(), free_port(), set(os.sched_getaffinity(0))
        sizes = ["--tokens", str(len(first)), "--chunk-tokens", str(chunk)]
        serve = [*needle, "serve", str(folder), "--port", str(engine), *sizes]
        front = gateway_command(port, engine, folder / "model")
        with (
            running(serve, cores, engine, f"http://127.0.0.1:{engine}/health"),
            running(front, cores, port, f"http://127.0.0.1:{port}/ready") as pid,
        ):
            report: dict[str, Any] = {"tokens": len(first), "blocks": -(-len(first) // BLOCK)}
            report["first_token_s"], usage = completion(port, first)
            report["prompt_tokens"] = usage["prompt_tokens"]
            lines = [json.loads(line) for line in choices.read_text().splitlines()]
            block = int(np.flatnonzero(first == first[-1])[0]) // BLOCK
            last = [line["blocks"] for line in lines if line["position"] == len(first) - 1]
            report["needle_block"], report["sparse_layers"] = block, len(last)
            report["needle_chosen_in"] = sum(block in blocks for blocks in last)

            turn = np.concatenate([first, other[:100]])
            report["second_turn_s"], usage = completion(port, turn)
            report["second_turn_cached"] = usage["prompt_tokens_details"]["cached_tokens"]

            report |= _leave(port, engine, other, chunk)
            report["gateway_peak_rss_mib"] = peak_bytes(pid) / 2**20
    report["faults"] = faults_of(report)
    return report


def _leave(port: int, engine: int, ids: np.ndarray, chunk: int) -> dict[str, Any]:
    """A client that goes away once the engine is in the middle of its prompt."""
    before = gauge(engine, "prefill_tokens_total")
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
    sender = threading.Thread(target=connection.request, args=("POST", "/v1/completions", body_of(port, ids)),
                              kwargs={"headers": {"content-type": "application/json"}})  # fmt: skip
    sender.start()
    wait_for("prefill to begin", lambda: gauge(engine, "prefill_tokens_total") >= before + chunk)
    sender.join()
    used = gauge(engine, 'pages{state="used"}')
    connection.close()
    seconds = wait_for(
        "the engine to stop", lambda: gauge(engine, "choices_running") + gauge(engine, "choices_waiting") == 0
    )
    done = gauge(engine, "prefill_tokens_total") - before
    return {
        "abort_pages_in_use": used, "abort_after_tokens": done, "abort_took_s": seconds,
        "pages_in_use_after_abort": gauge(engine, 'pages{state="used"}'),
    }  # fmt: skip


def faults_of(report: dict[str, Any]) -> list[str]:
    """What a local run must show and does not."""
    n = report["tokens"]
    checks = {
        f"the prompt counts {report['prompt_tokens']} tokens": report["prompt_tokens"] == n,
        "no choice of the last token was seen": report["sparse_layers"] > 0,
        f"the needle was chosen in {report['needle_chosen_in']} of {report['sparse_layers']} sparse layers": (
            report["needle_chosen_in"] == report["sparse_layers"]
        ),
        f"the second turn found {report['second_turn_cached']} tokens cached": report["second_turn_cached"]
        >= n - 2 * BLOCK,
        "the abort came after the prompt was done": report["abort_after_tokens"] < n,
        "nothing was in use before the abort": report["abort_pages_in_use"] > 0,
        f"{report['pages_in_use_after_abort']:g} pages stay in use after it": report["pages_in_use_after_abort"] == 0,
    }
    return [what for what, right in checks.items() if not right]


def run(tokens: int, half: str, chunk: int, checkpoint: Path | None, as_json: bool) -> int:
    def say(text: str) -> None:
        if not as_json:
            print(f"{text} ...", file=sys.stderr)

    report: dict[str, Any] = {"load_average": os.getloadavg()[0]}
    if half in ("mock", "both"):
        say(f"{tokens} token ids through the gateway to an engine that answers at once")
        report["mock"] = mock(tokens)
    if half in ("local", "both"):
        say(f"{tokens} token ids through the embedded engine, three times; on a CPU count a minute for a few thousand")
        report["local"] = local(tokens, chunk, checkpoint)
    if as_json:
        print(json.dumps(report, indent=2))
    else:
        for name in ("mock", "local"):
            for key, value in report.get(name, {}).items():
                print(f"{name:6} {key:26} {value:.3f}" if isinstance(value, float) else f"{name:6} {key:26} {value}")
    return min(1, len(report.get("local", {}).get("faults", [])))
