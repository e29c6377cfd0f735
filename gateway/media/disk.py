"""Second level of the prepared-media cache: rows in files, content-addressed, bounded in bytes. Off by default.

One folder per process. A file is `magic | header length u32 | JSON header | rows`, written under another name and
renamed, so it is whole or absent; on reading, the rows must hash to the item's hash or the file is removed. The least
recently used go first (their order survives a restart as modification times). Synchronous, for the room's threads.
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
import threading
from collections import OrderedDict
from pathlib import Path
from typing import Any, Final

from engine.wire import item_hash
from gateway.media.cache import Entry, Key
from gateway.media.types import PreparedMedia

MAGIC: Final = b"CATLROW\x01"
_HEADER_LIMIT: Final = 1 << 20


class DiskCache:
    def __init__(self, folder: Path, limit_bytes: int) -> None:
        self._folder = folder
        self._limit = limit_bytes
        self._lock = threading.Lock()
        self._sizes: OrderedDict[str, int] = OrderedDict()
        self._bytes = 0
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        known = []
        for entry in os.scandir(folder):
            if entry.name.endswith(".rows"):
                info = entry.stat()
                known.append((info.st_mtime, entry.name, info.st_size))
            elif entry.name.endswith(".part"):
                os.unlink(entry.path)
        for _, name, size in sorted(known):
            self._sizes[name] = size
            self._bytes += size
        self._make_room()

    @property
    def bytes(self) -> int:
        return self._bytes

    def get(self, key: Key) -> Entry | None:
        name = _name(key)
        with self._lock:
            if name not in self._sizes:
                return None
            self._sizes.move_to_end(name)
        path = self._folder / name
        try:
            entry = _decode(path.read_bytes())
            os.utime(path)
        except (OSError, ValueError, KeyError, TypeError, struct.error):
            self._drop(name)
            return None
        return entry

    def put(self, key: Key, entry: Entry) -> None:
        name = _name(key)
        head = _encode_head(entry)
        size = len(head) + entry.media.data.nbytes
        with self._lock:
            if name in self._sizes or size > self._limit:
                return
        part = self._folder / f"{name}.{threading.get_ident()}.part"
        try:
            with open(part, "wb") as out:
                out.write(head)
                out.write(entry.media.data)
            os.replace(part, self._folder / name)
        except OSError:
            part.unlink(missing_ok=True)  # a full disk makes a slower cache, not a failed request
            return
        with self._lock:
            self._bytes += size - self._sizes.pop(name, 0)
            self._sizes[name] = size
        self._make_room()

    def _make_room(self) -> None:
        while True:
            with self._lock:
                if self._bytes <= self._limit or not self._sizes:
                    return
                name = next(iter(self._sizes))
            self._drop(name)

    def _drop(self, name: str) -> None:
        with self._lock:
            self._bytes -= self._sizes.pop(name, 0)
        (self._folder / name).unlink(missing_ok=True)


def _name(key: Key) -> str:
    return hashlib.blake2b("\0".join(key).encode(), digest_size=20).hexdigest() + ".rows"


def _encode_head(entry: Entry) -> bytes:
    media = entry.media
    header = json.dumps(
        {
            "media": {
                "modality": media.modality,
                "hash": media.hash,
                "grid": media.grid,
                "tokens": media.tokens,
                "rows": media.rows,
                "t_dup": media.t_dup,
                "timestamps": media.timestamps,
            },
            "source_bytes": entry.source_bytes,
            "pixels": entry.pixels,
            "seconds": entry.seconds,
        }
    ).encode()
    return MAGIC + struct.pack("<I", len(header)) + header


def _decode(raw: bytes) -> Entry:
    """Raises ValueError and its like for anything but a whole, unchanged file."""
    start = len(MAGIC) + 4
    length = struct.unpack_from("<I", raw, len(MAGIC))[0]
    if not raw.startswith(MAGIC) or length > _HEADER_LIMIT:
        raise ValueError("not a row file")
    header: dict[str, Any] = json.loads(raw[start : start + length])
    fields = header.pop("media")
    fields["grid"] = tuple(fields["grid"])
    fields["timestamps"] = None if fields["timestamps"] is None else tuple(fields["timestamps"])
    fields["source_bytes"] = header["source_bytes"]
    media = PreparedMedia(data=memoryview(raw)[start + length :], **fields)
    if item_hash(media.modality, media.grid, media.rows, media.t_dup, media.data) != media.hash:
        raise ValueError("rows do not match their hash")
    return Entry(media, **header)
