"""SGLang with our kernels against SGLang with its own, end to end on this machine: `catalejo bench engine`.

    catalejo bench engine                                          scaled-down M3 without weights, one GPU
    catalejo bench engine --model /models/MiniMax-M3 --tp-size 8
    catalejo bench engine --rounds 3 --out result.json

Starts one server after another, the same flags, with CATALEJO_MSA=off (SGLang's kernels) and auto (ours), the plugin in
both; sends each the same prompts (serving_load.py has the loads) and prints medians over the rounds side by side, with
the ratio off / auto (above 1: ours is faster). Run it with SGLang's interpreter. Options that are not
ours go to SGLang."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

from engine.bench import scaled_m3
from engine.bench.serving_load import BenchError, Plan, measure
from engine.sglang import cli, command
from engine.sglang.msa import KERNELS, MODE_VARIABLE

FIGURES = ("output_tokens_per_s", "ttft_ms", "tpot_ms")
SCALED = (
    "--load-format dummy --skip-tokenizer-init --grammar-backend none --moe-runner-backend triton --random-seed 1 "
    "--sampling-backend pytorch --attention-backend triton --mem-fraction-static 0.8 --max-running-requests 64 "
    "--cuda-graph-max-bs-decode 32 --cuda-graph-backend-prefill disabled --context-length 131072"
).split()
"""For a checkpoint without weights and tokenizer. Dense layers run the Triton backend, which SGLang has everywhere: their
time is the same in both columns."""


def numbers(text: str) -> tuple[int, ...]:
    return tuple(int(word) for word in text.split(","))


def parse(argv: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    """Our options, and the words that are none of ours: SGLang's."""
    made = argparse.ArgumentParser(
        prog="catalejo bench engine", description="SGLang, our kernels off against on.", allow_abbrev=False
    )
    made.add_argument("--model", type=Path, help="checkpoint folder; without: scaled-down M3, no weights")
    made.add_argument("--layers", type=int, default=8)
    made.add_argument("--hidden", type=int, default=6144)
    made.add_argument("--small", action="store_true", help="heads and blocks that a CPU can serve")
    made.add_argument("--modes", default="off,auto", help=f"of {', '.join(KERNELS)}; default off,auto")
    made.add_argument("--rounds", type=int, default=1)
    made.add_argument("--prefix", type=int, default=60000, help="tokens that all prompts share")
    made.add_argument("--own", type=int, default=2000, help="new tokens of a prompt")
    made.add_argument("--decode", type=int, default=400, help="tokens of an answer")
    made.add_argument("--concurrency", type=numbers, default=(1, 8, 32))
    made.add_argument("--new", type=numbers, default=(16, 128, 512, 2000, 8000), help="new tokens behind the prefix")
    made.add_argument("--port", type=int, default=30900)
    made.add_argument("--wait", type=float, default=600, help="seconds a server may take to start")
    made.add_argument("--logs", type=Path, help="folder for the servers' logs")
    made.add_argument("--out", type=Path, help="everything as JSON")
    made.add_argument("--dry-run", action="store_true", help="print the servers' command and end")
    given, theirs = made.parse_known_args(argv)
    given.modes = given.modes.split(",")
    unknown = [mode for mode in given.modes if mode not in KERNELS]
    if unknown or len(set(given.modes)) != len(given.modes):
        made.error(f"--modes is {','.join(given.modes)}; it must be different ones of {', '.join(KERNELS)}")
    if given.rounds < 1 or min(given.prefix, given.own, given.decode, *given.concurrency, *given.new) < 1:
        made.error("sizes, rounds and concurrency must be 1 or more")
    return given, [word for word in theirs if word != "--"]


@contextmanager
def server(line: list[str], mode: str, log: Path, url: str, wait_s: float) -> Iterator[None]:
    """Raises BenchError with the end of the log when it does not come up."""
    environment = {**os.environ, MODE_VARIABLE: mode}
    with log.open("wb") as out:
        process = subprocess.Popen(line, env=environment, stdout=out, stderr=subprocess.STDOUT, start_new_session=True)
    try:
        deadline = time.monotonic() + wait_s
        while not _up(url):
            if process.poll() is not None or time.monotonic() > deadline:
                tail = "\n".join(log.read_text(errors="replace").splitlines()[-30:])
                raise BenchError(f"the server with {MODE_VARIABLE}={mode} did not come up; the end of {log}:\n{tail}")
            time.sleep(1)
        yield
    finally:
        for how in (signal.SIGTERM, signal.SIGKILL):
            try:
                os.killpg(process.pid, how)
                process.wait(20)
            except (ProcessLookupError, subprocess.TimeoutExpired):
                continue


