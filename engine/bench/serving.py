"""SGLang with our kernels against SGLang with its own, end to end on this machine: `catalejo bench engine`.

    catalejo bench engine                                          scaled-down M3 without weights, one GPU
    catalejo bench engine --model /models/MiniMax-M3 --tp-size 8
    catalejo bench engine --rounds 3 --out result.json

Starts one server after another, the same flags, with CATALEJO_MSA=off (SGLang's kernels) and auto (ours), the plugin in
both; sends each the same prompts (serving_load.py has the loads) and prints medians over rounds and passes side by side,
with the ratio off / auto (above 1: ours is faster). Run it with SGLang's interpreter. Options that are not
ours go to SGLang. --out is rewritten after every load, so that what was measured stays when the rest is cut off."""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from importlib.metadata import version
from pathlib import Path

from engine.bench import scaled_m3, serving_report
from engine.bench.serving_load import BenchError, Outcome, Plan, measure
from engine.bench.serving_profile import profile
from engine.bench.serving_server import server, tail
from engine.bench.step import Machine, Model
from engine.sglang import cli, command
from engine.sglang.msa import KERNELS

SCALED = (
    "--tp-size 1 --load-format dummy --skip-tokenizer-init --grammar-backend none --moe-runner-backend triton --random-seed 1 "
    "--sampling-backend pytorch --attention-backend triton --mem-fraction-static 0.8 --max-running-requests 64 "
    "--cuda-graph-max-bs-decode 32 --cuda-graph-backend-prefill disabled --context-length"
).split()
"""For a checkpoint without weights and tokenizer, on one GPU of however many. Dense layers run the Triton backend, which
SGLang has everywhere: their time is the same in both columns."""
CONTEXT = 131072
LATER_START_S = 60.0
"""What is kept back of --seconds for the start of each later server, whose kernels are compiled by then."""


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
    made.add_argument("--share", type=int, default=1, help="without --model: the heads that one of so many GPUs holds")
    made.add_argument("--small", action="store_true", help="heads and blocks that a CPU can serve")
    made.add_argument("--modes", default="off,auto", help=f"of {', '.join(KERNELS)}; default off,auto")
    made.add_argument("--rounds", type=int, default=1, help="starts of each server")
    made.add_argument("--passes", type=int, default=1, help="of the loads over each started server")
    made.add_argument("--seconds", type=float, help="of all together; loads that do not fit are left out and named")
    made.add_argument("--prefix", type=int, default=60000, help="tokens that all prompts share")
    made.add_argument("--own", type=int, default=2000, help="new tokens of a prompt")
    made.add_argument("--decode", type=int, default=400, help="tokens of an answer")
    made.add_argument("--concurrency", type=numbers, default=(1, 8, 32))
    made.add_argument("--new", type=numbers, default=(16, 128, 512, 2000, 8000), help="new tokens behind the prefix")
    made.add_argument("--far", type=int, default=0, help="tokens of a longer prefix to extend as well; 0: none")
    made.add_argument("--profile", action="store_true", help="microseconds of a layer's attention, and 60 layers")
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
    sizes = (given.rounds, given.passes, given.prefix, given.own, given.decode, *given.concurrency, *given.new)
    if min(sizes) < 1 or given.far < 0:
        made.error("sizes, rounds and concurrency must be 1 or more")
    if given.share not in (1, 2, 4, 8):
        made.error("--share must be 1, 2, 4 or 8")
    return given, [word for word in theirs if word != "--"]


def run(argv: Sequence[str]) -> int:
    given, theirs = parse(argv)
    with tempfile.TemporaryDirectory() as scratch:
        model, flags = given.model, list(theirs)
        if model is None:
            model = Path(scratch) / "scaled-m3"
            scaled_m3.write(model, given.layers, given.hidden, small=given.small, share=given.share)
            named = {word.split("=", 1)[0] for word in theirs if word.startswith("--")}
            context = max(CONTEXT, given.far + max(given.new) + given.decode + 1024)
            flags = _without([*SCALED, str(context)], named) + flags
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
            vocab.get("text_config", vocab)["vocab_size"] - 16, command.block_size(model), passes=given.passes, far=given.far,
        )  # fmt: skip
        given.logs = given.logs or Path(scratch)
        given.logs.mkdir(parents=True, exist_ok=True)
        bench = Bench(given, line, plan)
        try:
            bench.run()
        finally:  # also when this process is told to end
            code = bench.report()
        return code


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


