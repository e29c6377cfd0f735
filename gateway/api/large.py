"""Large data URLs leave a body before it is parsed, so that a 10 MB picture costs the JSON parser nothing.

In the bytes every string value of a `url`, `image_url` or `video_url` member that begins with `data:` and is long is
replaced by a short token that no client can guess; after validation the tokens in media parts become the URLs again.
When a token stands anywhere else (in a tool's schema, say), or a string has escapes, the body is parsed as it came:
the result is the same either way."""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable
from typing import Final, TypeVar

from pydantic import BaseModel

from gateway.api.body import parse

Model = TypeVar("Model", bound=BaseModel)
LARGE_BYTES: Final = 16 << 10
MEMBER: Final = re.compile(rb'"(?:url|image_url|video_url)"[ \t\r\n]*:[ \t\r\n]*\Z')
LOOK_BACK_BYTES: Final = 64
Resolve = Callable[[str], str]


def take_out(body: bytes) -> tuple[bytes, dict[str, str]]:
    """(the body with tokens, token -> URL)."""
    nonce = secrets.token_hex(16)
    urls: dict[str, str] = {}
    pieces: list[bytes | memoryview] = []
    view = memoryview(body)
    kept = 0
    at = body.find(b'"data:')
    while at >= 0:
        end = body.find(b'"', at + 1)
        if end < 0:
            break
        if end - at > LARGE_BYTES and MEMBER.search(body, max(0, at - LOOK_BACK_BYTES), at):
            url = _plain(body, at, end)
            if url is not None:
                token = f"data:token:{nonce}:{len(urls)}"
                urls[token] = url
                pieces += (view[kept : at + 1], token.encode())
                kept = end
        at = body.find(b'"data:', end)
    if not urls:
        return body, urls
    return b"".join([*pieces, view[kept:]]), urls


def _plain(body: bytes, at: int, end: int) -> str | None:
    """The string, if its bytes are its characters."""
    if body.find(b"\\", at, end) >= 0:
        return None
    raw = body[at + 1 : end]
    return raw.decode("ascii") if raw.isascii() else None


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
