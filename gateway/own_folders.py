"""Folders of ours among the temporary files: one of a gateway that was killed is removed when the next one starts.

Whoever uses a folder holds a shared lock on the file `lock` in it, which the kernel gives up when the process ends, however it
ends. A folder without that file, or of another user, is left alone."""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
import tempfile
from pathlib import Path
from typing import Final

PREFIX: Final = "catalejo-"
LOCK: Final = "lock"


class OwnFolder:
    """`path` is ours until `close`, which removes it."""

    def __init__(self, purpose: str) -> None:
        """Removes those that nobody uses any more, first. Raises OSError."""
        _remove_abandoned(Path(tempfile.gettempdir()))
        self.path = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{purpose}"))
        try:
            # Locked before it has its name: until then the folder is not known for ours, and nobody removes it.
            self._lock = _hold(self.path / f"{LOCK}.new", os.O_CREAT)
            (self.path / f"{LOCK}.new").rename(self.path / LOCK)
        except OSError:
            shutil.rmtree(self.path, ignore_errors=True)
            raise

    def close(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)


def hold(folder: Path) -> None:
    """For another process of the same gateway: the folder stays as long as this one lives, too. Raises OSError."""
    _hold(folder / LOCK, 0)  # never closed


def _hold(file: Path, flags: int) -> int:
    descriptor = os.open(file, os.O_RDWR | flags, 0o600)
    fcntl.flock(descriptor, fcntl.LOCK_SH)
    return descriptor


def _remove_abandoned(among: Path) -> None:
    for folder in among.glob(f"{PREFIX}*/"):
        try:
            status = folder.lstat()
            if status.st_uid != os.geteuid() or not stat.S_ISDIR(status.st_mode):
                continue
            descriptor = os.open(folder / LOCK, os.O_RDWR | os.O_NOFOLLOW)
        except OSError:
            continue
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            continue
        else:
            shutil.rmtree(folder, ignore_errors=True)
        finally:
            os.close(descriptor)