class Bench:
    """All servers of one call, and what they gave so far."""

    def __init__(self, given: argparse.Namespace, line: list[str], plan: Plan) -> None:
        self.given, self.line, self.plan = given, line, plan
        self.results: dict[str, list[Outcome]] = {mode: [] for mode in given.modes}
        self.errors: list[str] = []
        self.began = time.monotonic()
        gpus = command.visible_gpus()
        self.activities = ("GPU",) if gpus.count else ("CPU",)  # to ask for what is not there ends the server
        self.machine = {"sglang": version("sglang"), "torch": version("torch"), "gpus": vars(gpus)}

    def run(self) -> None:
        turns = [(number, mode) for number in range(self.given.rounds) for mode in self.given.modes]
        for position, (number, mode) in enumerate(turns):
            left = self.left()
            if left < 1:
                self.errors.append(f"round {number + 1}, {mode}: no time left")
                continue
            try:
                self.one(number, mode, len(turns) - position - 1)
            except BenchError as error:
                self.say(f"{mode}: FAILED: {error}")
                self.errors.append(f"round {number + 1}, {mode}: {error}")
            self.write()

    def left(self) -> float:
        """Seconds, infinite without --seconds."""
        return float("inf") if self.given.seconds is None else self.began + self.given.seconds - time.monotonic()

    def one(self, number: int, mode: str, later: int) -> None:
        url = f"http://127.0.0.1:{self.given.port}"
        log = self.given.logs / f"{number}-{mode}.log"
        began = time.monotonic()
        with server(self.line, mode, log, url, min(self.given.wait, self.left()), self.say):
            up = time.monotonic()
            self.say(f"{mode}: up in {up - began:.0f} s")
            share = (self.left() - LATER_START_S * later) / (later + 1)
            work = measure(
                url,
                self.plan,
                number,
                until=up + share,
                note=lambda name, outcome: self.note(mode, name, outcome),
                profile=partial(profile, activities=self.activities) if self.given.profile else None,
            )
            try:
                made = asyncio.run(work)
            except BenchError as error:
                raise BenchError(f"{error}; the end of {log}:\n{tail(log)}") from error
            self.note(mode, "", made)
            self.say(f"{mode}: measured in {time.monotonic() - up:.0f} s" + _left_out(made))

    def note(self, mode: str, name: str, outcome: Outcome) -> None:
        """After every load: it is said, and all of it written."""
        kept = self.results[mode]
        if not kept or kept[-1] is not outcome:
            kept.append(outcome)
        if name:
            figure = outcome.figures.get(name, [{}])[-1]
            shown = ", ".join(f"{key} {figure[key]:.2f}" for key in serving_report.FIGURES if key in figure)
            if name == "profile":
                shown = ", ".join(f"{load} {one.get('attention_us', '?')} us" for load, one in outcome.layers.items())
            self.say(f"{mode}: {name} {shown}" + ("  INVALID" if "invalid" in figure else ""))
        self.write()

    def say(self, text: str) -> None:
        _say(f"[{time.monotonic() - self.began:6.1f} s] {text}")

    def write(self) -> None:
        if self.given.out is None:
            return
        names = ("prefix", "own", "decode", "concurrency", "new", "far", "rounds", "passes", "share")
        sizes = {name: getattr(self.given, name) for name in names}
        results = {mode: [asdict(outcome) for outcome in outcomes] for mode, outcomes in self.results.items()}
        whole = {"command": command.shown(self.line), **self.machine, "sizes": sizes, "errors": self.errors}
        spare = self.given.out.with_suffix(".part")
        spare.write_text(json.dumps(whole | {"results": results}, indent=1))
        spare.replace(self.given.out)

    def report(self) -> int:
        """0; 1 when a server failed; 3 when a figure must not be quoted."""
        modes = [mode for mode in self.given.modes if self.results[mode]]
        if modes:
            sizes = {"prefix": self.given.prefix, "own": self.given.own}
            machine = Machine(gpus=8 if self.given.share == 1 else self.given.share)
            for row in serving_report.table(self.results, modes):
                _say(row)
            _say(serving_report.agreement(self.results, modes))
            for row in serving_report.projected(self.results, modes, sizes, Model(), machine):
                _say(row)
            for mode in modes:
                for name, value in sorted(self.results[mode][-1].paths.items()):
                    _say(f"{mode:<8}{name} {value:.0f}")
        self.write()
        for error in self.errors:
            _say(f"catalejo bench engine: {error.splitlines()[0]}")
        return 1 if self.errors else 3 if serving_report.invalid(self.results) else 0


def _left_out(outcome: Outcome) -> str:
    return f"; no time for {', '.join(outcome.skipped)}" if outcome.skipped else ""


def _say(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # else the server would be left running
    sys.exit(run(sys.argv[1:]))
