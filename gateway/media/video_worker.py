"""A pool of video worker processes: `await VideoPool.prepare(data, **options)` gives what preproc_rs.Prepared gives.

A job goes to a free process (video_process.py); its rows come back in a sealed memory file that is mapped, not copied.
A process that dies costs its own request ("corrupt") and is replaced. A cancelled request cancels the decode; a process
that does not stop within GRACE_S, or overruns its deadline by that much, is killed. What a process says is checked
(seals, sizes, shapes): its decoder has just read a stranger's file.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import mmap
import os
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

import preproc_rs
from gateway.media.video_process import MESSAGE_BYTES, SEALS, memfd, write_all

if not preproc_rs.HAS_VIDEO:
    raise ImportError("preproc_rs was built without its feature `video`")

GRACE_S: Final = 2.0
START_S: Final = 30.0
DEADLINE_S: Final = 20.0
MEMORY_BYTES: Final = 1 << 30
"""Address space a process may take beyond what it has when idle: rows of the largest default video take 301 MB."""
CLOSING: Final = "the server is shutting down"
CRASHED: Final = "the video decoder could not cope with this file"


class VideoError(preproc_rs.PreprocError):
    """What the worker refused, with preproc_rs's codes."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


@dataclass(frozen=True, slots=True)
class PreparedVideo:
    """The attributes of preproc_rs.Prepared; `patches` [t*h*w, 1176] lies in a read-only mapping of its own."""

    kind: str
    format: str
    width: int
    height: int
    resized_hw: tuple[int, int]
    grid_thw: tuple[int, int, int]
    tokens: int
    rows: str
    t_dup: int
    patches: NDArray[Any]
    source_key: str
    hash: str
    timestamps: tuple[float, ...]
    frame_indices: tuple[int, ...]
    ms: dict[str, float]


class _Process:
    """One worker process and the parent's end of its socket. All methods block; they run in the pool's threads."""

    def __init__(self, memory_bytes: int) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        environment = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "PATH": os.environ.get("PATH", "")}
        for name in ("PYTHONPATH", "LD_LIBRARY_PATH", "VIRTUAL_ENV", "LANG"):
            if name in os.environ:
                environment[name] = os.environ[name]
        command = [sys.executable, "-m", "gateway.media.video_process", str(theirs.fileno()), str(memory_bytes)]
        self._channel = ours
        with theirs:
            self._child = subprocess.Popen(
                command,
                pass_fds=[theirs.fileno()],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
            )
        self._channel.settimeout(START_S)
        if not self._ready():
            self.close()
            raise VideoError("decoder_disabled", "the video decoder does not start")

    def _ready(self) -> bool:
        try:
            return bool(self._channel.recv(MESSAGE_BYTES))
        except OSError:
            return False

    @property
    def pid(self) -> int:
        return self._child.pid

    @property
    def alive(self) -> bool:
        return self._child.poll() is None

    def cancel(self) -> None:
        with contextlib.suppress(OSError):
            self._channel.send(b'{"op": "cancel"}')

    def kill(self) -> None:
        """From any thread; wakes a thread that waits for an answer. The socket stays open, lest its number be reused."""
        self._child.kill()
        self._child.wait()
        with contextlib.suppress(OSError):
            self._channel.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """After the last job has returned."""
        self.kill()
        self._channel.close()

    def job(self, data: bytes, options: dict[str, Any], limit_s: float) -> PreparedVideo:
        source = memfd("video")
        try:
            write_all(source, data)
            request = json.dumps({"op": "job", "options": options}).encode()
            self._channel.settimeout(limit_s)
            socket.send_fds(self._channel, [request], [source])
        except OSError:
            self.kill()
            raise VideoError("corrupt", CRASHED) from None
        finally:
            os.close(source)
        return self._answer(limit_s)

    def _answer(self, limit_s: float) -> PreparedVideo:
        fds: list[int] = []
        try:
            message, fds, _, _ = socket.recv_fds(self._channel, MESSAGE_BYTES, 1)
            answer = json.loads(message) if message else None
            if not isinstance(answer, dict):
                raise ValueError("the process has ended")
            if not answer["ok"]:
                raise VideoError(str(answer["code"]), str(answer["message"]))
            return _map(fds[0], int(answer["rows"]), int(answer["meta"]))
        except TimeoutError:
            self.kill()
            raise VideoError("deadline", f"decoding this video took longer than {limit_s - GRACE_S:g} s") from None
        except VideoError:
            raise
        except (OSError, ValueError, KeyError, TypeError, IndexError):
            self.kill()
            raise VideoError("corrupt", CRASHED) from None
        finally:
            for fd in fds:
                os.close(fd)


