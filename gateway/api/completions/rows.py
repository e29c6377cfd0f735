"""A logprobs object of completions while it is put together: JSON from the first, since its lists are as long as the answer,
and with `echo` as the prompt."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import orjson

LISTS: Final = ("tokens", "token_logprobs", "top_logprobs", "text_offset")
Rows = tuple[bytes, ...]
"""What stands between the brackets of each of the lists."""


def joined(pieces: Sequence[Rows]) -> Rows:
    return tuple(b",".join(filter(None, one)) for one in zip(*pieces, strict=True))


def shown(pieces: Iterable[Rows | None]) -> dict[str, orjson.Fragment] | None:
    """None when there is none."""
    given = [rows for rows in pieces if rows is not None]
    if not given:
        return None
    return {name: orjson.Fragment(b"[%b]" % inside) for name, inside in zip(LISTS, joined(given), strict=True)}
