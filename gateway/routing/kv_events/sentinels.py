"""From the words that SGLang puts in place of media to those of our block names.

SGLang keys its radix cache with four words per item, in turn over its placeholders: 10^6 + 62 bits of each quarter of
sha256("sglang-mm-wide-pad-v1", item hash) (0.5.23, MultimodalDataItem.set_identity, which our plugin calls with the item's
hash). They cannot be turned back, so those of the items this gateway sent are remembered."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from hashlib import sha256
from typing import Final

from gateway.routing.blocks import media_word

FIRST: Final = 1_000_000
"""Ids from here on stand for media: no vocabulary is as large, SGLang checks that."""
_TAG: Final = b"sglang-mm-wide-pad-v1"
_MASK: Final = (1 << 62) - 1
_UNKNOWN: Final = 0xFFFF_FFFF


class Sentinels:
    def __init__(self, max_items: int = 65_536) -> None:
        self._max = max_items
        self._items: OrderedDict[str, tuple[int, ...]] = OrderedDict()
        self._words: dict[int, int] = {}

    def remember(self, hashes: Iterable[str]) -> None:
        for item in hashes:
            if item in self._items:
                self._items.move_to_end(item)
                continue
            pads = sglang_words(item)
            self._items[item] = pads
            self._words.update(dict.fromkeys(pads, media_word(item)))
            if len(self._items) > self._max:
                _, old = self._items.popitem(last=False)
                for pad in old:
                    self._words.pop(pad, None)

    def word(self, token: int) -> int:
        """The word of our names. An item that was never sent from here gets one that no name has."""
        return token if 0 <= token < FIRST else self._words.get(token, _UNKNOWN)


def sglang_words(item_hash: str) -> tuple[int, ...]:
    digest = sha256(_TAG + bytes.fromhex(item_hash)).digest()
    return tuple(FIRST + (int.from_bytes(digest[i : i + 8], "big") & _MASK) for i in range(0, 32, 8))