def _map(fd: int, rows_bytes: int, meta_bytes: int) -> PreparedVideo:
    """Raises ValueError, KeyError or TypeError for anything that does not fit together."""
    if fcntl.fcntl(fd, fcntl.F_GET_SEALS) & SEALS != SEALS or os.fstat(fd).st_size != rows_bytes + meta_bytes:
        raise ValueError("the result is not sealed, or of another size")
    memory = mmap.mmap(fd, rows_bytes + meta_bytes, mmap.MAP_SHARED, mmap.PROT_READ)
    meta = json.loads(memory[rows_bytes:])
    t, h, w = (int(v) for v in meta["grid_thw"])
    kind: np.dtype[Any] = np.dtype({"u8": "u1", "f32": "<f4"}[meta["rows"]])
    if min(t, h, w) < 1 or t * h * w * 1176 * kind.itemsize != rows_bytes or len(meta["timestamps"]) != t:
        raise ValueError("the rows do not fit their grid")
    patches = np.frombuffer(memory, kind, t * h * w * 1176).reshape(t * h * w, 1176)
    return PreparedVideo(
        kind="video",
        format=str(meta["format"]),
        width=int(meta["width"]),
        height=int(meta["height"]),
        resized_hw=(h * 14, w * 14),
        grid_thw=(t, h, w),
        tokens=t * h * w // 4,
        rows=str(meta["rows"]),
        t_dup=0,
        patches=patches,
        source_key=str(meta["source_key"]),
        hash=str(meta["hash"]),
        timestamps=tuple(float(v) for v in meta["timestamps"]),
        frame_indices=tuple(int(v) for v in meta["frame_indices"]),
        ms={str(k): float(v) for k, v in meta["ms"].items()},
    )


class VideoPool:
    """`workers` processes; more jobs wait in line. `start` makes the processes ready, `close` ends them."""

    def __init__(self, workers: int = 1, memory_bytes: int = MEMORY_BYTES, deadline_s: float = DEADLINE_S) -> None:
        self._workers = workers
        self._memory_bytes = memory_bytes
        self._deadline_s = deadline_s
        self._idle: asyncio.Queue[_Process | None] = asyncio.Queue()
        self._threads = ThreadPoolExecutor(max_workers=2 * workers, thread_name_prefix="video")
        self._living: set[_Process] = set()
        self._settling: set[asyncio.Task[None]] = set()
        self._closed = False
        self.respawned = 0
        """Processes that had to be replaced."""

    async def start(self) -> None:
        """Raises PreprocError when no process comes up."""
        for process in await asyncio.gather(*(self._spawn() for _ in range(self._workers))):
            self._idle.put_nowait(process)

    async def close(self) -> None:
        self._closed = True
        self._idle.put_nowait(None)
        for process in self._living:
            process.kill()
        await asyncio.gather(*self._settling, return_exceptions=True)
        await asyncio.to_thread(self._threads.shutdown, cancel_futures=True)
        for process in self._living:
            process.close()
        self._living.clear()

    async def prepare(
        self,
        data: bytes,
        *,
        fps: float | None = None,
        max_frames: int | None = None,
        max_long_side_pixel: int | None = None,
        rows: str = "u8",
        threads: int = 1,
    ) -> PreparedVideo:
        """Raises PreprocError (`.code`, `.message`). Cancelling the task stops the decode."""
        options = {
            "fps": fps,
            "max_frames": max_frames,
            "max_long_side_pixel": max_long_side_pixel,
            "rows": rows,
            "threads": threads,
            "deadline_s": self._deadline_s,
        }
        process = await self._idle.get()
        if self._closed:
            self._idle.put_nowait(process)  # for the next one in line
            raise VideoError("cancelled", CLOSING)
        try:
            if process is None or not process.alive:
                process = await self._respawn(process)
        except BaseException:
            self._idle.put_nowait(None)
            raise
        limit_s = self._deadline_s + GRACE_S
        job = asyncio.get_running_loop().run_in_executor(self._threads, process.job, data, options, limit_s)
        try:
            return await asyncio.shield(job)
        except asyncio.CancelledError:
            process.cancel()
            raise
        finally:
            if job.done():
                self._release(process)
            else:
                task = asyncio.create_task(self._settle(process, job))
                self._settling.add(task)
                task.add_done_callback(self._settling.discard)

    async def _settle(self, process: _Process, job: asyncio.Future[PreparedVideo]) -> None:
        """A cancelled job's process is free again once it has answered; it is killed when it does not."""
        done, _ = await asyncio.wait({job}, timeout=GRACE_S)
        if not done:
            process.kill()
            await asyncio.wait({job})
        if not job.cancelled():
            job.exception()
        self._release(process)

    def _release(self, process: _Process) -> None:
        if not self._closed:
            self._idle.put_nowait(process)

    async def _spawn(self) -> _Process:
        loop = asyncio.get_running_loop()
        process = await loop.run_in_executor(self._threads, _Process, self._memory_bytes)
        if self._closed:
            process.close()
            raise VideoError("cancelled", CLOSING)
        self._living.add(process)
        return process

    async def _respawn(self, dead: _Process | None) -> _Process:
        if dead is not None:
            self._living.discard(dead)
            dead.close()
        self.respawned += 1
        return await self._spawn()
