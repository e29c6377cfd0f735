"""Threads that are there before their first work."""

from __future__ import annotations

import asyncio
import os
import threading
from concurrent.futures import ThreadPoolExecutor


def start_threads(pool: ThreadPoolExecutor, threads: int) -> None:
    """Starts all of the pool's `threads` now. One that is started for its first work makes whoever brings it, the event loop,
    wait until it runs: on a busy machine tens of milliseconds in which every stream stands still."""
    go = threading.Event()
    for _ in range(threads):
        pool.submit(go.wait)
    go.set()


def start_default_threads() -> None:
    """Those of `asyncio.to_thread`, as many as the loop would make in time."""
    threads = min(32, (os.cpu_count() or 1) + 4)
    pool = ThreadPoolExecutor(threads, thread_name_prefix="asyncio")
    start_threads(pool, threads)
    asyncio.get_running_loop().set_default_executor(pool)
