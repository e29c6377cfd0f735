"""What is encoded is what is decoded, for any request and any cut of the reply; any other bytes give a typed error."""

from __future__ import annotations

import contextlib
import struct
from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine import wire
from engine.wire.reply import decode_any

IMAGE, VIDEO = 500, 501
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=10,
)

SAMPLING = st.fixed_dictionaries(
    {},
    optional={
        "max_new_tokens": st.integers(0, 1 << 20),
        "temperature": st.floats(0, 100),
        "top_p": st.floats(0.001, 1),
        "top_k": st.integers(-1, 1000),
        "min_p": st.floats(0, 1),
        "repetition_penalty": st.floats(0.01, 2),
        "frequency_penalty": st.floats(-2, 2),
        "logit_bias": st.dictionaries(st.integers(0, 1 << 20).map(str), st.floats(-100, 100), max_size=4),
        "sampling_seed": st.integers(-(2**63), 2**63 - 1),
        "stop_token_ids": st.lists(st.integers(0, 1 << 20), max_size=4),
        "ignore_eos": st.booleans(),
    },
)


@st.composite
def requests(draw: st.DrawFn) -> wire.GenerateRequest:
    ids: list[int] = draw(st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=5))
    items = []
    for _ in range(draw(st.integers(0, 3))):
        modality = draw(st.sampled_from(["image", "video"]))
        rows = draw(st.sampled_from(["u8", "f32", "bf16"]))
        t_dup = draw(st.integers(0, 1)) if modality == "image" and rows == "u8" else 0
        t = 1 if modality == "image" else draw(st.integers(1, 3))
        h, w = (2 * draw(st.integers(1, 2)) for _ in range(2))
        ranges = []
        for _ in range(t):
            ids += draw(st.lists(st.integers(0, 400), max_size=3))
            ranges.append((len(ids), h * w // 4))
            ids += [IMAGE if modality == "image" else VIDEO] * (h * w // 4)
        item = wire.Item(modality, "", rows, t_dup, (t, h, w), tuple(ranges))
        data = draw(st.binary(min_size=1, max_size=1)) * item.nbytes
        digest = wire.item_hash(modality, item.grid, rows, t_dup, data)
        sent = data if draw(st.booleans()) else None
        items.append(wire.Item(modality, digest, rows, t_dup, item.grid, item.ranges, sent))
    grammar = st.builds(
        wire.Grammar,
        st.sampled_from(["json_schema", "regex", "ebnf", "structural_tag"]),
        st.text(max_size=20),
        st.none() | st.lists(st.integers(0, 1 << 20), max_size=3).map(tuple),
    )
    return wire.GenerateRequest(
        rid=draw(st.text(min_size=1, max_size=40)),
        input_ids=np.array(ids, dtype=np.uint32),
        sampling=draw(SAMPLING),
        n=draw(st.integers(1, wire.MAX_N)),
        logprobs=draw(st.none() | st.integers(0, wire.MAX_TOP_LOGPROBS)),
        grammar=draw(st.none() | grammar),
        cache_salt=draw(st.none() | st.text(max_size=20)),
        priority=draw(st.integers(-(2**31), 2**31 - 1)),
        traceparent=draw(st.none() | st.text(max_size=60)),
        items=tuple(items),
        require=tuple(draw(st.lists(st.sampled_from(sorted(wire.KNOWN_REQUIREMENTS)), max_size=3))),
    )


def as_plain(request: wire.GenerateRequest) -> dict[str, Any]:
    plain: dict[str, Any] = {name: getattr(request, name) for name in request.__slots__}
    plain["input_ids"] = request.input_ids.tolist()
    plain["sampling"] = dict(request.sampling)
    plain["items"] = [
        {**{n: getattr(i, n) for n in i.__slots__}, "data": None if i.data is None else bytes(i.data)}
        for i in request.items
    ]
    return plain


@given(requests())
def test_request_survives_the_wire(request: wire.GenerateRequest) -> None:
    decoded = wire.decode_request(b"".join(wire.encode_request(request)))
    assert as_plain(decoded) == as_plain(request)
    for item in decoded.items:
        wire.verify_hash(item)


@given(requests(), st.data())
def test_a_changed_byte_gives_a_request_or_a_typed_error(request: wire.GenerateRequest, data: st.DataObject) -> None:
    body = bytearray(b"".join(wire.encode_request(request)))
    at = data.draw(st.integers(0, min(len(body), 1500) - 1))
    body[at] = data.draw(st.integers(0, 255))
    _decodes_or_says_why(bytes(body))


@given(st.sampled_from(["rid", "n", "sampling", "logprobs", "grammar", "items", "priority", "require", "input_ids",
                        "cache_salt", "traceparent"]), JSON)  # fmt: skip
def test_any_json_in_any_field_gives_a_request_or_a_typed_error(name: str, value: Any) -> None:
    _with_field({"rid": "r", "input_ids": [4096, 4104], name: value})


@given(st.sampled_from(["modality", "hash", "rows", "t_dup", "shape", "grid", "ranges", "range"]), JSON)
def test_any_json_in_any_item_field_gives_a_request_or_a_typed_error(name: str, value: Any) -> None:
    item = {"modality": "image", "hash": "0" * 64, "rows": "u8", "t_dup": 1, "shape": [4, 588], "grid": [1, 2, 2],
            "ranges": [[0, 1]], "range": None}  # fmt: skip
    _with_field({"rid": "r", "input_ids": [4096, 4104], "items": [{**item, name: value}]})


def _with_field(header: dict[str, Any]) -> None:
    raw = orjson.dumps(header)
    if len(raw) <= 4000:
        body = wire.MAGIC + struct.pack("<I", len(raw)) + raw
        _decodes_or_says_why(body + bytes(4096 + 64 - len(body)))


def _decodes_or_says_why(body: bytes) -> None:
    with contextlib.suppress(wire.WireError):  # anything else, a TypeError say, fails the test
        assert len(wire.decode_request(body).input_ids) >= 1


LOGPROB = st.floats(-50, 0, allow_nan=False)
REPLIES = st.lists(
    st.builds(wire.Tokens, st.integers(0, 3), st.lists(st.integers(0, 1 << 20), max_size=4))
    | st.builds(
        lambda index, rows: wire.Tokens(index, [r[1] for r in rows], rows),
        st.integers(0, 3),
        st.lists(
            st.tuples(LOGPROB, st.integers(0, 99), st.lists(st.tuples(LOGPROB, st.integers(0, 99)), max_size=2)),
            max_size=3,
        ),
    )
    | st.builds(
        wire.Finish,
        st.integers(0, 3),
        st.sampled_from(["stop", "length", "abort"]),
        st.builds(wire.Usage, st.integers(0, 99), st.integers(0, 99), st.integers(0, 99)),
        st.none() | st.integers(0, 99),
    ),
    max_size=6,
)


@given(REPLIES, st.sampled_from([wire.Done(), wire.Failure("a", "b\nc", True)]), st.data())
def test_any_cut_of_the_reply_gives_the_same_messages(
    replies: list[wire.Reply], last: wire.Reply, data: st.DataObject
) -> None:
    replies = [*replies, last]
    stream = b"\n".join([b"", *(wire.encode_reply(r) for r in replies)])  # with keep-alives between
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=20)))
    reader = wire.ReplyReader()
    got: list[wire.Reply] = []
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        got += reader.feed(stream[start:end])
    reader.finish()
    assert got == replies


