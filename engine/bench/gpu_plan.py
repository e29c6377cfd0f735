"""Everything that waits for a GPU, in order of value: `python -m engine.bench.gpu_plan --out FOLDER`.

Each item is a process of its own with a time limit, so that a kernel that crashes, hangs or spoils the CUDA context costs its
item only. After every item FOLDER/results.json is rewritten (status, seconds, end of the output, and what the item measured
so far, also when it was cut off) and its whole output is appended to FOLDER/log.txt. A later run with the same FOLDER, or with
--resume FILE, leaves out what is done; --again NAME repeats. --seconds bounds the whole run.

--check: the same machinery where there is no GPU, with each item's small CPU form. --list: the items."""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PYTHON = sys.executable
TAIL = 4000
LEAST_S = 20.0
"""An item is not begun with less than this left."""


@dataclass(frozen=True)
class Item:
    """`command` and `check` are arguments of this Python; {json}: where to write figures, {sglang}, {vllm}: given folders.
    `needs`: modules without which it is skipped; `peer`: skipped without that folder."""

    name: str
    command: tuple[str, ...]
    limit_s: float
    check: tuple[str, ...] | None = None
    needs: tuple[str, ...] = ()
    peer: str = ""


def _msa(*arguments: str) -> tuple[str, ...]:
    return ("-m", "engine.bench.msa", *arguments)


def _prefill(cases: str, *arguments: str) -> tuple[str, ...]:
    return _msa("--phase", "prefill", "--no-check", "--json", "{json}", "--cases", cases, *arguments)


PREFILL_CHECK = _msa("--phase", "prefill", "--check", "--cases", "one_row")
STEP = ("-m", "engine.bench.step", "--json", "{json}")
SERVED = ("uvicorn", "starlette", "fastapi", "safetensors", "transformers", "xgrammar", "preproc_rs")
TARGETS = "1x8192@8192,1x2000@62000,8x100@60100,1x100@60100,1x8192@131072,1x8192@524288"
ITEMS = (
    Item("build", ("-m", "engine.msa.kernels.build"), 120),
    Item("check_prefill", _msa("--phase", "prefill", "--check"), 200, PREFILL_CHECK),
    Item("prefill_128k", _prefill("1x8192@131072", "--sweep"), 150, PREFILL_CHECK),
    Item("prefill_extends", _prefill("1x2000@62000,1x8192@8192,8x100@60100,1x100@60100", "--sweep"), 150),
    Item(
        "decode_targets",
        _msa("--no-check", "--json", "{json}", "--cases", "1x131072,8x32768,32x32768,8x131072fp8,1x1048576"),
        120,
        _msa("--check", "--kernels", "emulated", "--cases", "first_choice"),
    ),
    Item("gpu_tests", ("-m", "pytest", "-q", "-x", "-c", os.devnull, "--rootdir", ".", "tests/gpu"), 150),
    Item("step", STEP, 60, ("-m", "engine.bench.step", "--check")),
    Item("prefill_512k", _prefill("1x8192@524288"), 100),
    Item("prefill_curve", _prefill("1x500@60500,1x100@250100,1x8192@32768,1x2048@131072,4x2048@32768,16x200@8192"), 120),
    Item("decode_dense", _msa("--no-check", "--dense", "--json", "{json}", "--cases", "1x32768"), 60),
    Item("prefill_dense", _prefill("1x8192@8192,1x8192@131072", "--dense", "--attend", "block_major"), 60),
    Item("decode_curve", _msa("--no-check", "--json", "{json}"), 150),
    Item("prefill_sglang", _prefill(TARGETS, "--sglang", "{sglang}", "--attend", "block_major"), 300, peer="sglang"),
    Item("step_sglang", (*STEP, "--sglang", "{sglang}"), 200, peer="sglang"),
    Item("prefill_vllm", _prefill(TARGETS, "--vllm", "{vllm}", "--attend", "block_major"), 300, peer="vllm"),
    Item("decode_vllm", _msa("--no-check", "--json", "{json}", "--vllm", "{vllm}"), 300, peer="vllm"),
    Item("prefill_long", _prefill("1x16384@131072,1x8192@1048576"), 120),
    Item("million", ("-m", "gateway.cli", "bench", "million", "--half", "local", "--json"), 400, needs=SERVED),
    Item("decode_sweep", _msa("--no-check", "--sweep", "--json", "{json}"), 200),
)  # fmt: skip


