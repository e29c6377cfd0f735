"""Instructions instead of milliseconds: `catalejo bench preprocess --instructions` runs each peer under valgrind.

A count does not depend on what else the machine does, nor on its clock; it says nothing about caches and branches. One
process under valgrind (cachegrind's counter alone, the quickest) imports everything; forks of it make one and two calls
of each peer, and the difference is one call without start-up. The simulated CPU has AVX2 and no AVX-512, so the
AVX2 forms are counted.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Final

from gateway.bench import preprocess_material as material
from gateway.bench.preprocess_peers import PEERS

COUNTED: Final = ("ours, area", "ours, long side", "decoder alone", "Pillow bicubic, long side")
TOOL: Final = ("valgrind", "--tool=cachegrind", "--cache-sim=no", "--cachegrind-out-file=/dev/null")


class CountError(RuntimeError):
    """valgrind is missing or did not finish; the text says which."""


def call_in_forks(folder: str) -> None:
    """Runs inside valgrind: for each file of `folder` and each peer, two forks. Prints {process: [work, peer, calls]}."""
    forks: dict[int, tuple[str, str, int]] = {}
    for path in sorted(Path(folder).iterdir()):
        data = path.read_bytes()
        for peer in COUNTED:
            run = PEERS[peer]()
            for calls in (1, 2):
                process = os.fork()
                if process == 0:
                    for _ in range(calls):
                        run(data)
                    os._exit(0)
                if os.waitpid(process, 0)[1] != 0:
                    sys.exit(f"{path.name}, {peer}: the call failed")
                forks[process] = (path.name, peer, calls)
    print(json.dumps(forks))


def count(pictures: dict[str, bytes], say: Callable[[str], None]) -> dict[str, dict[str, int]]:
    """{work: {peer: instructions of one call}} for each picture. Raises CountError."""
    if shutil.which("valgrind") is None:
        raise CountError("valgrind is not installed (Debian: apt-get install valgrind)")
    with tempfile.TemporaryDirectory() as folder:
        for work, data in pictures.items():
            Path(folder, work).write_bytes(data)
        say(f"{len(pictures)} pictures, {len(COUNTED)} peers, under valgrind: some minutes")
        environment = os.environ | {"PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1"}
        command = [*TOOL, sys.executable, "-m", "gateway.bench.preprocess_instructions", folder]
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if done.returncode != 0:
        raise CountError(done.stderr.strip().splitlines()[-1] if done.stderr.strip() else "no output")
    refs = {int(p): int(n.replace(",", "")) for p, n in re.findall(r"==(\d+)== I +refs: +([\d,]+)", done.stderr)}
    table: dict[str, dict[str, int]] = {work: dict.fromkeys(COUNTED, 0) for work in pictures}
    for process, (work, peer, calls) in json.loads(done.stdout).items():
        if int(process) not in refs:
            raise CountError(f"{work}, {peer}: valgrind printed no count")
        table[work][peer] += refs[int(process)] * (1 if calls == 2 else -1)
    return table


def show(table: dict[str, dict[str, int]]) -> str:
    """One line a peer: millions of instructions, and the share of the decoder's own count."""
    lines = [f"{'':40} {'M instructions':>15} {'/ decoder':>10}"]
    for work, counts in table.items():
        for peer, value in counts.items():
            lines.append(f"{work + ', ' + peer:40} {value / 1e6:15.1f} {value / counts['decoder alone']:10.2f}")
    return "\n".join(lines)


def run(as_json: bool = False) -> int:
    """The command's exit status: 1 where valgrind cannot count."""

    def say(text: str) -> None:
        if not as_json:
            print(f"{text} ...", file=sys.stderr)

    try:
        table = count(material.images(), say)
    except CountError as e:
        print(f"catalejo: {e}", file=sys.stderr)
        return 1
    print(json.dumps(table, indent=1) if as_json else show(table))
    return 0


if __name__ == "__main__":
    call_in_forks(sys.argv[1])
