"""Patch rows by hash, so that a gateway may send an item once. Bounded in bytes; rows of running requests are pinned.

Called from the server's thread only."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

from engine.contract.errors import MediaStoreFull, MissingMedia, TooMuchMedia
from engine.wire import Item


class MediaStore:
    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.bytes = 0
        self._rows: OrderedDict[str, bytes] = OrderedDict()
        self._pins: dict[str, int] = {}

    def pin(self, items: Iterable[Item]) -> dict[str, bytes]:
        """Rows of every item by hash, kept until `unpin` with the same items. All or nothing: raises MissingMedia
        (hash-only items that are not here), TooMuchMedia (more than the store may ever hold) or MediaStoreFull (not
        now)."""
        items = list(items)
        missing = [i.hash for i in items if i.data is None and i.hash not in self._rows]
        sent = {i.hash: i.data for i in items if i.data is not None}
        missing = [h for h in dict.fromkeys(missing) if h not in sent]
        if missing:
            raise MissingMedia(missing)
        wanted = {i.hash: i.nbytes for i in items}
        total = sum(wanted.values())
        if total > self.max_bytes:
            raise TooMuchMedia(f"items hold {total} bytes; the media store holds {self.max_bytes}", param="items")
        new = sum(size for h, size in wanted.items() if h not in self._rows)
        others = sum(len(self._rows[h]) for h in self._pins if h not in wanted)
        if others + total > self.max_bytes:
            raise MediaStoreFull(f"{others} of {self.max_bytes} bytes are in use; {total} more do not fit now")
        for h in wanted:
            self._pins[h] = self._pins.get(h, 0) + 1
        self._make_room(new)
        for h in wanted:
            data = sent.get(h)
            if h not in self._rows and data is not None:
                self._rows[h] = bytes(data)
                self.bytes += len(self._rows[h])
            self._rows.move_to_end(h)
        return {h: self._rows[h] for h in wanted}

    def unpin(self, items: Iterable[Item]) -> None:
        for h in {i.hash for i in items}:
            self._pins[h] -= 1
            if not self._pins[h]:
                del self._pins[h]

    def holds(self, digest: str) -> bool:
        return digest in self._rows

    def _make_room(self, new: int) -> None:
        for h in list(self._rows):
            if self.bytes + new <= self.max_bytes:
                return
            if h not in self._pins:
                self.bytes -= len(self._rows.pop(h))
