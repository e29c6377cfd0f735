"""The contract between gateway and engine, version 1: framing, typed messages, every rule as a typed error.

Used by both sides and by nothing heavy: numpy, orjson, blake3. No I/O, no model knowledge beyond two placeholder ids.

Frame: bytes 0-7 magic, 8-11 header length (u32 little-endian), JSON header, zero padding to 64, then tensors, each at a
multiple of 64 counted from the body's start. `range: [start, end)` is absolute. Ranges ascend in the order
input_ids, items[0], items[1], ... and do not overlap.

Not here: the HTTP client (gateway/upstream), the servers (engine/local, engine/sglang), checks that need a model's
context length or memory.
"""

from __future__ import annotations

import itertools
import math
import re
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import numpy as np
import orjson
from blake3 import blake3
from numpy.typing import NDArray

MAGIC: Final = b"CATLJO\x00\x01"
CONTENT_TYPE: Final = "application/x-catalejo-v1"
ROUTE: Final = "/catalejo/v1/generate"
REPLY_CONTENT_TYPE: Final = "application/x-ndjson"
ALIGN: Final = 64
MAX_HEADER_BYTES: Final = 8 << 20
DEFAULT_MAX_BODY_BYTES: Final = 1 << 30
MAX_ITEMS: Final = 4096
MAX_N: Final = 128
MAX_TOP_LOGPROBS: Final = 64
HASH_DOMAIN: Final = b"catalejo-patches-1"
PATCH_CHANNELS_YX: Final = 588  # 3 channels * 14 * 14
MERGE_AREA: Final = 4  # 2x2 patches become one token
KEEP_ALIVE_S: Final = 10.0
"""An engine sends an empty line at least this often while it has nothing to say."""

ROW_BYTES: Final[Mapping[str, int]] = {"u8": 1, "f32": 4, "bf16": 2}
KNOWN_REQUIREMENTS: Final = frozenset(
    {"items", "hash_only", "logprobs", "grammar", "n", "cache_salt", "priority", "stop_token_ids"}
)
"""Entries a sender may put into `require`; anything else is refused, so that a newer gateway fails loudly."""

Modality = Literal["image", "video"]
Rows = Literal["u8", "f32", "bf16"]
IntArray = NDArray[np.uint32]


# --------------------------------------------------------------------------------------------- errors
class WireError(ValueError):
    """The peer sent something that breaks the contract. Becomes a 400 with `code` before anything is scheduled."""

    code = "bad_request"

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param

    def body(self) -> dict[str, Any]:
        return {"error": {"code": self.code, "message": self.message, "param": self.param}}


class BadMagic(WireError):
    code = "bad_magic"


class Truncated(WireError):
    code = "truncated"


class HeaderTooLarge(WireError):
    code = "header_too_large"


class BadHeader(WireError):
    """The header is not a JSON object, or a field has the wrong type or an impossible value."""

    code = "bad_header"


class BadRange(WireError):
    """A tensor range is unaligned, overlaps, goes backwards or leaves the body."""

    code = "bad_range"


class BodyTooLarge(WireError):
    code = "body_too_large"


class UnknownRequirement(WireError):
    code = "unknown_requirement"


class BadSampling(WireError):
    """An unknown sampling parameter, or one outside its range. The message names it."""

    code = "bad_sampling"


class BadItem(WireError):
    """An item's shape, grid, rows, ranges or order contradict each other or `input_ids`."""

    code = "bad_item"


class HashMismatch(WireError):
    code = "hash_mismatch"


class BadReply(WireError):
    """The engine's reply broke the contract (unknown line, bad JSON, end of file without `done`)."""

    code = "bad_reply"


# --------------------------------------------------------------------------------------------- sampling
@dataclass(frozen=True, slots=True)
class SamplingField:
    kind: type
    low: float | None = None
    high: float | None = None
    low_open: bool = False


SAMPLING_FIELDS: Final[Mapping[str, SamplingField]] = {
    "max_new_tokens": SamplingField(int, 0),
    "min_new_tokens": SamplingField(int, 0),
    "temperature": SamplingField(float, 0),
    "top_p": SamplingField(float, 0, 1, low_open=True),
    "top_k": SamplingField(int, -1),
    "min_p": SamplingField(float, 0, 1),
    "repetition_penalty": SamplingField(float, 0, 2, low_open=True),
    "frequency_penalty": SamplingField(float, -2, 2),
    "presence_penalty": SamplingField(float, -2, 2),
    "logit_bias": SamplingField(dict),
    "sampling_seed": SamplingField(int),
    "stop_token_ids": SamplingField(list),
    "ignore_eos": SamplingField(bool),
}
"""The one table of what both engines accept (SGLang's names). `top_k` -1 means off; `temperature` 0 means greedy."""


