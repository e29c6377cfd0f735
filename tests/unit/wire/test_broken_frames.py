"""Every way to break a frame is refused by name, and the message names the field."""

from __future__ import annotations

import copy
import struct
from collections.abc import Callable
from typing import Any

import orjson
import pytest

from engine import wire
from tests.unit.wire.frames import IMAGE, VIDEO, frame, image, prompt, request, roomy_frame, with_header

Change = Callable[[dict[str, Any]], None]


def put(**fields: Any) -> Change:
    return lambda h: h.update(fields)


def item(**fields: Any) -> Change:
    return lambda h: h["items"][0].update(fields)


def sampling(**fields: Any) -> Change:
    return lambda h: h.update(sampling=fields)


def drop(key: str) -> Change:
    return lambda h: h.pop(key)


def second_item(**fields: Any) -> Change:
    return lambda h: h["items"].append({**copy.deepcopy(h["items"][0]), "range": None, **fields})


HEADERS: list[tuple[str, Change, type[wire.WireError], str]] = [
    ("rid absent", drop("rid"), wire.BadHeader, "rid"),
    ("rid empty", put(rid=""), wire.BadHeader, "rid"),
    ("rid a number", put(rid=1), wire.BadHeader, "rid"),
    ("rid of 257 characters", put(rid="x" * 257), wire.BadHeader, "rid"),
    ("n zero", put(n=0), wire.BadHeader, "n"),
    ("n over the limit", put(n=wire.MAX_N + 1), wire.BadHeader, "n"),
    ("n a boolean", put(n=True), wire.BadHeader, "n"),
    ("n a fraction", put(n=1.5), wire.BadHeader, "n"),
    ("logprobs negative", put(logprobs=-1), wire.BadHeader, "logprobs"),
    ("logprobs over the limit", put(logprobs=wire.MAX_TOP_LOGPROBS + 1), wire.BadHeader, "logprobs"),
    ("logprobs a boolean", put(logprobs=True), wire.BadHeader, "logprobs"),
    ("sampling a list", put(sampling=[1]), wire.BadHeader, "sampling"),
    ("sampling a string", put(sampling="hot"), wire.BadHeader, "sampling"),
    ("cache_salt a number", put(cache_salt=7), wire.BadHeader, "cache_salt"),
    ("cache_salt too long", put(cache_salt="x" * 1025), wire.BadHeader, "cache_salt"),
    ("priority too large", put(priority=2**31), wire.BadHeader, "priority"),
    ("priority text", put(priority="high"), wire.BadHeader, "priority"),
    ("traceparent a list", put(traceparent=[]), wire.BadHeader, "traceparent"),
    ("items an object", put(items={}), wire.BadHeader, "items"),
    ("require a string", put(require="items"), wire.BadHeader, "require"),
    ("require unknown", put(require=["items", "teleport"]), wire.UnknownRequirement, "require"),
    ("require a list in a list", put(require=[[]]), wire.UnknownRequirement, "require"),
    ("require an object", put(require=[{}]), wire.UnknownRequirement, "require"),
    ("sampling an empty list", put(sampling=[]), wire.BadHeader, "sampling"),
    ("sampling zero", put(sampling=0), wire.BadHeader, "sampling"),
    ("sampling false", put(sampling=False), wire.BadHeader, "sampling"),
    ("grammar a string", put(grammar="{}"), wire.BadHeader, "grammar"),
    ("grammar type unknown", put(grammar={"type": "prose", "value": ""}), wire.BadHeader, "grammar"),
    ("grammar without value", put(grammar={"type": "regex"}), wire.BadHeader, "grammar.value"),
    (
        "grammar after_ids of text",
        put(grammar={"type": "regex", "value": "a", "after_ids": ["</mm:think>"]}),
        wire.BadHeader,
        "grammar.after_ids",
    ),
    ("input_ids absent", drop("input_ids"), wire.BadRange, "input_ids"),
    ("input_ids empty", put(input_ids=[1024, 1024]), wire.BadRange, "input_ids"),
    ("input_ids unaligned", put(input_ids=[1028, 1052]), wire.BadRange, "input_ids"),
    ("input_ids backwards", put(input_ids=[1152, 1088]), wire.BadRange, "input_ids"),
    ("input_ids outside", put(input_ids=[1 << 20, (1 << 20) + 4]), wire.BadRange, "input_ids"),
    ("input_ids inside the header", put(input_ids=[0, 24]), wire.BadRange, "input_ids"),
    ("input_ids of a third of an id", lambda h: h["input_ids"].__setitem__(1, h["input_ids"][1] - 1), wire.BadRange,
     "input_ids"),
    ("input_ids inline", put(input_ids=[1, 2, 3]), wire.BadRange, "input_ids"),
    ("too many items", lambda h: h.update(items=[{}] * (wire.MAX_ITEMS + 1)), wire.BadItem, "items"),
    ("item a string", lambda h: h.update(items=["image"]), wire.BadItem, "items[0]"),
    ("modality unknown", item(modality="audio"), wire.BadItem, "items[0].modality"),
    ("hash short", item(hash="ab"), wire.BadItem, "items[0].hash"),
    ("hash in capitals", item(hash="A" * 64), wire.BadItem, "items[0].hash"),
    ("hash absent", lambda h: h["items"][0].pop("hash"), wire.BadItem, "items[0].hash"),
    ("rows unknown", item(rows="f64"), wire.BadItem, "items[0].rows"),
    ("rows a list", item(rows=["u8"]), wire.BadItem, "items[0].rows"),
    ("t_dup two", item(t_dup=2), wire.BadItem, "items[0].t_dup"),
    ("t_dup a boolean", item(t_dup=True), wire.BadItem, "items[0].t_dup"),
    ("t_dup with floats", item(rows="f32"), wire.BadItem, "items[0].t_dup"),
    ("t_dup in a video", item(modality="video"), wire.BadItem, "items[0].t_dup"),
    ("grid of two", item(grid=[4, 4]), wire.BadItem, "items[0].grid"),
    ("grid with zero", item(grid=[1, 0, 4]), wire.BadItem, "items[0].grid"),
    ("grid odd", item(grid=[1, 3, 4]), wire.BadItem, "items[0].grid"),
    ("grid absurd", item(grid=[1, 1 << 21, 4]), wire.BadItem, "items[0].grid"),
    ("image of two frames", item(grid=[2, 4, 4]), wire.BadItem, "items[0].grid"),
    ("ranges absent", item(ranges=None), wire.BadItem, "items[0].ranges"),
    ("ranges empty", item(ranges=[]), wire.BadItem, "items[0].ranges"),
    ("ranges two for an image", item(ranges=[[1, 2], [3, 2]]), wire.BadItem, "items[0].ranges"),
    ("range too short", item(ranges=[[1, 3]]), wire.BadItem, "items[0].ranges"),
    ("range past the prompt", item(ranges=[[3, 4]]), wire.BadItem, "items[0].ranges"),
    ("range negative", item(ranges=[[-1, 4]]), wire.BadItem, "items[0].ranges"),
    ("shape wrong", item(shape=[16, 1176]), wire.BadItem, "items[0].shape"),
    ("shape absent", lambda h: h["items"][0].pop("shape"), wire.BadItem, "items[0].shape"),
    ("rows before the ids", item(range=[0, 9408]), wire.BadRange, "items[0].range"),
    ("rows cut short", lambda h: h["items"][0]["range"].__setitem__(1, h["items"][0]["range"][1] - 64), wire.BadRange,
     "items[0]"),
    ("rows outside", lambda h: h["items"][0]["range"].__setitem__(1, 1 << 30), wire.BadRange, "items[0].range"),
    ("rows as text", item(range="all"), wire.BadRange, "items[0].range"),
    ("two items on the same ids", second_item(), wire.BadItem, "items"),
    ("two items on the same rows", lambda h: h["items"].append(copy.deepcopy(h["items"][0])), wire.BadRange,
     "items[1].range"),
    ("sampling unknown", sampling(stop=["x"]), wire.BadSampling, "sampling.stop"),
    ("sampling out of range", sampling(top_p=1.5), wire.BadSampling, "sampling.top_p"),
]  # fmt: skip