def _up(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=5) as response:  # noqa: S310 (our own server)
            return bool(response.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def table(results: Mapping[str, Sequence[Mapping[str, Any]]], modes: Sequence[str]) -> list[str]:
    """One line per figure: medians over the rounds and, of two modes, the gain of the second over the first.
    `results`: by mode, one outcome of `measure` per round."""
    head = f"{'load':<14}{'figure':<22}" + "".join(f"{mode:>12}" for mode in modes)
    out = [head + (f"{'gain':>8}" if len(modes) == 2 else "")]
    for load, first in results[modes[0]][0]["figures"].items():
        for figure in (name for name in FIGURES if name in first):
            cells = [[r["figures"][load][figure] for r in results[mode]] for mode in modes]
            middle = [statistics.median(cell) for cell in cells]
            line = f"{load:<14}{figure:<22}" + "".join(f"{value:>12.2f}" for value in middle)
            if len(modes) == 2:
                better = middle[1] / middle[0] if figure == "output_tokens_per_s" else middle[0] / middle[1]
                line += f"{better:>7.2f}x"
            if len(cells[0]) > 1:
                line += "   " + "  ".join(f"{min(cell):.2f}-{max(cell):.2f}" for cell in cells)
            out.append(line)
    bad = {
        f"{mode}, {load}: {figure['invalid']}"
        for mode in modes
        for r in results[mode]
        for load, figure in r["figures"].items()
        if "invalid" in figure
    }
    return out + [f"INVALID {line}" for line in sorted(bad)]


def agreement(results: Mapping[str, Sequence[Mapping[str, Any]]], modes: Sequence[str]) -> str:
    """How many greedy tokens of one prompt the modes have in common before they part."""
    answers = [tuple(r["greedy"]) for mode in modes for r in results[mode]]
    same = next((i for i, ids in enumerate(zip(*answers, strict=True)) if len(set(ids)) > 1), len(answers[0]))
    return f"greedy: {same} of {len(answers[0])} tokens of one prompt are equal in all runs"


def run(argv: Sequence[str]) -> int:
    given, theirs = parse(argv)
    with tempfile.TemporaryDirectory() as scratch:
        model, flags = given.model, list(theirs)
        if model is None:
            model = Path(scratch) / "scaled-m3"
            scaled_m3.write(model, given.layers, given.hidden, small=given.small)
            named = {word for word in theirs if word.startswith("--")}
            flags = _without(SCALED, named) + flags
        line, _ = command.build(model, "127.0.0.1", given.port, None, None, flags, command.visible_gpus())
        _say(command.shown(line))
        if given.dry_run:
            return 0
        problem = cli.fault()
        if problem is not None:
            _say(f"catalejo bench engine: {problem}")
            return 1
        vocab = json.loads((model / "config.json").read_text())
        plan = Plan(
            given.prefix, given.own, given.decode, given.concurrency, given.new,
            vocab.get("text_config", vocab)["vocab_size"] - 16, command.block_size(model),
        )  # fmt: skip
        logs = given.logs or Path(scratch)
        logs.mkdir(parents=True, exist_ok=True)
        results: dict[str, list[dict[str, Any]]] = {mode: [] for mode in given.modes}
        try:
            for number in range(given.rounds):
                for mode in given.modes:
                    results[mode].append(_one(line, mode, logs / f"{number}-{mode}.log", given, plan, number))
        except BenchError as error:
            _say(f"catalejo bench engine: {error}")
            return 1
    return report(results, given, line)


def _without(flags: Sequence[str], named: set[str]) -> list[str]:
    """The flags less those that the operator gave."""
    out: list[str] = []
    skip = False
    for i, word in enumerate(flags):
        if word.startswith("--"):
            skip = word in named
        if not skip:
            out.append(flags[i])
    return out


def _one(line: list[str], mode: str, log: Path, given: Any, plan: Plan, number: int) -> dict[str, Any]:
    url = f"http://127.0.0.1:{given.port}"
    began = time.monotonic()
    with server(line, mode, log, url, given.wait):
        up = time.monotonic()
        made = asyncio.run(measure(url, plan, seed=number))
        _say(f"round {number + 1}, {mode}: up in {up - began:.0f} s, measured in {time.monotonic() - up:.0f} s")
    return made


def report(results: dict[str, list[dict[str, Any]]], given: Any, line: list[str]) -> int:
    for row in table(results, given.modes):
        _say(row)
    _say(agreement(results, given.modes))
    for mode in given.modes:
        for name, value in sorted(results[mode][-1]["paths"].items()):
            _say(f"{mode:<8}{name} {value:.0f}")
    if given.out is not None:
        machine = {"sglang": version("sglang"), "torch": version("torch"), "gpus": vars(command.visible_gpus())}
        whole = {"command": command.shown(line), **machine, "sizes": _sizes(given), "results": results}
        given.out.write_text(json.dumps(whole, indent=1))
    invalid = any("invalid" in f for runs in results.values() for r in runs for f in r["figures"].values())
    return 3 if invalid else 0


def _sizes(given: Any) -> dict[str, Any]:
    return {name: getattr(given, name) for name in ("prefix", "own", "decode", "concurrency", "new", "rounds")}


def _say(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
