"""`catalejo bench preprocess`: ours beside its peers, all in one run, interleaved so that noise meets all of them.

CPU milliseconds (median; all threads of a peer, each told to use one) decide the ratios: neighbours on the machine
hardly count. "two at once" is wall time per file with two threads working. Peak memory is measured in a process of its
own. A line of the targets says whether the ratio is reached.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import preproc_rs
from gateway.bench import preprocess_material as material
from gateway.bench.preprocess_peers import PEERS, Run

VIDEO_PEERS: Final = tuple(peer for peer in PEERS if ", 2 fps" in peer)
IMAGE_PEERS: Final = tuple(peer for peer in PEERS if peer not in VIDEO_PEERS)
# work, numerator, denominator, target, whether more is better
TARGETS: Final = (
    ("12 MP JPEG", "ours, area", "decoder alone", 1.25, False),
    ("12 MP JPEG", "ours, area, AVX2", "decoder alone", 1.25, False),
    ("1080p JPEG", "torchvision + reference", "ours, area", 1.6, True),
    ("12 MP JPEG", "torchvision + reference", "ours, area", 1.8, True),
    ("1080p JPEG", "Pillow + reference", "ours, area", 1.8, True),
    ("1080p JPEG", "Pillow bicubic, long side", "ours, long side", 1.8, True),
    ("12 MP JPEG", "SGLang's Rust extension", "ours, area", 2.0, True),
    ("1080p JPEG", "SGLang's Rust extension", "ours, area", 2.2, True),
    ("1080p PNG", "SGLang's Rust extension", "ours, area", 1.8, True),
    ("1080p WebP", "SGLang's Rust extension", "ours, area", 2.2, True),
    ("1080p PNG", "torchvision + reference", "ours, area", 1.6, True),
    ("1080p WebP", "torchvision + reference", "ours, area", 1.6, True),
    ("720p video", "ours, 2 fps", "its decoder alone", 1.15, False),
    ("720p video", "best peer, 2 fps", "ours, 2 fps", 1.5, True),
)


@dataclass
class Times:
    """Milliseconds of one peer on one file."""

    cpu: list[float] = field(default_factory=list)
    wall: list[float] = field(default_factory=list)
    pair_ms: float | None = None
    peak_mib: float | None = None

    def cpu_ms(self) -> float:
        return statistics.median(self.cpu)

    def report(self) -> dict[str, float | None]:
        return {
            "cpu_ms": round(self.cpu_ms(), 3),
            "wall_ms": round(statistics.median(self.wall), 3),
            "two_at_once_ms": self.pair_ms and round(self.pair_ms, 3),
            "peak_mib": self.peak_mib and round(self.peak_mib, 1),
        }


Table = dict[str, dict[str, Times]]


def _timed(run: Run, data: bytes, into: Times) -> object:
    wall, cpu = time.perf_counter(), time.process_time()
    result = run(data)
    into.cpu.append((time.process_time() - cpu) * 1e3)
    into.wall.append((time.perf_counter() - wall) * 1e3)
    return result


def _two_at_once(run: Run, data: bytes, times: int) -> float:
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(run, [data] * 2))
        begin = time.perf_counter()
        list(pool.map(run, [data] * (2 * times)))
        return (time.perf_counter() - begin) * 1e3 / (2 * times)


def _peak(peer: str, data: bytes, warm_up: bytes) -> float | None:
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder) / name for name in ("file", "warm_up")]
        for path, content in zip(paths, (data, warm_up), strict=True):
            path.write_bytes(content)
        command = [sys.executable, "-m", "gateway.bench.preprocess_peers", peer, *map(str, paths)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    return float(done.stdout) if done.returncode == 0 and done.stdout.strip() else None


def _ready(names: tuple[str, ...], absent: dict[str, str]) -> dict[str, Run]:
    runs: dict[str, Run] = {}
    for name in names:
        try:
            runs[name] = PEERS[name]()
        except Exception as error:
            absent[name] = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
    return runs


def measure_images(rounds: int, absent: dict[str, str], say: Callable[[str], None]) -> Table:
    runs, table = _ready(IMAGE_PEERS, absent), Table()
    files = material.images()
    for work, data in files.items():
        say(f"{work}, {len(data) / 1e6:.2f} MB")
        table[work] = {name: Times() for name in runs}
        for round_ in range(rounds + 1):
            for name, run in runs.items():
                _timed(run, data, table[work][name] if round_ else Times())
        for name, run in runs.items():
            table[work][name].pair_ms = _two_at_once(run, data, max(1, rounds // 3))
    for name in runs:
        table["12 MP JPEG"][name].peak_mib = _peak(name, files["12 MP JPEG"], material.tiny())
    return table


def measure_video(rounds: int, absent: dict[str, str], say: Callable[[str], None]) -> Table:
    if not preproc_rs.HAS_VIDEO:
        absent["video"] = "this build of preproc_rs has no video decoder"
        return {}
    data = material.video()
    if data is None:
        absent["video"] = "the ffmpeg program, which makes the file, is not installed or lacks libx264"
        return {}
    say(f"720p video, 20 s, {len(data) / 1e6:.2f} MB")
    runs = _ready(VIDEO_PEERS, absent)
    times = {name: Times() for name in runs} | {"its decoder alone": Times()}
    for round_ in range(rounds + 1):
        for name, run in runs.items():
            result: Any = _timed(run, data, times[name] if round_ else Times())
            if round_ and name == "ours, 2 fps":
                alone, total = result.ms["read"] + result.ms["decode"], result.ms["total"]
                times["its decoder alone"].wall.append(alone)
                times["its decoder alone"].cpu.append(times[name].cpu[-1] * alone / total)
    for name, run in runs.items():
        times[name].pair_ms = _two_at_once(run, data, 1)
    peers = [t for n, t in times.items() if "+ reference" in n]
    if peers:
        times["best peer, 2 fps"] = min(peers, key=Times.cpu_ms)
    return {"720p video": times}


def ratios(table: Table) -> list[dict[str, Any]]:
    out = []
    for work, above, below, target, more in TARGETS:
        times = table.get(work, {})
        if above in times and below in times:
            value = times[above].cpu_ms() / times[below].cpu_ms()
            reached = value >= target if more else value <= target
            out.append({"work": work, "ratio": f"{above} / {below}", "value": round(value, 3), "target": target})
            out[-1] |= {"more_is_better": more, "reached": reached}
    return out


def run(as_json: bool = False, rounds: int = 7, with_video: bool = True) -> int:
    warnings.simplefilter("ignore")
    absent: dict[str, str] = {}

    def say(text: str) -> None:
        if not as_json:
            print(f"measuring {text} ...", file=sys.stderr)

    if preproc_rs.BUILD_PROFILE != "release":
        say("A DEBUG BUILD: these figures mean nothing")
    table = measure_images(rounds, absent, say)
    if with_video:
        table |= measure_video(max(1, rounds // 3), absent, say)
    if as_json:
        works = {work: {name: t.report() for name, t in times.items()} for work, times in table.items()}
        print(json.dumps({"work": works, "ratios": ratios(table), "absent": absent}, indent=1))
        return 0
    for work, times in table.items():
        print(f"\n{work:34} {'CPU ms':>9} {'wall ms':>9} {'two at once':>12} {'peak MiB':>9}")
        for name, t in times.items():
            row = t.report()
            cells = [row["cpu_ms"], row["wall_ms"], row["two_at_once_ms"], row["peak_mib"]]
            text = ["-" if v is None else f"{v:.1f}" for v in cells]
            print(f"  {name:32} {text[0]:>9} {text[1]:>9} {text[2]:>12} {text[3]:>9}")
    print("\nratios of CPU time")
    for r in ratios(table):
        sign = ">=" if r["more_is_better"] else "<="
        print(
            f"  {r['work']:11} {r['ratio']:52} {r['value']:6.2f}  target {sign} {r['target']:<5} "
            f"{'reached' if r['reached'] else 'MISSED'}"
        )
    for name, why in absent.items():
        print(f"  not measured: {name} ({why})")
    return 0