def check_sampling(sampling: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a checked copy. Raises BadSampling naming the parameter and its bounds."""
    out: dict[str, Any] = {}
    value: Any
    for name, value in sampling.items():
        spec = SAMPLING_FIELDS.get(name)
        where = f"sampling.{name}"
        if spec is None:
            raise BadSampling(f"sampling parameter {name!r} is not supported by this engine", param=where)
        if value is None:
            continue
        if spec.kind is float and isinstance(value, int) and not isinstance(value, bool):
            value = float(value)
        if not isinstance(value, spec.kind) or (spec.kind is int and isinstance(value, bool)):
            raise BadSampling(f"{name} must be {spec.kind.__name__}, got {type(value).__name__}", param=where)
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            _check_bounds(name, value, spec)
        elif name == "stop_token_ids":
            if not all(_is_int(v) and v >= 0 for v in value):
                raise BadSampling("stop_token_ids must be a list of token ids", param=where)
        elif name == "logit_bias":
            value = _check_logit_bias(value)
        out[name] = value
    return out


def _check_bounds(name: str, value: float, spec: SamplingField) -> None:
    too_low = spec.low is not None and (value < spec.low or (spec.low_open and value == spec.low))
    too_high = spec.high is not None and value > spec.high
    if too_low or too_high or not math.isfinite(value):
        edge = "(" if spec.low_open else "["
        bounds = (
            f"{edge}{spec.low if spec.low is not None else '-inf'}, {spec.high if spec.high is not None else 'inf'}]"
        )
        raise BadSampling(f"{name} is {value}; it must lie in {bounds}", param=f"sampling.{name}")


def _check_logit_bias(value: Mapping[str, Any]) -> dict[str, float]:
    out: dict[str, float] = {}
    for key, bias in value.items():
        number = isinstance(bias, (int, float)) and not isinstance(bias, bool)
        if not str(key).isascii() or not str(key).isdigit() or not number or not -100 <= bias <= 100:
            raise BadSampling(
                "logit_bias must map token ids to numbers in [-100, 100]", param=f"sampling.logit_bias.{key}"
            )
        out[str(int(key))] = float(bias)
    return out


# --------------------------------------------------------------------------------------------- request
@dataclass(frozen=True, slots=True)
class Grammar:
    """Constrained decoding. `after_ids`: the constraint begins after the first occurrence of one of these ids in the
    output (the end of thinking); None or empty: from the first token."""

    type: Literal["json_schema", "regex", "ebnf", "structural_tag"]
    value: str
    after_ids: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class Item:
    """One image or one video.

    hash    64 hex digits, see `item_hash`
    rows    dtype of the patch rows
    t_dup   1: rows are [t*h*w, 588], order (channel, y, x), the engine repeats the frame (uint8 images only)
            0: rows are [t*h*w, 1176], order (channel, time, y, x)
    grid    (t, h, w) in patches
    ranges  (offset, length) into the expanded input_ids: one for an image, t of h*w/4 for a video
    data    the raw rows, C order, or None: hash only
    """

    modality: Modality
    hash: str
    rows: Rows
    t_dup: int
    grid: tuple[int, int, int]
    ranges: tuple[tuple[int, int], ...]
    data: bytes | memoryview | None = None

    @property
    def shape(self) -> tuple[int, int]:
        t, h, w = self.grid
        return t * h * w, PATCH_CHANNELS_YX * (1 if self.t_dup else 2)

    @property
    def nbytes(self) -> int:
        """Size of the rows in bytes, whether or not they are present."""
        n, width = self.shape
        return n * width * ROW_BYTES[self.rows]

    @property
    def tokens(self) -> int:
        t, h, w = self.grid
        return t * h * w // MERGE_AREA


@dataclass(frozen=True, slots=True)
class GenerateRequest:
    """A generation request. `input_ids` uint32 [prompt_tokens], placeholders already expanded."""

    rid: str
    input_ids: IntArray
    sampling: Mapping[str, Any] = field(default_factory=dict)
    n: int = 1
    logprobs: int | None = None
    """None: no logprobs. k >= 0: the chosen token's and the k most likely alternatives'."""
    grammar: Grammar | None = None
    cache_salt: str | None = None
    priority: int = 0
    traceparent: str | None = None
    items: tuple[Item, ...] = ()
    require: tuple[str, ...] = ()


def item_hash(modality: str, grid: Sequence[int], rows: str, t_dup: int, data: bytes | memoryview) -> str:
    """blake3-256, hex, over the domain tag, modality, grid (3 x u32 LE), rows, t_dup (u8) and the raw rows.

    Text fields end with a zero byte, so that no two field lists share a byte string."""
    h = blake3()
    h.update(HASH_DOMAIN + b"\x00" + modality.encode() + b"\x00")
    h.update(struct.pack("<3I", *grid) + rows.encode() + b"\x00" + bytes([t_dup]))
    h.update(data)
    return h.hexdigest()


def verify_hash(item: Item) -> None:
    """Raises HashMismatch when the rows present are not what `hash` says."""
    if item.data is not None:
        got = item_hash(item.modality, item.grid, item.rows, item.t_dup, item.data)
        if got != item.hash:
            raise HashMismatch(f"rows hash to {got}, the item says {item.hash}", param="items.hash")


def encode_request(request: GenerateRequest) -> list[bytes | memoryview]:
    """The frame as a list of buffers, rows not copied. Join them or hand them to a writer one by one."""
    ids = np.ascontiguousarray(request.input_ids, dtype="<u4").tobytes()
    tensors: list[bytes | memoryview] = [ids, *(i.data for i in request.items if i.data is not None)]
    # Offsets depend on the header's length and the header holds the offsets: place tensors relative to zero, then
    # move the base up until the header fits below it.
    base = ALIGN
    while True:
        offsets = _place(tensors, base)
        header = orjson.dumps(_header(request, offsets))
        needed = _align(12 + len(header))
        if needed <= base:
            break
        base = needed
    if len(header) > MAX_HEADER_BYTES:
        raise HeaderTooLarge(f"header is {len(header)} bytes; the limit is {MAX_HEADER_BYTES}")
    parts: list[bytes | memoryview] = [MAGIC + struct.pack("<I", len(header)) + header]
    position = 12 + len(header)
    for (start, stop), tensor in zip(offsets, tensors, strict=True):
        if start > position:
            parts.append(bytes(start - position))
        parts.append(tensor)
        position = stop
    return parts


def _place(tensors: Iterable[bytes | memoryview], base: int) -> list[tuple[int, int]]:
    out = []
    position = base
    for tensor in tensors:
        size = tensor.nbytes if isinstance(tensor, memoryview) else len(tensor)
        start = _align(position)
        out.append((start, start + size))
        position = start + size
    return out


def _align(n: int) -> int:
    return -(-n // ALIGN) * ALIGN


def _header(request: GenerateRequest, offsets: list[tuple[int, int]]) -> dict[str, Any]:
    place = iter(offsets)
    grammar = request.grammar
    return {
        "rid": request.rid,
        "input_ids": list(next(place)),
        "n": request.n,
        "sampling": dict(request.sampling),
        "logprobs": request.logprobs,
        "grammar": None
        if grammar is None
        else {
            "type": grammar.type,
            "value": grammar.value,
            "after_ids": None if grammar.after_ids is None else list(grammar.after_ids),
        },
        "cache_salt": request.cache_salt,
        "priority": request.priority,
        "traceparent": request.traceparent,
        "require": list(request.require),
        "items": [
            {
                "modality": i.modality,
                "hash": i.hash,
                "rows": i.rows,
                "t_dup": i.t_dup,
                "shape": list(i.shape),
                "grid": list(i.grid),
                "ranges": [list(r) for r in i.ranges],
                "range": None if i.data is None else list(next(place)),
            }
            for i in request.items
        ],
    }


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
            if entry not in KNOWN_REQUIREMENTS:
                raise UnknownRequirement(f"this engine does not know requirement {entry!r}", param="require")
        rid = h.get("rid")
        if not isinstance(rid, str) or not 0 < len(rid) <= 256:
            raise BadHeader("rid must be a string of 1 to 256 characters", param="rid")
        n = self._int("n", 1, 1, MAX_N)
        top = h.get("logprobs")
        logprobs = None if top is None else self._int("logprobs", 0, 0, MAX_TOP_LOGPROBS)
        sampling = h.get("sampling") or {}
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
        if not _is_int(value) or not low <= value <= high:
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
        if after is not None and not (isinstance(after, list) and all(_is_int(v) and v >= 0 for v in after)):
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
        if not _is_int(t_dup) or t_dup not in (0, 1):
            raise BadItem(f"{where}.t_dup must be 0 or 1", param=f"{where}.t_dup")
        if t_dup == 1 and (modality != "image" or rows != "u8"):
            raise BadItem(f"{where}: t_dup 1 is for uint8 images only", param=f"{where}.t_dup")
        grid = value.get("grid")
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


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_ints(value: Any, count: int) -> bool:
    return isinstance(value, list) and len(value) == count and all(_is_int(v) and v >= 0 for v in value)


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


# --------------------------------------------------------------------------------------------- reply
@dataclass(frozen=True, slots=True)
class Usage:
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int


LogprobRow = tuple[float, int, list[tuple[float, int]]]
"""(logprob, id, [(logprob, id), ...]); -inf is sent as null by JSON writers and read back as -inf."""


@dataclass(frozen=True, slots=True)
class Tokens:
    """New token ids of choice `index`; `logprobs` rows match `output_ids` one to one.

    cached_tokens   on the first line of a choice, so that usage can be told before the finish; None elsewhere"""

    index: int
    output_ids: list[int]
    logprobs: list[LogprobRow] | None = None
    cached_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Finish:
    index: int
    type: Literal["stop", "length", "abort"]
    usage: Usage
    matched: int | None = None


@dataclass(frozen=True, slots=True)
class Done:
    pass


@dataclass(frozen=True, slots=True)
class Failure:
    """The engine failed after its 200."""

    code: str
    message: str
    retryable: bool


Reply = Tokens | Finish | Done | Failure


def encode_reply(reply: Reply) -> bytes:
    """One line, with its newline."""
    match reply:
        case Tokens(index, ids, logprobs, cached_tokens):
            body: dict[str, Any] = {"index": index, "output_ids": ids}
            if logprobs is not None:
                body["logprobs"] = logprobs
            if cached_tokens is not None:
                body["cached_tokens"] = cached_tokens
        case Finish(index, kind, usage, matched):
            body = {
                "index": index,
                "finish": {"type": kind, "matched": matched},
                "usage": {
                    "prompt_tokens": usage.prompt_tokens,
                    "completion_tokens": usage.completion_tokens,
                    "cached_tokens": usage.cached_tokens,
                },
            }
        case Done():
            body = {"done": True}
        case Failure(code, message, retryable):
            body = {"error": {"code": code, "message": message, "retryable": retryable}}
    return orjson.dumps(body) + b"\n"


def _logprob(value: Any) -> float:
    return float("-inf") if value is None else float(value)


def decode_reply(line: bytes) -> Reply | None:
    """One line without its newline; None for a keep-alive. Raises BadReply."""
    if not line.strip():
        return None
    try:
        body = orjson.loads(line)
        if body.get("done") is True:
            return Done()
        if "error" in body:
            e = body["error"]
            return Failure(str(e["code"]), str(e["message"]), bool(e.get("retryable", False)))
        if "finish" in body:
            f, u = body["finish"], body["usage"]
            if f["type"] not in ("stop", "length", "abort"):
                raise BadReply(f"unknown finish type {f['type']!r}")
            usage = Usage(int(u["prompt_tokens"]), int(u["completion_tokens"]), int(u["cached_tokens"]))
            return Finish(int(body["index"]), f["type"], usage, f.get("matched"))
        ids = body["output_ids"]
        rows: Any = body.get("logprobs")
        if not isinstance(ids, list) or not all(_is_int(v) for v in ids):
            raise BadReply("output_ids must be a list of integers")
        if rows is not None:
            if len(rows) != len(ids):
                raise BadReply(f"{len(rows)} logprob rows for {len(ids)} ids")
            rows = [(_logprob(r[0]), int(r[1]), [(_logprob(t[0]), int(t[1])) for t in r[2]]) for r in rows]
        cached = body.get("cached_tokens")
        return Tokens(int(body["index"]), ids, rows, None if cached is None else int(cached))
    except BadReply:
        raise
    except (orjson.JSONDecodeError, KeyError, TypeError, ValueError, AttributeError, IndexError) as e:
        raise BadReply(f"reply line is not of the contract: {type(e).__name__}: {e}") from None


class ReplyReader:
    """Cuts a byte stream into replies. `feed` returns what is complete; `finish` raises BadReply when the stream ended
    without `done` or `error`. The cost is linear in the bytes: a partial line is kept as pieces."""

    MAX_LINE_BYTES: Final = 16 << 20

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._held = 0
        self.ended = False

    def feed(self, data: bytes) -> list[Reply]:
        *complete, rest = data.split(b"\n")
        out: list[Reply] = []
        for line in complete:
            if self._pieces:
                line = b"".join([*self._pieces, line])
                self._pieces, self._held = [], 0
            reply = decode_reply(line)
            if reply is None:
                continue
            if self.ended:
                raise BadReply("a line came after the last one")
            self.ended = isinstance(reply, (Done, Failure))
            out.append(reply)
        if rest:
            self._pieces.append(rest)
            self._held += len(rest)
            if self._held > self.MAX_LINE_BYTES:
                raise BadReply(f"a line is longer than {self.MAX_LINE_BYTES} bytes")
        return out

    def finish(self) -> None:
        if not self.ended:
            raise BadReply("the stream ended without `done` or `error`")
