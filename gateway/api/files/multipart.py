"""Takes a multipart/form-data body apart as it streams in: small fields are kept, the file's bytes are passed on.

Bounds: `MAX_PARTS` parts, `MAX_FIELD_BYTES` per field and per file name; the file's own bound is the store's.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from gateway.errors import ApiError

# It warns about each malformed body: a log that clients could fill. The refusal says it all.
logging.getLogger("python_multipart").setLevel(logging.ERROR)

MAX_PARTS: Final = 16
MAX_FIELD_BYTES: Final = 4096
OVERHEAD_BYTES: Final = 256 << 10
"""What a body may be larger than its file: boundaries, part headers, small fields."""

Sink = Callable[[bytes], Awaitable[None]]


@dataclass
class Form:
    """`filename` is None until a part named "file" has come."""

    fields: dict[str, str] = field(default_factory=dict)
    filename: str | None = None
    finished: bool = False


def boundary_of(content_type: str) -> bytes:
    kind, options = parse_options_header(content_type)
    boundary = options.get(b"boundary", b"")
    if kind != b"multipart/form-data" or not 0 < len(boundary) <= 70:
        raise ApiError("unsupported_media_type", "send multipart/form-data with a boundary")
    return boundary


class _Events:
    """The parser's callbacks, collected in order: ("part" | "data" | "end", bytes)."""

    def __init__(self, boundary: bytes) -> None:
        self.pending: list[tuple[str, bytes]] = []
        self._name = self._value = b""
        self._disposition = b""
        self.parser = MultipartParser(
            boundary,
            {
                "on_part_begin": self._part_begin,
                "on_header_field": self._header_field,
                "on_header_value": self._header_value,
                "on_header_end": self._header_end,
                "on_headers_finished": lambda: self.pending.append(("part", self._disposition)),
                "on_part_data": lambda data, start, end: self.pending.append(("data", data[start:end])),
                "on_end": lambda: self.pending.append(("end", b"")),
            },
        )

    def _part_begin(self) -> None:
        self._name = self._value = self._disposition = b""

    def _header_field(self, data: bytes, start: int, end: int) -> None:
        self._name += data[start:end]

    def _header_value(self, data: bytes, start: int, end: int) -> None:
        self._value += data[start:end]

    def _header_end(self) -> None:
        if self._name.lower() == b"content-disposition":
            self._disposition = self._value
        self._name = self._value = b""


async def read_form(body: AsyncIterator[bytes], content_type: str, file_sink: Sink, max_bytes: int) -> Form:
    """Raises ApiError for a body that is no proper form or too large; `file_sink` may raise its own."""
    events = _Events(boundary_of(content_type))
    form = Form()
    current: str | None = None
    collected = bytearray()
    parts = size = 0
    async for chunk in body:
        size += len(chunk)
        if size > max_bytes:
            raise ApiError("request_too_large", f"the body is larger than {max_bytes} bytes", param="file")
        try:
            events.parser.write(chunk)
        except FormParserError:
            raise ApiError("invalid_value", "the body is not proper multipart/form-data", param="file") from None
        for kind, data in events.pending:
            if kind == "part" or kind == "end":
                _keep(form, current, collected)
                collected.clear()
            if kind == "end":
                form.finished, current = True, None
            elif kind == "part":
                parts += 1
                if parts > MAX_PARTS:
                    raise ApiError("invalid_value", f"the form has more than {MAX_PARTS} parts")
                current = _begin_part(form, data)
            elif current == "file":
                await file_sink(data)
            elif current is not None:
                collected += data
                if len(collected) > MAX_FIELD_BYTES:
                    raise ApiError(
                        "string_above_max_length", f"a field is longer than {MAX_FIELD_BYTES} bytes", param=current
                    )
        events.pending.clear()
    if not form.finished:
        raise ApiError("invalid_value", "the body ends before its last boundary", param="file")
    return form


def _begin_part(form: Form, disposition: bytes) -> str:
    kind, options = parse_options_header(disposition)
    name = options.get(b"name", b"").decode("utf-8", "replace")[:MAX_FIELD_BYTES]
    if kind != b"form-data" or not name:
        raise ApiError("invalid_value", "a part of the form has no name")
    if name == "file":
        if form.filename is not None:
            raise ApiError("invalid_value", "the form holds two files; send one", param="file")
        form.filename = _clean(options.get(b"filename", b"").decode("utf-8", "replace"))
    return name


def _keep(form: Form, name: str | None, collected: bytearray) -> None:
    if name is not None and name != "file":
        form.fields[name] = collected.decode("utf-8", "replace")


def _clean(filename: str) -> str:
    """Only ever shown back: no path, no control characters, no more than 255 characters."""
    last = filename.replace("\\", "/").rpartition("/")[2]
    return "".join(c for c in last if c.isprintable())[:255] or "upload"