class Results:
    """FOLDER/results.json and FOLDER/log.txt."""

    def __init__(self, folder: Path, resume: Path | None) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.path, self.log = folder / "results.json", folder / "log.txt"
        before = resume or self.path
        self.items: dict[str, Any] = json.loads(before.read_text())["items"] if before.is_file() else {}

    def done(self, name: str) -> bool:
        return bool(self.items.get(name, {}).get("status") in ("ok", "failed"))

    def note(self, name: str, output: str, **facts: Any) -> None:
        self.items[name] = {**facts, "tail": output[-TAIL:]}
        with self.log.open("a") as log:
            log.write(f"===== {name} {facts['status']} {facts.get('seconds', 0):.1f} s\n{output}\n")
        spare = self.path.with_suffix(".part")
        spare.write_text(json.dumps({"items": self.items}, indent=1))
        spare.replace(self.path)


def run_item(command: tuple[str, ...], limit_s: float) -> tuple[int | None, str]:
    """Exit status (None: cut off at the limit) and output of one process and everything it started."""
    with tempfile.TemporaryFile() as out:
        process = subprocess.Popen([PYTHON, *command], stdout=out, stderr=subprocess.STDOUT, start_new_session=True,
                                   env={**os.environ, "PYTHONUNBUFFERED": "1"})  # fmt: skip
        try:
            status: int | None = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            status = None
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        out.seek(0)
        return status, out.read().decode(errors="replace")


def read(figures: Path) -> Any:
    """What the item wrote, or None: a process that was cut off may leave half a file."""
    try:
        return json.loads(figures.read_text())
    except (OSError, ValueError):
        return None


def run(items: tuple[Item, ...], results: Results, seconds: float, check: bool, peers: dict[str, Path | None]) -> int:
    """The number of items that failed or were cut off."""
    ends, bad = time.monotonic() + seconds, 0
    for item in items:
        if results.done(item.name):
            print(f"{item.name:16} done before", flush=True)
            continue
        command = item.check if check else item.command
        missing = [name for name in item.needs if importlib.util.find_spec(name) is None]
        skip = "no form without a GPU" if command is None else ""
        if not check and missing:
            skip = f"missing here: {', '.join(missing)}"
        if not check and item.peer and peers.get(item.peer) is None:
            skip = f"no --{item.peer} folder"
        left = ends - time.monotonic()
        if not skip and left < min(item.limit_s, LEAST_S):
            skip = f"{left:.0f} s left"
        if skip:
            results.note(item.name, "", status="skipped", why=skip)
            print(f"{item.name:16} skipped: {skip}", flush=True)
            continue
        assert command is not None
        with tempfile.TemporaryDirectory() as scratch:
            figures = Path(scratch) / "figures.json"
            places = {"{json}": figures, **{f"{{{name}}}": folder for name, folder in peers.items()}}
            filled = tuple(str(places.get(part, part)) for part in command)
            began = time.monotonic()
            patience = item.limit_s * (10 if check else 1)  # a CPU may be a busy one
            status, output = run_item(filled, min(patience, left))
            took = time.monotonic() - began
            measured = read(figures)
        name = "cut off" if status is None else "ok" if status == 0 else "failed"
        bad += name != "ok"
        results.note(item.name, output, status=name, rc=status, seconds=took, command=list(filled), figures=measured)
        print(f"{item.name:16} {name:8} {took:6.1f} s" + ("" if name == "ok" else "\n" + output[-1500:]), flush=True)
    return bad


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("gpu-results"))
    parser.add_argument("--resume", type=Path, help="results.json of an earlier run")
    parser.add_argument("--seconds", type=float, default=560.0)
    parser.add_argument("--only", default="", help="these items, by name, in this order")
    parser.add_argument("--again", default="", help="repeat these although they are done")
    parser.add_argument("--sglang", type=Path, help="folder of the unpacked SGLang wheel")
    parser.add_argument("--vllm", type=Path, help="folder that holds `vllm`: its unpacked wheel")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--list", action="store_true")
    args = parser.parse_args(arguments)
    by_name = {item.name: item for item in ITEMS}
    wanted = [name for name in args.only.split(",") if name]
    again = [name for name in args.again.split(",") if name]
    for name in (*wanted, *again):
        if name not in by_name:
            print(f"{name!r} is not one of {', '.join(by_name)}", file=sys.stderr)
            return 2
    items = tuple(by_name[name] for name in wanted) or ITEMS
    if args.list:
        for item in items:
            print(f"{item.name:16} {item.limit_s:4.0f} s  {' '.join(item.command)}")
        return 0
    if not args.check and shutil.which("nvidia-smi") is None:
        print("no GPU here: use --check", file=sys.stderr)
        return 2
    results = Results(args.out, args.resume)
    for name in again:
        results.items.pop(name, None)
    bad = run(items, results, args.seconds, args.check, {"sglang": args.sglang, "vllm": args.vllm})
    print(f"{results.path}: {bad} bad")
    return min(1, bad)


if __name__ == "__main__":
    raise SystemExit(main())
