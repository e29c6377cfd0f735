"""Which prefixes and which rows the mock "has": enough to answer `cached_tokens` and 409 as an engine would.

A prefix is remembered page by page; a page's key covers the salt, every id before it and the hashes of the items that
begin in it or before. `cached_tokens` is a multiple of the page size and at most prompt - 1."""

from __future__ import annotations

from collections import OrderedDict

from blake3 import blake3

from engine.wire import GenerateRequest


class PrefixCache:
    def __init__(self, page_size: int, capacity_pages: int = 1 << 16) -> None:
        self.page_size = page_size
        self._capacity = capacity_pages
        self._pages: OrderedDict[bytes, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._pages)

    def match_and_insert(self, request: GenerateRequest) -> int:
        """The cached tokens of this request; afterwards its whole pages are remembered."""
        ids, page = request.input_ids, self.page_size
        chain = blake3((request.cache_salt or "").encode() + b"\x00").digest()
        cached, matching = 0, True
        for start in range(0, len(ids) - page + 1, page):
            hashes = "".join(i.hash for i in request.items if start <= i.ranges[0][0] < start + page)
            chain = blake3(chain + ids[start : start + page].tobytes() + hashes.encode()).digest()
            matching = matching and chain in self._pages
            if matching and start + page <= len(ids) - 1:
                cached = start + page
            self._pages[chain] = None
            self._pages.move_to_end(chain)
        while len(self._pages) > self._capacity:
            self._pages.popitem(last=False)
        return cached

    def flush(self) -> None:
        self._pages.clear()


class RowStore:
    """Hashes of rows the engine holds, newest last, bounded in bytes (the rows themselves are not kept)."""

    def __init__(self, capacity_bytes: int = 1 << 30) -> None:
        self._capacity = capacity_bytes
        self._held: OrderedDict[str, int] = OrderedDict()
        self._bytes = 0

    def missing(self, request: GenerateRequest) -> list[str]:
        """Hashes sent without rows that are not held, in order, each once."""
        here = {i.hash for i in request.items if i.data is not None}
        wanted = [i.hash for i in request.items if i.data is None]
        return list(dict.fromkeys(h for h in wanted if h not in self._held and h not in here))

    def add(self, request: GenerateRequest) -> None:
        for item in request.items:
            if item.data is not None and item.hash not in self._held:
                self._held[item.hash] = item.nbytes
                self._bytes += item.nbytes
            if item.hash in self._held:
                self._held.move_to_end(item.hash)
        while self._bytes > self._capacity:
            _, size = self._held.popitem(last=False)
            self._bytes -= size

    def flush(self) -> None:
        self._held.clear()
        self._bytes = 0

    def forget(self, hashes: list[str]) -> None:
        for h in hashes:
            self._bytes -= self._held.pop(h, 0)
