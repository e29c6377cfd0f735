"""The worker process of the video pool: one job at a time, in little memory, and dispensable.

`python -m gateway.media.video_process FD CAP_BYTES` talks over a SOCK_SEQPACKET socket, one JSON object a message:
    in   {"op": "job", "options": {...}} with a memfd of the file; {"op": "cancel"} stops the job that runs
    out  {"ok": true, "rows": n, "meta": m} with a sealed memfd: n bytes of rows, then m bytes of JSON;
         {"ok": false, "code": ..., "message": ...}
A codec's bug costs this process and one request. The socket's end, or the parent's death, ends the process.

Not here: the pool (video_worker.py), which treats everything this process says as untrusted.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import json
import os
import resource
import signal
import socket
import sys
import threading
from typing import Any, Final

MESSAGE_BYTES: Final = 65536
SEALS: Final = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE
_PR_SET_PDEATHSIG: Final = 1
_PR_SET_NO_NEW_PRIVS: Final = 38
FIELDS: Final = (
    "kind", "format", "width", "height", "resized_hw", "grid_thw", "tokens", "rows", "t_dup",
    "source_key", "hash", "timestamps", "frame_indices", "ms",
)  # fmt: skip


def memfd(name: str) -> int:
    return os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)


def write_all(fd: int, data: bytes | memoryview) -> None:
    view = memoryview(data).cast("B")
    while view:
        view = view[os.write(fd, view) :]


def read_all(fd: int) -> bytes:
    size, pieces, at = os.fstat(fd).st_size, [], 0
    while at < size:
        piece = os.pread(fd, size - at, at)
        if not piece:
            break
        pieces.append(piece)
        at += len(piece)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def _confine(cap_bytes: int) -> None:
    """Caps the address space at what is in use now plus `cap_bytes`; no core dumps; dies with the parent."""
    with open("/proc/self/statm") as f:
        used = int(f.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + cap_bytes, used + cap_bytes))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    libc = ctypes.CDLL(None)
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)


def _answer(channel: socket.socket, answer: dict[str, Any], fd: int | None = None) -> None:
    fds = [] if fd is None else [fd]
    socket.send_fds(channel, [json.dumps(answer).encode()], fds)
    if fd is not None:
        os.close(fd)


def _work(channel: socket.socket, source: int, options: dict[str, Any], token: Any) -> None:
    import preproc_rs

    try:
        data = read_all(source)
        os.close(source)
        prepared = preproc_rs.prepare_video(data, cancel=token, **options)
        meta = json.dumps({name: getattr(prepared, name) for name in FIELDS}).encode()
        patches: Any = prepared.patches
        rows = memoryview(patches).cast("B")
        result = memfd("rows")
        write_all(result, rows)
        write_all(result, meta)
        fcntl.fcntl(result, fcntl.F_ADD_SEALS, SEALS)
    except preproc_rs.PreprocError as error:
        _answer(channel, {"ok": False, "code": error.code, "message": error.message})
    except (MemoryError, OSError):
        message = "decoding this video takes more memory than allowed"
        _answer(channel, {"ok": False, "code": "out_of_memory", "message": message})
    else:
        _answer(channel, {"ok": True, "rows": rows.nbytes, "meta": len(meta)}, result)


def main(fd: int, cap_bytes: int) -> None:
    import numpy  # noqa: F401  (its address space counts as "in use now")

    import preproc_rs

    channel = socket.socket(fileno=fd)
    _confine(cap_bytes)
    _answer(channel, {"ok": True})
    token = preproc_rs.CancelToken()
    while True:
        message, fds, _, _ = socket.recv_fds(channel, MESSAGE_BYTES, 1)
        if not message:
            os._exit(0)
        request = json.loads(message)
        if request["op"] == "cancel":
            token.cancel()
            continue
        token = preproc_rs.CancelToken()
        job = threading.Thread(target=_work, args=(channel, fds[0], request["options"], token), daemon=True)
        job.start()


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt, ConnectionError, BrokenPipeError):
        main(int(sys.argv[1]), int(sys.argv[2]))
