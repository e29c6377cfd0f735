"""What every child process of ours gets."""

from __future__ import annotations

import ctypes
import signal
import sys
from typing import Final

_PR_SET_PDEATHSIG: Final = 1
_LIBC: Final = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None


def end_with_parent() -> None:
    """In the child: the kernel ends it when the supervisor dies, even of SIGKILL, so that no port stays taken (Linux). Between
    fork and exec nothing may be imported: another thread may have held the lock."""
    if _LIBC is not None:
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
