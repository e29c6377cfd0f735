"""The files of metrics that several processes share, with their room on the disk taken before it is used.

prometheus_client maps them into memory and lengthens them without taking room: on a full disk the first touch of a new page
ends the process by SIGBUS, whatever it was doing. Here a full disk is an error of the start; later, a series that finds no room
is left out of `/metrics` until there is some."""

from __future__ import annotations

import errno
import logging
import os
from math import inf
from pathlib import Path
from time import monotonic
from typing import Final

from prometheus_client import mmap_dict, values

from gateway.processes.sockets import ListenError

log = logging.getLogger("catalejo.processes")
KINDS: Final = ("counter", "histogram", "gauge_livesum", "gauge_livemax", "gauge_livemin")
"""Each process has one file of each."""

FIRST_BYTES: Final = 1 << 16
"""prometheus_client's own first length; it doubles as often as is needed."""

RETRY_S = 1.0
"""A full disk is asked again after so long: the answer takes milliseconds."""

FULL: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def install(folder: Path) -> None:
    """To be called before this process makes its metrics. Raises ListenError when `folder` has no room for their files."""
    values.MmapedDict = RoomyDict  # type: ignore[attr-defined]
    for kind in KINDS:
        try:
            with (folder / f"{kind}_{os.getpid()}.db").open("ab") as file:
                _take_room(file.fileno(), FIRST_BYTES)
        except OSError as e:
            raise ListenError(
                f"no room for metrics in {folder} ({e.strerror}); set TMPDIR to a folder with some"
            ) from None


class RoomyDict(mmap_dict.MmapedDict):
    _told = False
    _full_at = -inf

    def read_value(self, key: str) -> tuple[float, float]:
        try:
            return super().read_value(key)  # type: ignore[no-untyped-call, no-any-return]
        except OSError as e:
            self._left_out(e)
            return 0.0, 0.0

    def write_value(self, key: str, value: float, timestamp: float) -> None:
        try:
            super().write_value(key, value, timestamp)  # type: ignore[no-untyped-call]
        except OSError as e:
            self._left_out(e)

    def _init_value(self, key: str) -> None:
        """Raises OSError, and has changed nothing then."""
        length = len(key.encode())
        needed = self._used + 4 + length + (8 - (length + 4) % 8) + 16  # as _init_value packs it
        capacity = self._capacity
        while capacity < needed:
            capacity *= 2
        if capacity > self._capacity:
            self._grow(capacity)
        super()._init_value(key)  # type: ignore[no-untyped-call]

    def _grow(self, capacity: int) -> None:
        if monotonic() - self._full_at < RETRY_S:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        try:
            _take_room(self._f.fileno(), capacity)
        except OSError:
            self._full_at = monotonic()
            raise

    def _left_out(self, error: OSError) -> None:
        if not RoomyDict._told:
            RoomyDict._told = True
            log.error("no room for more metrics in %s (%s): new series are left out", self._fname, error.strerror)


def _take_room(descriptor: int, size: int) -> None:
    """Raises OSError for a full disk. A file system that cannot do it is left to its luck."""
    try:
        os.posix_fallocate(descriptor, 0, size)
    except OSError as e:
        if e.errno in FULL:
            raise
