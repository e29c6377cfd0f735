"""Instructions instead of milliseconds: `catalejo bench preprocess --instructions` runs each peer under callgrind.

A count does not depend on what else the machine does, nor on its clock; it says nothing about caches and branches.
One peer runs once and then three times in processes of their own; half the difference is one call without start-up. The
simulated CPU has AVX2 and no AVX-512, so the AVX2 forms are counted.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Final

from gateway.bench import preprocess_material as material

COUNTED: Final = ("ours, area", "ours, long side", "decoder alone", "Pillow bicubic, long side")
SCRIPT: Final = (
    "import sys, pathlib; from gateway.bench.preprocess_peers import PEERS; run = PEERS[sys.argv[1]](); "
    "data = pathlib.Path(sys.argv[2]).read_bytes(); [run(data) for _ in range(int(sys.argv[3]))]"
)


class CountError(RuntimeError):
    """callgrind is missing or did not finish; the text says which."""


def instructions(peer: str, path: Path, calls: int) -> int:
    """Instructions of a process that makes `calls` calls."""
    command = ["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null", sys.executable, "-c", SCRIPT]
    done = subprocess.run([*command, peer, str(path), str(calls)], capture_output=True, text=True, check=False)
    found = re.search(r"Collected : (\d+)", done.stderr)
    if done.returncode != 0 or found is None:
        raise CountError(f"{peer}: {done.stderr.strip().splitlines()[-1] if done.stderr.strip() else 'no output'}")
    return int(found.group(1))


def count(say: Callable[[str], None]) -> dict[str, dict[str, int]]:
    """{work: {peer: instructions of one call}} for the bench's pictures. Raises CountError."""
    if shutil.which("valgrind") is None:
        raise CountError("valgrind is not installed (Debian: apt-get install valgrind)")
    table: dict[str, dict[str, int]] = {}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "picture"
        for work, data in material.images().items():
            path.write_bytes(data)
            table[work] = {}
            for peer in COUNTED:
                say(f"{work}, {peer}, under callgrind")
                table[work][peer] = (instructions(peer, path, 3) - instructions(peer, path, 1)) // 2
    return table


def show(table: dict[str, dict[str, int]]) -> str:
    """One line a peer: millions of instructions, and the share of the decoder's own count."""
    lines = [f"{'':40} {'M instructions':>15} {'/ decoder':>10}"]
    for work, counts in table.items():
        for peer, value in counts.items():
            lines.append(f"{work + ', ' + peer:40} {value / 1e6:15.1f} {value / counts['decoder alone']:10.2f}")
    return "\n".join(lines)


def run(as_json: bool = False) -> int:
    """The command's exit status: 1 where callgrind cannot count."""

    def say(text: str) -> None:
        if not as_json:
            print(f"{text} ...", file=sys.stderr)

    try:
        table = count(say)
    except CountError as e:
        print(f"catalejo: {e}", file=sys.stderr)
        return 1
    print(json.dumps(table, indent=1) if as_json else show(table))
    return 0
