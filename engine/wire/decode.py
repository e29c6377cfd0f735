"""Frame -> GenerateRequest, every rule of the contract checked, every complaint naming its field."""

from __future__ import annotations

import itertools
import re
import struct
from typing import Any

import numpy as np
import orjson

from engine.wire.errors import (
    BadHeader,
    BadItem,
    BadMagic,
    BadRange,
    BodyTooLarge,
    HeaderTooLarge,
    Truncated,
    UnknownRequirement,
)
from engine.wire.messages import (
    ALIGN,
    DEFAULT_MAX_BODY_BYTES,
    KNOWN_REQUIREMENTS,
    MAGIC,
    MAX_HEADER_BYTES,
    MAX_ITEMS,
    MAX_N,
    MAX_TOP_LOGPROBS,
    MERGE_AREA,
    ROW_BYTES,
    GenerateRequest,
    Grammar,
    Item,
    is_int,
)
from engine.wire.sampling import check_sampling


def decode_request(body: bytes | memoryview, *, max_body_bytes: int = DEFAULT_MAX_BODY_BYTES) -> GenerateRequest:
    """Parses and checks a frame. Item data are views into `body`. Hashes are not verified here (`verify_hash`), nor
    placeholder positions (`check_placeholders`), since those cost time or need the model's ids."""
    view = memoryview(body)
    if view.nbytes > max_body_bytes:
        raise BodyTooLarge(f"body is {view.nbytes} bytes; the limit is {max_body_bytes}")
    if view.nbytes < 12:
        raise Truncated(f"body has {view.nbytes} bytes; a frame has at least 12")
    if bytes(view[:8]) != MAGIC:
        raise BadMagic("body does not begin with the contract's magic, version 1")
    (length,) = struct.unpack("<I", view[8:12])
    if length > MAX_HEADER_BYTES:
        raise HeaderTooLarge(f"header is {length} bytes; the limit is {MAX_HEADER_BYTES}")
    if 12 + length > view.nbytes:
        raise Truncated(f"header of {length} bytes does not fit a body of {view.nbytes}")
    try:
        header = orjson.loads(view[12 : 12 + length])
    except orjson.JSONDecodeError as e:
        raise BadHeader(f"header is not JSON: {e}") from None
    if not isinstance(header, dict):
        raise BadHeader("header must be a JSON object")
    return _Header(header, view, 12 + length).request()


