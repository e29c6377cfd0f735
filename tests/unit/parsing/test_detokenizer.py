"""Ids to text: never half a character, nothing of control tokens, markers as text."""

import pytest

from gateway.parsing.detokenizer import Detokenizer
from gateway.parsing.parser import token_texts
from tests.property.parsing.transcripts import tiny


def byte_ids(data: bytes) -> list[int]:
    table = tiny().vocabulary.token_bytes
    return [table.index(bytes([b])) for b in data]


def test_a_character_comes_with_its_last_byte() -> None:
    detokenizer = Detokenizer(token_texts(tiny()))
    given = [detokenizer.feed(i) for i in byte_ids("é👍!".encode())]
    assert given == ["", "é", "", "", "", "👍", "!"]
    assert detokenizer.finish() == ""


@pytest.mark.parametrize(
    "data",
    [b"\xff", b"a\xc3(", b"\xe2\x82", b"\xf0\x9f\x91", b"\xf0\x9f(\x91", b"\xed\xa0\x80", b"\x80\x80", b"\xc0\xafx"],
)
def test_broken_bytes_are_replaced_as_when_decoded_at_once(data: bytes) -> None:
    detokenizer = Detokenizer(token_texts(tiny()))
    assert detokenizer.feed_many(byte_ids(data)) + detokenizer.finish() == data.decode("utf-8", "replace")


def test_an_unfinished_character_comes_out_at_the_end() -> None:
    detokenizer = Detokenizer(token_texts(tiny()))
    assert detokenizer.feed_many(byte_ids("ok👍".encode()[:-1])) == "ok"
    assert detokenizer.finish() == "\ufffd"


def test_control_tokens_are_silent_and_do_not_break_a_character() -> None:
    c, detokenizer = tiny(), Detokenizer(token_texts(tiny()))
    first, second = byte_ids("é".encode())
    assert detokenizer.feed_many([first, *c.eos_ids, c.image_token_id, second]) == "é"


def test_markers_are_text_whatever_their_flag() -> None:
    c, detokenizer = tiny(), Detokenizer(token_texts(tiny()))
    ids = [c.think_start_id, c.think_end_id, c.namespace_id, c.added_tokens["<tool_call>"]]
    assert detokenizer.feed_many(i for i in ids if i is not None) == "<mm:think></mm:think>]<]minimax[>[<tool_call>"


@pytest.mark.parametrize("token", [512, 10**9, -1])
def test_ids_outside_the_vocabulary_are_nothing(token: int) -> None:
    detokenizer = Detokenizer(token_texts(tiny()))
    first, second = byte_ids("é".encode())
    assert detokenizer.feed_many([first, token, second]) == "é"
