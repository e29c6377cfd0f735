"""The reply stream: each kind of line, and every way it can break."""

from __future__ import annotations

import math

import pytest

from engine import wire

USAGE = wire.Usage(10, 3, 8)
REPLIES: list[wire.Reply] = [
    wire.Tokens(0, [1, 2]),
    wire.Tokens(1, []),
    wire.Tokens(0, [5], [(-0.5, 5, [(-0.5, 5), (-2.0, 6)])]),
    wire.Finish(0, "stop", USAGE, matched=498),
    wire.Finish(1, "length", USAGE),
    wire.Finish(1, "abort", USAGE),
    wire.Done(),
    wire.Failure("engine_failure", "gone", True),
]


@pytest.mark.parametrize("reply", REPLIES, ids=lambda r: type(r).__name__)
def test_round_trip(reply: wire.Reply) -> None:
    line = wire.encode_reply(reply)
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    assert wire.decode_reply(line[:-1]) == reply


def test_minus_infinity_survives() -> None:
    line = wire.encode_reply(wire.Tokens(0, [5], [(-math.inf, 5, [(-math.inf, 6)])]))
    decoded = wire.decode_reply(line)
    assert isinstance(decoded, wire.Tokens)
    assert decoded.logprobs == [(-math.inf, 5, [(-math.inf, 6)])]


@pytest.mark.parametrize("line", [b"", b" ", b"\r"])
def test_empty_line_is_a_keep_alive(line: bytes) -> None:
    assert wire.decode_reply(line) is None


BROKEN = [
    b"hello",
    b"[]",
    b"7",
    b"null",
    b"\xff\xfe",
    b"{}",
    b'{"index": 0}',
    b'{"index": 0, "output_ids": 5}',
    b'{"index": 0, "output_ids": [1.5]}',
    b'{"index": 0, "output_ids": [true]}',
    b'{"output_ids": [1]}',
    b'{"index": "a", "output_ids": [1]}',
    b'{"index": 0, "output_ids": [1], "logprobs": []}',
    b'{"index": 0, "output_ids": [1], "logprobs": [[-1]]}',
    b'{"index": 0, "output_ids": [1], "logprobs": 3}',
    b'{"index": 0, "output_ids": [1], "logprobs": [["x", 1, []]]}',
    b'{"index": 0, "finish": {"type": "bored"}, "usage": {}}',
    b'{"index": 0, "finish": {"type": "stop"}}',
    b'{"index": 0, "finish": {"type": "stop"}, "usage": {"prompt_tokens": 1}}',
    b'{"index": 0, "finish": "stop", "usage": {}}',
    b'{"index": true, "output_ids": [1]}',
    b'{"index": -1, "output_ids": [1]}',
    b'{"index": "0", "output_ids": [1]}',
    b'{"index": 1.7, "output_ids": [1]}',
    b'{"index": 0, "output_ids": [-1]}',
    b'{"index": 0, "output_ids": [1], "logprobs": [[-1, -1, []]]}',
    b'{"index": 0, "finish": {"type": "stop", "matched": "x"}, "usage": {"prompt_tokens": 1, "completion_tokens": 1, '
    b'"cached_tokens": 0}}',
    b'{"index": 0, "finish": {"type": "stop"}, "usage": {"prompt_tokens": -1, "completion_tokens": 1, '
    b'"cached_tokens": 0}}',
    b'{"error": "gone"}',
    b'{"error": {"code": "x"}}',
]


@pytest.mark.parametrize("line", BROKEN)
def test_broken_line(line: bytes) -> None:
    with pytest.raises(wire.BadReply):
        wire.decode_reply(line)


def test_unknown_keys_in_a_line_are_ignored() -> None:
    assert wire.decode_reply(b'{"index": 0, "output_ids": [1], "mood": "good"}') == wire.Tokens(0, [1])


def test_end_without_done_is_a_failure() -> None:
    reader = wire.ReplyReader()
    assert reader.feed(wire.encode_reply(wire.Tokens(0, [1]))) == [wire.Tokens(0, [1])]
    with pytest.raises(wire.BadReply, match="without"):
        reader.finish()


@pytest.mark.parametrize("last", [wire.Done(), wire.Failure("x", "y", False)])
def test_nothing_may_follow_the_last_line(last: wire.Reply) -> None:
    reader = wire.ReplyReader()
    reader.feed(wire.encode_reply(last))
    reader.finish()
    reader.feed(b"\n\n")
    with pytest.raises(wire.BadReply, match="after"):
        reader.feed(wire.encode_reply(wire.Tokens(0, [1])))


def test_last_line_needs_its_newline() -> None:
    reader = wire.ReplyReader()
    assert reader.feed(b'{"done": true}') == []
    with pytest.raises(wire.BadReply):
        reader.finish()


def test_line_without_end_is_bounded() -> None:
    reader = wire.ReplyReader()
    for _ in range(16):
        assert reader.feed(b"x" * (1 << 20)) == []
    with pytest.raises(wire.BadReply, match="longer"):
        reader.feed(b"x")


@pytest.mark.parametrize("cut", range(60))
def test_a_broken_line_never_hides_the_good_ones_before_it(cut: int) -> None:
    """The good replies come out, then the error, however the stream was cut."""
    stream = wire.encode_reply(wire.Tokens(0, [1])) + b"garbage\n" + wire.encode_reply(wire.Done())
    reader = wire.ReplyReader()
    got: list[wire.Reply] = []

    def read_all() -> None:
        for piece in (stream[:cut], stream[cut:]):
            got.extend(reader.feed(piece))
        reader.finish()

    with pytest.raises(wire.BadReply):
        read_all()
    assert got == [wire.Tokens(0, [1])]