class _Header:
    """Reads a header field by field; every complaint names the field."""

    def __init__(self, header: dict[str, Any], body: memoryview, end_of_header: int) -> None:
        self.h = header
        self.body = body
        self.cursor = end_of_header

    def request(self) -> GenerateRequest:
        h = self.h
        require = self._list("require", [])
        for entry in require:
            if not isinstance(entry, str) or entry not in KNOWN_REQUIREMENTS:
                raise UnknownRequirement(f"this engine does not know requirement {entry!r}", param="require")
        rid = h.get("rid")
        if not isinstance(rid, str) or not 0 < len(rid) <= 256:
            raise BadHeader("rid must be a string of 1 to 256 characters", param="rid")
        n = self._int("n", 1, 1, MAX_N)
        top = h.get("logprobs")
        logprobs = None if top is None else self._int("logprobs", 0, 0, MAX_TOP_LOGPROBS)
        sampling = {} if h.get("sampling") is None else h["sampling"]
        if not isinstance(sampling, dict):
            raise BadHeader("sampling must be an object", param="sampling")
        ids_raw = self._tensor(h.get("input_ids"), "input_ids")
        if ids_raw.nbytes % 4 or not ids_raw.nbytes:
            raise BadRange("input_ids must hold at least one whole u32", param="input_ids")
        ids = np.frombuffer(ids_raw, dtype="<u4")
        items = self._list("items", [])
        if len(items) > MAX_ITEMS:
            raise BadItem(f"{len(items)} items; the limit is {MAX_ITEMS}", param="items")
        parsed = tuple(self._item(i, item, len(ids)) for i, item in enumerate(items))
        _check_order(parsed)
        return GenerateRequest(
            rid=rid,
            input_ids=ids,
            sampling=check_sampling(sampling),
            n=n,
            logprobs=logprobs,
            grammar=self._grammar(),
            cache_salt=self._text("cache_salt", 1024),
            priority=self._int("priority", 0, -(2**31), 2**31 - 1),
            traceparent=self._text("traceparent", 1024),
            items=parsed,
            require=tuple(require),
        )

    def _list(self, name: str, default: list[Any]) -> list[Any]:
        value = self.h.get(name)
        if value is None:
            return default
        if not isinstance(value, list):
            raise BadHeader(f"{name} must be a list", param=name)
        return value

    def _int(self, name: str, default: int, low: int, high: int) -> int:
        value = self.h.get(name)
        if value is None:
            return default
        if not is_int(value) or not low <= value <= high:
            raise BadHeader(f"{name} must be an integer in [{low}, {high}]", param=name)
        return int(value)

    def _text(self, name: str, longest: int) -> str | None:
        value: Any = self.h.get(name)
        if value is None or (isinstance(value, str) and len(value) <= longest):
            return value
        raise BadHeader(f"{name} must be a string of at most {longest} characters", param=name)

    def _tensor(self, value: Any, name: str) -> memoryview:
        if not _is_ints(value, 2):
            raise BadRange(f"{name} must be [start, end)", param=name)
        start, end = value
        if start % ALIGN:
            raise BadRange(f"{name} starts at {start}, which is not a multiple of {ALIGN}", param=name)
        if start < self.cursor:
            raise BadRange(f"{name} starts at {start}, inside or before what precedes it ({self.cursor})", param=name)
        if end < start or end > self.body.nbytes:
            raise BadRange(f"{name} [{start}, {end}) leaves the body of {self.body.nbytes} bytes", param=name)
        self.cursor = end
        return self.body[start:end]

    def _grammar(self) -> Grammar | None:
        value = self.h.get("grammar")
        if value is None:
            return None
        if not isinstance(value, dict) or value.get("type") not in ("json_schema", "regex", "ebnf", "structural_tag"):
            raise BadHeader("grammar.type must be json_schema, regex, ebnf or structural_tag", param="grammar")
        if not isinstance(value.get("value"), str):
            raise BadHeader("grammar.value must be a string", param="grammar.value")
        after = value.get("after_ids")
        if after is not None and not (isinstance(after, list) and all(is_int(v) and v >= 0 for v in after)):
            raise BadHeader("grammar.after_ids must be a list of token ids", param="grammar.after_ids")
        return Grammar(value["type"], value["value"], None if after is None else tuple(after))

    def _item(self, index: int, value: Any, n_ids: int) -> Item:
        where = f"items[{index}]"
        if not isinstance(value, dict):
            raise BadItem(f"{where} must be an object", param=where)
        modality, rows, t_dup, digest = (value.get(k) for k in ("modality", "rows", "t_dup", "hash"))
        if modality not in ("image", "video"):
            raise BadItem(f"{where}.modality must be image or video", param=f"{where}.modality")
        if not isinstance(digest, str) or not re.fullmatch("[0-9a-f]{64}", digest):
            raise BadItem(f"{where}.hash must be 64 lower-case hex digits", param=f"{where}.hash")
        if not isinstance(rows, str) or rows not in ROW_BYTES:
            raise BadItem(f"{where}.rows must be one of {', '.join(ROW_BYTES)}", param=f"{where}.rows")
        if not is_int(t_dup) or t_dup not in (0, 1):
            raise BadItem(f"{where}.t_dup must be 0 or 1", param=f"{where}.t_dup")
        if t_dup == 1 and (modality != "image" or rows != "u8"):
            raise BadItem(f"{where}: t_dup 1 is for uint8 images only", param=f"{where}.t_dup")
        grid: Any = value.get("grid")
        if not _is_ints(grid, 3) or not all(0 < v <= 1 << 20 for v in grid):
            raise BadItem(f"{where}.grid must be three positive integers", param=f"{where}.grid")
        t, h, w = grid
        if h % 2 or w % 2:
            raise BadItem(f"{where}.grid {grid}: height and width must be even (2x2 merge)", param=f"{where}.grid")
        if modality == "image" and t != 1:
            raise BadItem(f"{where}: an image has t = 1, got {t}", param=f"{where}.grid")
        ranges = self._item_ranges(where, value.get("ranges"), modality, (t, h, w), n_ids)
        item = Item(modality, digest, rows, t_dup, (t, h, w), ranges)  # type: ignore[arg-type]
        if value.get("shape") != list(item.shape):
            raise BadItem(f"{where}.shape {value.get('shape')} must be {list(item.shape)}", param=f"{where}.shape")
        if value.get("range") is None:
            return item
        data = self._tensor(value["range"], f"{where}.range")
        if data.nbytes != item.nbytes:
            raise BadRange(f"{where}.range holds {data.nbytes} bytes; its shape needs {item.nbytes}", param=where)
        return Item(item.modality, digest, item.rows, t_dup, item.grid, ranges, data)

    @staticmethod
    def _item_ranges(
        where: str, value: Any, modality: str, grid: tuple[int, int, int], n_ids: int
    ) -> tuple[tuple[int, int], ...]:
        t, h, w = grid
        param = f"{where}.ranges"
        if not isinstance(value, list) or not value or not all(_is_ints(r, 2) for r in value):
            raise BadItem(f"{param} must be a list of [offset, length]", param=param)
        if len(value) != (1 if modality == "image" else t):
            raise BadItem(f"{param}: {modality} with t = {t} has {len(value)} ranges", param=param)
        end = 0
        for offset, length in value:
            if length != h * w // MERGE_AREA:
                raise BadItem(f"{param}: length {length} must be h*w/4 = {h * w // MERGE_AREA}", param=param)
            if offset < end or offset + length > n_ids:
                raise BadItem(f"{param}: [{offset}, {offset + length}) overlaps or leaves {n_ids} ids", param=param)
            end = offset + length
        return tuple((o, n) for o, n in value)