@pytest.mark.parametrize(("change", "error", "param"), [c[1:] for c in HEADERS], ids=[c[0] for c in HEADERS])
def test_broken_header_is_refused_by_name(change: Change, error: type[wire.WireError], param: str) -> None:
    header, body = roomy_frame()
    change(header)
    if len(str(header)) > 10_000:  # the long list of items needs a frame of its own
        raw = wire.encode_request(request(traceparent="x" * 1000))
        body = b"".join(raw)
        header["items"] = [0] * (wire.MAX_ITEMS + 1)
        body = _big_header(header, body)
    else:
        body = with_header(body, header)
    with pytest.raises(wire.WireError) as caught:
        wire.decode_request(body)
    assert type(caught.value) is error
    assert caught.value.param == param
    assert caught.value.body()["error"] == {"code": error.code, "message": caught.value.message, "param": param}
    assert caught.value.message


def _big_header(header: dict[str, Any], body: bytes) -> bytes:
    """Moves the tensors up to make room."""
    (old,) = struct.unpack("<I", body[8:12])
    first = -(-(12 + old) // wire.ALIGN) * wire.ALIGN
    shift = 1 << 16
    header["input_ids"] = [v + shift for v in header["input_ids"]]
    raw = orjson.dumps(header)
    return wire.MAGIC + struct.pack("<I", len(raw)) + raw + bytes(first + shift - 12 - len(raw)) + body[first:]


def _length(value: int) -> bytes:
    return wire.MAGIC + struct.pack("<I", value)


BODIES: list[tuple[str, bytes, type[wire.WireError]]] = [
    ("nothing", b"", wire.Truncated),
    ("eleven bytes", wire.MAGIC + b"\x00\x00\x00", wire.Truncated),
    ("JSON", b'{"input_ids": [1, 2, 3]}', wire.BadMagic),
    ("version 2", b"CATLJO\x00\x02" + bytes(64), wire.BadMagic),
    ("a header over the limit", _length(wire.MAX_HEADER_BYTES + 1) + bytes(64), wire.HeaderTooLarge),
    ("a header that is cut", _length(100) + b'{"rid"', wire.Truncated),
    ("an empty header", _length(0) + bytes(52), wire.BadHeader),
    ("a header that is not JSON", _length(4) + b"{rid" + bytes(48), wire.BadHeader),
    ("a header that is not UTF-8", _length(4) + b'"\xff\xfe"' + bytes(48), wire.BadHeader),
    ("a header that is a list", _length(2) + b"[]" + bytes(48), wire.BadHeader),
    ("a header nested without end", _length(100_000) + b"[" * 100_000, wire.BadHeader),
]


@pytest.mark.parametrize(("body", "error"), [c[1:] for c in BODIES], ids=[c[0] for c in BODIES])
def test_broken_body_is_refused_by_name(body: bytes, error: type[wire.WireError]) -> None:
    with pytest.raises(wire.WireError) as caught:
        wire.decode_request(body)
    assert type(caught.value) is error


def test_body_over_the_configured_cap() -> None:
    body = frame()
    wire.decode_request(body, max_body_bytes=len(body))
    with pytest.raises(wire.BodyTooLarge, match=str(len(body) - 1)):
        wire.decode_request(body, max_body_bytes=len(body) - 1)


def test_every_cut_of_a_frame_is_refused() -> None:
    body = frame()
    for end in [*range(0, 2048, 7), len(body) - 1]:
        with pytest.raises(wire.WireError):
            wire.decode_request(body[:end])


def test_rows_that_are_not_what_the_hash_says() -> None:
    body = bytearray(frame())
    body[-1] ^= 1
    decoded = wire.decode_request(bytes(body))
    with pytest.raises(wire.HashMismatch):
        wire.verify_hash(decoded.items[0])


def test_hash_covers_every_field_that_says_what_the_rows_are() -> None:
    rows = bytes(16 * 588 * 2)
    digests = {
        wire.item_hash(modality, grid, kind, t_dup, rows)
        for modality in ("image", "video")
        for grid in ((1, 4, 4), (1, 2, 8), (2, 2, 4))
        for kind in ("u8", "bf16")
        for t_dup in (0, 1)
    }
    assert len(digests) == 2 * 3 * 2 * 2


PLACEHOLDERS: list[tuple[str, tuple[int, ...], tuple[wire.Item, ...]]] = [
    ("an item over ordinary ids", (IMAGE,), (image(offset=2),)),
    ("an image over video ids", (VIDEO,), (image(),)),
    ("a placeholder without item", (IMAGE, IMAGE), (image(),)),
    ("a video placeholder without item", (IMAGE, VIDEO), (image(),)),
    ("placeholders without any item", (IMAGE,), ()),
]


@pytest.mark.parametrize(("ids", "items"), [c[1:] for c in PLACEHOLDERS], ids=[c[0] for c in PLACEHOLDERS])
def test_placeholders_and_items_must_agree(ids: tuple[int, ...], items: tuple[wire.Item, ...]) -> None:
    decoded = wire.decode_request(frame(request(input_ids=prompt(*ids), items=items)))
    with pytest.raises(wire.BadItem):
        wire.check_placeholders(decoded, IMAGE, VIDEO)


def test_items_must_be_sorted_across_modalities() -> None:
    swapped = request(input_ids=prompt(IMAGE, IMAGE), items=(image(offset=6), image(offset=1)))
    with pytest.raises(wire.BadItem, match="sorted"):
        wire.decode_request(frame(swapped))


def test_header_over_the_limit_is_not_even_sent() -> None:
    with pytest.raises(wire.HeaderTooLarge):
        wire.encode_request(request(grammar=wire.Grammar("regex", "a" * wire.MAX_HEADER_BYTES)))


def test_every_error_of_the_contract_has_a_case_here() -> None:
    covered = {c[2] for c in HEADERS} | {c[2] for c in BODIES}
    elsewhere = {wire.BodyTooLarge, wire.HashMismatch, wire.BadReply}  # the tests above; test_reply.py
    assert covered | elsewhere == {
        e for e in wire.WireError.__subclasses__() if e.__module__ == wire.WireError.__module__
    }