@given(st.binary(max_size=200))
def test_any_bytes_as_reply_give_messages_or_a_typed_error(data: bytes) -> None:
    reader = wire.ReplyReader()
    with contextlib.suppress(wire.BadReply):
        reader.feed(data)
        reader.finish()
        assert reader.ended


NUMBERS = st.sampled_from(["0", "7", "-1", "1.0", "1.5", "1e3", "true", "null", '"1"', "007", "-0", "NaN", "[]",
                           str(2**63 - 1), str(2**63), str(2**64), str(2**80)])  # fmt: skip
MEMBERS = st.one_of(
    st.tuples(st.just('"index"'), NUMBERS),
    st.tuples(st.just('"output_ids"'), st.lists(NUMBERS, max_size=3).map(lambda n: f"[{','.join(n)}]") | NUMBERS),
    st.tuples(st.just('"cached_tokens"'), NUMBERS),
    st.tuples(st.sampled_from(['"logprobs"', r'"logprob\u0073"']), st.sampled_from(["null", "[]", "[[-0.5,7,[]]]"])),
    st.sampled_from([('"done"', "true"), ('"error"', '{"code":"a","message":"b"}'), ('"x"', "1"), ('"finish"', "{}")]),
)


@given(st.lists(MEMBERS, max_size=4), st.sampled_from(["", " ", "\r", "}", "\0", "\ufeff"]))
def test_the_short_way_reads_what_the_long_way_reads(members: list[tuple[str, str]], after: str) -> None:
    line = ("{" + ",".join(f"{name}:{value}" for name, value in members) + "}" + after).encode()
    try:
        expected: wire.Reply | None = decode_any(line)
    except wire.BadReply:
        with pytest.raises(wire.BadReply):
            wire.decode_reply(line)
    else:
        assert wire.decode_reply(line) == expected
