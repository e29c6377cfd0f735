"""Large values leave a body before it is parsed, so that a 10 MB picture, text or prompt of token ids costs the JSON parser
nothing: whoever parses holds the interpreter lock, and with it every stream.

In the bytes every long string that begins with `data:` and is a `url`, `image_url` or `video_url` member, every other long
string and every long list of token ids where a prompt may stand, is replaced by a short token that no client can guess; after
validation the tokens become HeldUrls (ranges of the body), texts and arrays. When a token stands anywhere else (in a tool's
schema, say), or a value is odd in any way, the body is parsed as it came: the result is the same either way.

All runs in a thread, the search and the reading of values without the lock."""

from __future__ import annotations

import asyncio
import codecs
import re
import secrets
from collections.abc import Callable
from typing import Any, Final, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel

from gateway.api.body import parse
from gateway.errors import ApiError
from gateway.media.types import HeldUrl

Model = TypeVar("Model", bound=BaseModel)
LARGE_BYTES: Final = 16 << 10
BLANK: Final = rb"[ \t\r\n]*"
URL_MEMBER: Final = re.compile(rb'"(?:url|image_url|video_url)"' + BLANK + b":" + BLANK + rb'"\Z')
TEXT_PLACE: Final = re.compile(
    rb'(?:"(?:content|text|prompt|reasoning_content|reasoning|arguments)"' + BLANK + rb":|[\[,])" + BLANK + rb'"\Z'
)
IDS_PLACE: Final = re.compile(rb'(?:"prompt"' + BLANK + rb":|[\[,])" + BLANK + rb"\Z")
LOOK_BACK_BYTES: Final = 64
PIECE_BYTES: Final = 1 << 20
"""Made characters at once, about a millisecond: between two pieces the lock can change hands."""
Value = HeldUrl | str | NDArray[np.uint32]
Resolve = Callable[[Any], Any]
PutBack = Callable[[Model, Resolve], int]


def take_out(body: bytes) -> tuple[bytes, dict[str, Value]]:
    """(the body with tokens, token -> value)."""
    from gateway.media.preproc import find_long_values, long_ids

    nonce = secrets.token_hex(16)
    values: dict[str, Value] = {}
    pieces: list[bytes | memoryview] = []
    view = memoryview(body)
    kept = 0
    for kind, start, end in find_long_values(body, LARGE_BYTES):
        token = f"data:token:{nonce}:{len(values)}"
        around = max(0, start - LOOK_BACK_BYTES), start
        if kind == "url" and URL_MEMBER.search(body, *around):
            values[token] = HeldUrl.of(token, body, start, end)
        elif kind != "ids" and TEXT_PLACE.search(body, *around):
            values[token] = _text(body, start, end)
        elif kind == "ids" and IDS_PLACE.search(body, *around):
            values[token] = long_ids(body, start, end)
        else:
            continue
        pieces += (view[kept:start], f'"{token}"'.encode() if kind == "ids" else token.encode())
        kept = end
    if not values:
        return body, values
    return b"".join([*pieces, view[kept:]]), values


def _text(body: bytes, start: int, end: int) -> str:
    from gateway.media.preproc import long_text

    view = memoryview(long_text(body, start, end))
    pieces: list[str] = []
    done = 0
    while done < len(view):
        piece, used = codecs.utf_8_decode(view[done : done + PIECE_BYTES], "strict", False)
        pieces.append(piece)
        done += used
    return "".join(pieces)


async def parse_any(model: type[Model], body: bytes, offload_bytes: int, put_back: PutBack[Model]) -> Model:
    """`parse` at once, or `parse_large` in a thread when the body is larger than `offload_bytes`."""
    if len(body) <= offload_bytes:
        return parse(model, body)
    return await asyncio.to_thread(parse_large, model, body, put_back)


def parse_large(model: type[Model], body: bytes, put_back: PutBack[Model]) -> Model:
    """`parse`, for bodies that may hold large values. `put_back(model, resolve)` calls resolve on everything that may be one,
    puts what it gives in its place, and returns how many changed. Runs in a thread."""
    small, values = take_out(body)
    if not values:
        return parse(model, body)
    try:
        value = parse(model, small)
    except ApiError:
        return parse(model, body)  # the same refusal, with the places as they were sent

    def resolve(given: Any) -> Any:
        return values.get(given, given) if isinstance(given, str) else given

    if put_back(value, resolve) == len(values):
        return value
    return parse(model, body)


def replace(holder: object, name: str, resolve: Resolve) -> int:
    """Resolves one attribute; 1 when it changed."""
    before = getattr(holder, name)
    after = resolve(before)
    if after is before:
        return 0
    setattr(holder, name, after)
    return 1