def _is_ints(value: Any, count: int) -> bool:
    return isinstance(value, list) and len(value) == count and all(is_int(v) and v >= 0 for v in value)


def _check_order(items: tuple[Item, ...]) -> None:
    firsts = [i.ranges[0][0] for i in items]
    if firsts != sorted(firsts):
        raise BadItem("items must be sorted by first offset, across modalities", param="items")
    spans = sorted(r for i in items for r in i.ranges)
    for (offset, length), (following, _) in itertools.pairwise(spans):
        if offset + length > following:
            raise BadItem(f"ranges of two items overlap at {following}", param="items")


def check_placeholders(request: GenerateRequest, image_token_id: int, video_token_id: int) -> None:
    """Every range covers only its modality's placeholder id, and every placeholder in `input_ids` is covered.

    An uncovered placeholder would make the model's embedding step fail for the whole batch (SGLang issue 38022)."""
    ids = request.input_ids
    for modality, token in (("image", image_token_id), ("video", video_token_id)):
        covered = 0
        for i, item in enumerate(request.items):
            if item.modality != modality:
                continue
            for offset, length in item.ranges:
                if not bool((ids[offset : offset + length] == token).all()):
                    raise BadItem(
                        f"items[{i}]: ids at [{offset}, {offset + length}) are not all the {modality} placeholder",
                        param=f"items[{i}].ranges",
                    )
                covered += length
        found = int(np.count_nonzero(ids == token))
        if found != covered:
            raise BadItem(f"{found} {modality} placeholders in input_ids, items cover {covered}", param="items")
