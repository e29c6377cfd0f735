"""`catalejo bench media-cache`: what remembering prepared media saves in an agent's conversation.

The conversation: `turns` requests; each of the first `pictures` turns adds one screenshot, and every request carries
all of them again, as chat clients do. It is run twice for each way of sending (data: URLs; URLs of a loopback server
in a process of its own), with everything remembered and with nothing remembered. Counted: fetches, decodes, encoded
bytes taken in, row bytes that go to the engine, and this process's CPU time. Pictures are PNGs made here, with the flat areas and
small glyphs of a screenshot; each conversation has its own.
"""

from __future__ import annotations

import asyncio
import base64
import json
import random
import struct
import subprocess
import sys
import tempfile
import time
import zlib
from dataclasses import asdict, dataclass
from pathlib import Path

from gateway.media.metrics import MediaMetrics
from gateway.media.residency import Residency
from gateway.media.service import MediaService
from gateway.media.settings import FetchSettings, MediaSettings
from gateway.media.types import MediaPart

WORKER = "engine-0"
MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Result:
    source: str
    cache: str
    requests: int
    parts: int
    fetches: int
    decodes: int
    taken_in_mib: float
    rows_sent_mib: float
    cpu_s: float
    cpu_ms_per_request: float
    slowest_request_ms: float


def screenshot(width: int, height: int, seed: int) -> bytes:
    """An RGB PNG: background, title bar, and rows of 8x8 glyphs. The same seed gives the same bytes."""
    dice = random.Random(seed)
    glyphs = [[dice.getrandbits(8) for _ in range(8)] for _ in range(64)]
    ink, paper = bytes((dice.randrange(96),) * 3), bytes((255 - dice.randrange(32),) * 3)
    raw = bytearray()
    for top in range(0, height, 8):
        text = [dice.choice(glyphs) if top % 24 == 8 and dice.random() < 0.7 else None for _ in range(width // 8)]
        for y in range(min(8, height - top)):
            row = bytearray(paper * width)
            if top < 32:
                row[:] = bytes((60, 90, 160)) * width
            for column, glyph in enumerate(text):
                if glyph:
                    for x in range(8):
                        if glyph[y] >> x & 1:
                            at = 3 * (8 * column + x)
                            row[at : at + 3] = ink
            raw += b"\0" + row
    chunks = (
        (b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)),
        (b"IDAT", zlib.compress(bytes(raw), 6)),
        (b"IEND", b""),
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body)) for kind, body in chunks
    )


def settings_for(remember: bool, endpoint: str) -> MediaSettings:
    fetch = FetchSettings(private_endpoints=(endpoint,) if endpoint else ())
    if remember:
        return MediaSettings(fetch=fetch, video_workers=0)
    return MediaSettings(fetch=fetch, video_workers=0, cache_bytes=0, url_ttl_s=0, negative_ttl_s=0)


async def converse(source: str, urls: list[str], turns: int, remember: bool, endpoint: str) -> Result:
    metrics = MediaMetrics()
    service = MediaService(settings_for(remember, endpoint), metrics)
    await service.start()
    residency = Residency()
    parts = sent = 0
    slowest = 0.0
    began_cpu = time.process_time()
    try:
        for turn in range(turns):
            asked = [MediaPart("image", f"messages[{n}].content[0]", url) for n, url in enumerate(urls[: turn + 1])]
            began = time.perf_counter()
            for media in await service.prepare(asked):
                if not (remember and residency.known(WORKER, media.hash)):
                    sent += media.data.nbytes
                    residency.add(WORKER, media.hash, media.data.nbytes)
            slowest = max(slowest, time.perf_counter() - began)
            parts += len(asked)
    finally:
        cpu = time.process_time() - began_cpu
        await service.close()

    def count(name: str, **labels: str) -> float:
        return metrics.registry.get_sample_value(f"catalejo_media_{name}_total", labels) or 0.0

    return Result(
        source=source,
        cache="on" if remember else "off",
        requests=turns,
        parts=parts,
        fetches=int(count("fetches", outcome="ok")),
        decodes=int(count("decodes", modality="image")),
        taken_in_mib=round(count("bytes", source=source) / MIB, 2),
        rows_sent_mib=round(sent / MIB, 2),
        cpu_s=round(cpu, 2),
        cpu_ms_per_request=round(1000 * cpu / turns, 1),
        slowest_request_ms=round(1000 * slowest, 1),
    )


def measure(turns: int, pictures: int, width: int, height: int) -> list[Result]:
    shots = [screenshot(width, height, seed) for seed in range(pictures)]
    results = []
    data_urls = ["data:image/png;base64," + base64.b64encode(shot).decode() for shot in shots]
    for remember in (True, False):
        results.append(asyncio.run(converse("data", data_urls, turns, remember, "")))
    with tempfile.TemporaryDirectory() as folder:
        for number, shot in enumerate(shots):
            (Path(folder) / f"{number}.png").write_bytes(shot)
        with _FileServer(folder) as port:
            http_urls = [f"http://127.0.0.1:{port}/{number}.png" for number in range(pictures)]
            for remember in (True, False):
                results.append(asyncio.run(converse("http", http_urls, turns, remember, f"127.0.0.1:{port}")))
    return results


class _FileServer:
    """Python's own file server in another process, so that its CPU time is not ours."""

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def __enter__(self) -> int:
        command = [sys.executable, "-u", "-m", "http.server", "0", "--bind", "127.0.0.1", "--directory", self._folder]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        assert self._process.stdout is not None
        line = self._process.stdout.readline()  # "Serving HTTP on 127.0.0.1 port 40001 (http://...) ..."
        return int(line.split(" port ")[1].split(" ")[0])

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()


def run(turns: int, pictures: int, width: int, height: int, as_json: bool) -> int:
    """Prints the table, or one JSON object. Returns the exit code."""
    import preproc_rs

    results = measure(turns, pictures, width, height)
    profile = getattr(preproc_rs, "BUILD_PROFILE", "unknown")
    if as_json:
        setup = {"turns": turns, "pictures": pictures, "width": width, "height": height, "preproc_build": profile}
        print(json.dumps({"setup": setup, "results": [asdict(r) for r in results]}, indent=2))
        return 0
    print(f"{turns} turns, {pictures} screenshots of {width}x{height}, all sent again each turn; preproc_rs: {profile}")
    names = list(asdict(results[0]))
    rows = [names, *([str(value) for value in asdict(r).values()] for r in results)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(names))]
    for row in rows:
        print("  ".join(cell.rjust(wide) for cell, wide in zip(row, widths, strict=True)))
    return 0
