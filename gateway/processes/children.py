"""What every child process of ours gets."""

from __future__ import annotations

import signal
import sys


def end_with_parent() -> None:
    """In the child: the kernel ends it when the supervisor dies, even of SIGKILL, so that no port stays taken (Linux)."""
    if sys.platform == "linux":
        import ctypes

        pr_set_pdeathsig = 1
        ctypes.CDLL(None, use_errno=True).prctl(pr_set_pdeathsig, signal.SIGTERM, 0, 0, 0)
