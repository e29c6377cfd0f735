"""Ctrl-C and SIGTERM as a wish, so that a run can end in order and keep what it has. The second one is an order."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


@dataclass
class Interrupt:
    wanted: bool = False


@contextmanager
def interruptible() -> Iterator[Interrupt]:
    """In the main thread the first SIGINT or SIGTERM sets `wanted`, a second raises KeyboardInterrupt; elsewhere signals are
    not ours to take."""
    interrupt = Interrupt()
    if threading.current_thread() is not threading.main_thread():
        yield interrupt
        return

    def heard(number: int, frame: FrameType | None) -> None:
        if interrupt.wanted:
            raise KeyboardInterrupt
        interrupt.wanted = True

    before = {number: signal.signal(number, heard) for number in _SIGNALS}
    try:
        yield interrupt
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
