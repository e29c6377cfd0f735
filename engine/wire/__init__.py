"""The contract between gateway and engine, version 1: framing, typed messages, every rule as a typed error.

Used by both sides and by nothing heavy: numpy, orjson, blake3. No I/O, no model knowledge beyond two placeholder ids.

Frame: bytes 0-7 magic, 8-11 header length (u32 little-endian), JSON header, zero padding to 64, then tensors, each at a
multiple of 64 counted from the body's start. `range: [start, end)` is absolute. Ranges ascend in the order
input_ids, items[0], items[1], ... and do not overlap.

Not here: the HTTP client (gateway/upstream), the servers (engine/local, engine/sglang), checks that need a model's
context length or memory.
"""

from engine.wire.decode import check_placeholders, decode_request
from engine.wire.encode import encode_request
from engine.wire.errors import (
    BadHeader,
    BadItem,
    BadMagic,
    BadRange,
    BadReply,
    BadSampling,
    BodyTooLarge,
    HashMismatch,
    HeaderTooLarge,
    Truncated,
    UnknownRequirement,
    WireError,
)
from engine.wire.messages import (
    ALIGN,
    CONTENT_TYPE,
    DEFAULT_MAX_BODY_BYTES,
    HASH_DOMAIN,
    KEEP_ALIVE_S,
    KNOWN_REQUIREMENTS,
    MAGIC,
    MAX_HEADER_BYTES,
    MAX_ITEMS,
    MAX_N,
    MAX_TOP_LOGPROBS,
    MERGE_AREA,
    PATCH_CHANNELS_YX,
    REPLY_CONTENT_TYPE,
    ROUTE,
    ROW_BYTES,
    GenerateRequest,
    Grammar,
    IntArray,
    Item,
    Modality,
    Rows,
    item_hash,
    verify_hash,
)
from engine.wire.reply import (
    Done,
    Failure,
    Finish,
    LogprobRow,
    Reply,
    ReplyReader,
    Tokens,
    Usage,
    decode_reply,
    encode_reply,
)
from engine.wire.sampling import SAMPLING_FIELDS, SamplingField, check_sampling

__all__ = [
    "ALIGN",
    "CONTENT_TYPE",
    "DEFAULT_MAX_BODY_BYTES",
    "HASH_DOMAIN",
    "KEEP_ALIVE_S",
    "KNOWN_REQUIREMENTS",
    "MAGIC",
    "MAX_HEADER_BYTES",
    "MAX_ITEMS",
    "MAX_N",
    "MAX_TOP_LOGPROBS",
    "MERGE_AREA",
    "PATCH_CHANNELS_YX",
    "REPLY_CONTENT_TYPE",
    "ROUTE",
    "ROW_BYTES",
    "SAMPLING_FIELDS",
    "BadHeader",
    "BadItem",
    "BadMagic",
    "BadRange",
    "BadReply",
    "BadSampling",
    "BodyTooLarge",
    "Done",
    "Failure",
    "Finish",
    "GenerateRequest",
    "Grammar",
    "HashMismatch",
    "HeaderTooLarge",
    "IntArray",
    "Item",
    "LogprobRow",
    "Modality",
    "Reply",
    "ReplyReader",
    "Rows",
    "SamplingField",
    "Tokens",
    "Truncated",
    "UnknownRequirement",
    "Usage",
    "WireError",
    "check_placeholders",
    "check_sampling",
    "decode_reply",
    "decode_request",
    "encode_reply",
    "encode_request",
    "item_hash",
    "verify_hash",
]
