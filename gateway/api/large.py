"""Large data URLs leave a body before it is parsed, so that a 10 MB picture costs the JSON parser nothing.

In the bytes every string value of a `url`, `image_url` or `video_url` member that begins with `data:` and is long is
replaced by a short token that no client can guess; after validation the tokens in media parts become HeldUrls, which are
ranges of the body. When a token stands anywhere else (in a tool's schema, say), or a string has escapes, the body is parsed
as it came: the result is the same either way.

All runs in a thread, the search without the interpreter lock: whoever holds that holds every stream."""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable
from typing import Final, TypeVar

from pydantic import BaseModel

from gateway.api.body import parse
from gateway.errors import ApiError
from gateway.media.types import HeldUrl

Model = TypeVar("Model", bound=BaseModel)
LARGE_BYTES: Final = 16 << 10
MEMBER: Final = re.compile(rb'"(?:url|image_url|video_url)"[ \t\r\n]*:[ \t\r\n]*"\Z')
LOOK_BACK_BYTES: Final = 64
Resolve = Callable[[str], str]


def take_out(body: bytes) -> tuple[bytes, dict[str, HeldUrl]]:
    """(the body with tokens, token -> URL)."""
    from gateway.media.preproc import find_data_urls

    nonce = secrets.token_hex(16)
    urls: dict[str, HeldUrl] = {}
    pieces: list[bytes | memoryview] = []
    view = memoryview(body)
    kept = 0
    for start, end in find_data_urls(body, LARGE_BYTES):
        if MEMBER.search(body, max(0, start - LOOK_BACK_BYTES), start):
            token = f"data:token:{nonce}:{len(urls)}"
            urls[token] = HeldUrl.of(token, body, start, end)
            pieces += (view[kept:start], token.encode())
            kept = end
    if not urls:
        return body, urls
    return b"".join([*pieces, view[kept:]]), urls


def parse_large(model: type[Model], body: bytes, put_back: Callable[[Model, Resolve], int]) -> Model:
    """`parse`, for bodies that may hold large data URLs. `put_back(model, resolve)` calls resolve on each media URL and
    returns how many changed. Runs in a thread."""
    small, urls = take_out(body)
    if not urls:
        return parse(model, body)
    try:
        value = parse(model, small)
    except ApiError:
        return parse(model, body)  # the same refusal, with the places as they were sent
    if put_back(value, lambda url: urls.get(url, url)) == len(urls):
        return value
    return parse(model, body)
