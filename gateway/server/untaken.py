"""How slow a client may be that takes its answer.

What it has not taken lies in our buffer and in the kernel's, which holds megabytes and asks for more only when a third of them
is free: our own buffer alone stands still for a minute while a client reads steadily."""

from __future__ import annotations

import asyncio
import fcntl
import sys
import termios
from typing import Final

SLOWEST_BYTES_PER_S: Final = 1024
"""A client slower than this holds memory for nothing."""


def untaken(transport: asyncio.Transport) -> int:
    """Bytes written to the client that it has not acknowledged; where the kernel does not tell, those it has not been given."""
    own = transport.get_write_buffer_size()
    socket = transport.get_extra_info("socket")
    if socket is None:
        return own
    try:
        told = fcntl.ioctl(socket.fileno(), termios.TIOCOUTQ, bytes(4))
    except (OSError, ValueError):
        return own
    return own + int.from_bytes(told, sys.byteorder)


def too_slow(before: int, now: int, seconds: float) -> bool:
    """`before` and `now`: untaken bytes, so many seconds apart, between which nothing was written."""
    return before - now < SLOWEST_BYTES_PER_S * seconds
