"""Writes HEIF files box by box, for tests: grids, cuts and lies that no encoder makes."""

import struct
from dataclasses import dataclass, field


def box(kind: bytes, *parts: bytes) -> bytes:
    body = b"".join(parts)
    return struct.pack(">I4s", 8 + len(body), kind) + body


def full(kind: bytes, *parts: bytes, version: int = 0, flags: int = 0) -> bytes:
    return box(kind, struct.pack(">I", version << 24 | flags), *parts)


def find(data: bytes, kind: bytes) -> bytes:
    """The body of the first box of that kind, wherever it lies."""
    at = data.index(kind) - 4
    return data[at + 8 : at + struct.unpack_from(">I", data, at)[0]]


def size(width: int, height: int) -> bytes:
    return full(b"ispe", struct.pack(">II", width, height))


def grid(rows: int, columns: int, width: int, height: int) -> bytes:
    return struct.pack(">BBBBHH", 0, 0, rows - 1, columns - 1, width, height)


@dataclass
class Item:
    kind: bytes
    data: bytes
    properties: list[bytes]
    refers: dict[bytes, list[int]] = field(default_factory=dict)
    essential: bool = False


def write(items: list[Item], primary: int = 1, brand: bytes = b"avif", place: tuple[int, int] | None = None) -> bytes:
    """Items are numbered from 1; each lies in one piece, in "mdat"; all but the first are said to lie at `place` (start, length),
    when it is given."""
    infe = [full(b"infe", struct.pack(">HH4s", i, 0, item.kind), b"\0", version=2) for i, item in enumerate(items, 1)]
    iref = [
        box(kind, struct.pack(f">HH{len(to)}H", i, len(to), *to))
        for i, item in enumerate(items, 1)
        for kind, to in item.refers.items()
    ]
    properties = list(dict.fromkeys(p for item in items for p in item.properties))
    links = b""
    for i, item in enumerate(items, 1):
        links += struct.pack(">HB", i, len(item.properties))
        links += bytes(properties.index(p) + 1 | (0x80 if item.essential else 0) for p in item.properties)
    iprp = box(b"iprp", box(b"ipco", *properties), full(b"ipma", struct.pack(">I", len(items)), links))

    def meta(at: int) -> bytes:
        iloc, where = b"", at
        for i, item in enumerate(items, 1):
            start, length = (where, len(item.data)) if place is None or i == 1 else place
            iloc += struct.pack(">HHHII", i, 0, 1, start, length)
            where += len(item.data)
        return full(
            b"meta",
            full(b"hdlr", bytes(4), b"pict", bytes(13)),
            full(b"pitm", struct.pack(">H", primary)),
            full(b"iinf", struct.pack(">H", len(infe)), *infe),
            *([full(b"iref", *iref)] if iref else []),
            iprp,
            full(b"iloc", bytes([0x44, 0]), struct.pack(">H", len(items)), iloc),
        )

    head = box(b"ftyp", brand, bytes(4), brand)
    start = len(head) + len(meta(0)) + 8
    return head + meta(start) + box(b"mdat", *(item.data for item in items))
