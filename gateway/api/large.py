"""Large data URLs leave a body before it is parsed, so that a 10 MB picture costs the JSON parser nothing.

In the bytes every string value of a `url`, `image_url` or `video_url` member that begins with `data:` and is long is
replaced by a short token that no client can guess; after validation the tokens in media parts become HeldUrls, which are
ranges of the body. When a token stands anywhere else (in a tool's schema, say), or a string has escapes, the body is parsed
as it came: the result is the same either way.

All runs in a thread, in steps that are short, since each holds the interpreter lock and with it every stream."""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable
from typing import Final, TypeVar

from pydantic import BaseModel

from gateway.api.body import parse
from gateway.media.types import HeldUrl

Model = TypeVar("Model", bound=BaseModel)
LARGE_BYTES: Final = 16 << 10
STEP_BYTES: Final = 256 << 10
MEMBER: Final = re.compile(rb'"(?:url|image_url|video_url)"[ \t\r\n]*:[ \t\r\n]*\Z')
BEGIN: Final = b'"data:'
LOOK_BACK_BYTES: Final = 64
Resolve = Callable[[str], str]


def take_out(body: bytes) -> tuple[bytes, dict[str, HeldUrl]]:
    """(the body with tokens, token -> URL)."""
    nonce = secrets.token_hex(16)
    urls: dict[str, HeldUrl] = {}
    pieces: list[bytes | memoryview] = []
    view = memoryview(body)
    kept = 0
    at = _find(body, BEGIN, 0)
    while at >= 0:
        end = -1
        if MEMBER.search(body, max(0, at - LOOK_BACK_BYTES), at):
            end = _plain_end(body, at + 1)
        if end - at > LARGE_BYTES:
            token = f"data:token:{nonce}:{len(urls)}"
            urls[token] = HeldUrl.of(token, body, at + 1, end)
            pieces += (view[kept : at + 1], token.encode())
            kept = end
        at = _find(body, BEGIN, max(end, at + len(BEGIN)))
    if not urls:
        return body, urls
    return b"".join([*pieces, view[kept:]]), urls


def _find(body: bytes, what: bytes, start: int) -> int:
    for begin in range(start, len(body), STEP_BYTES):
        at = body.find(what, begin, begin + STEP_BYTES + len(what) - 1)
        if at >= 0:
            return at
    return -1


def _plain_end(body: bytes, start: int) -> int:
    """Where the string that begins at `start` ends; -1 when its bytes are not its characters, or it has no end."""
    for begin in range(start, len(body), STEP_BYTES):
        piece = body[begin : begin + STEP_BYTES]
        quote = piece.find(b'"')
        if quote >= 0:
            piece = piece[:quote]
        if not piece.isascii() or b"\\" in piece:
            return -1
        if quote >= 0:
            return begin + quote
    return -1


def parse_large(model: type[Model], body: bytes, put_back: Callable[[Model, Resolve], int]) -> Model:
    """`parse`, for bodies that may hold large data URLs. `put_back(model, resolve)` calls resolve on each media URL and
    returns how many changed. Runs in a thread."""
    small, urls = take_out(body)
    if not urls:
        return parse(model, body)
    value = parse(model, small)
    if put_back(value, lambda url: urls.get(url, url)) == len(urls):
        return value
    return parse(model, body)
