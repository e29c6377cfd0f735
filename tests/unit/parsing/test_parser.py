"""What the table of transcripts does not say: ends, counters, options."""

import json
import re

import pytest

from gateway.parsing import ContentDelta, OutputParser, ReasoningDelta, ToolCallArguments, ToolCallStart
from tests.property.parsing.transcripts import NAMESPACE, Transcript, answer, merged, tiny, tool_specs

CALL = f'{NAMESPACE}<tool_call>\n{NAMESPACE}<invoke name="save_file">{NAMESPACE}<filename>a.txt{NAMESPACE}</filename>'


def test_arguments_cut_by_length_stay_as_far_as_they_got() -> None:
    text = f"{CALL}{NAMESPACE}<content>rm -rf /tmp/x"
    parser = Transcript(name="x", text=text, tools=["save_file"]).parser()
    events = parser.feed_text(text) + parser.finish(truncated=True)
    arguments = "".join(e.text for e in events if isinstance(e, ToolCallArguments))
    assert arguments == '{"filename":"a.txt","content":"rm -rf /tmp/x'


def test_arguments_that_end_otherwise_are_closed() -> None:
    text = f"{CALL}{NAMESPACE}<content>x"
    parser = Transcript(name="x", text=text, tools=["save_file"]).parser()
    got = answer(parser.feed_text(text) + parser.finish())
    assert got.calls == [["save_file", {"filename": "a.txt", "content": "x"}]]


def test_finish_twice_says_nothing_more() -> None:
    parser = Transcript(name="x", text="", mode="content").parser()
    assert parser.feed_text("a <mm") == [ContentDelta("a ")]
    assert parser.finish() == [ContentDelta("<mm")]
    assert parser.finish() == []


def test_reasoning_tokens_are_counted_and_nothing_else() -> None:
    c = tiny()
    thought, said = c.encode_plain("one two"), c.encode_plain("three")
    parser = OutputParser(c, starts_in_reasoning=True)
    assert c.think_end_id is not None and c.think_start_id is not None
    parser.feed([*thought, c.think_end_id, *said, c.eos_ids[0]])
    assert parser.reasoning_tokens == len(thought) + 1
    assert parser.tokens == len(thought) + len(said) + 2
    parser = OutputParser(c, starts_in_reasoning=None)
    parser.feed([c.think_start_id, *thought, c.think_end_id, *said])
    assert parser.reasoning_tokens == len(thought) + 2
    parser = OutputParser(c, starts_in_reasoning=False)
    parser.feed(said)
    assert parser.reasoning_tokens == 0


def test_tokens_after_a_stop_string_are_not_taken() -> None:
    ids = tiny().encode_plain("one STOP two three")
    parser = OutputParser(tiny(), starts_in_reasoning=False, stop=["STOP"])
    parser.feed(ids)
    taken = parser.tokens
    assert parser.stopped == "STOP" and tiny().decode(ids[:taken]).endswith("STOP")
    assert parser.feed(ids) == [] and parser.finish() == [] and parser.tokens == taken


@pytest.mark.parametrize(
    ("stop", "min_tokens", "content"),
    [("X", 1, "a"), ("X", 2, "aXb"), ("X", 3, "aXb"), ("X", 4, "aXbXc"), ("Xb", 2, "a"), ("Xb", 3, "aXbXcX")],
)
def test_no_stop_string_is_complete_before_the_least_tokens(stop: str, min_tokens: int, content: str) -> None:
    ids = [token for letter in "aXbXcX" for token in tiny().encode_plain(letter)]
    assert len(ids) == 6
    for cut in range(6):
        parser = OutputParser(tiny(), starts_in_reasoning=False, stop=[stop], min_tokens=min_tokens)
        assert answer(parser.feed(ids[:cut]) + parser.feed(ids[cut:]) + parser.finish()).content == content


def test_what_could_begin_a_marker_comes_before_text_of_another_kind() -> None:
    parser = Transcript(name="x", text="", mode="reasoning", tools=["save_file"]).parser()
    events = merged(parser.feed_text(f"a<</mm:think>b]<]<mm:think>c]</mm:think>{CALL}") + parser.finish())
    assert events[:4] == [
        ReasoningDelta("a<"),
        ContentDelta("b]<]"),
        ReasoningDelta("c]"),
        ToolCallStart(0, "call_0", "save_file"),
    ]


def test_call_ids_are_unique_and_of_the_usual_form() -> None:
    text = f'{NAMESPACE}<invoke name="save_file">{NAMESPACE}</invoke>' * 50
    parser = OutputParser(tiny(), starts_in_reasoning=False, tools=list(tool_specs().values()))
    starts = [e for e in parser.feed_text(text) if isinstance(e, ToolCallStart)]
    assert [e.index for e in starts] == list(range(50))
    assert len({e.id for e in starts}) == 50 and all(re.fullmatch(r"call_[0-9a-f]{24}", e.id) for e in starts)


def test_structured_output_survives_a_marker_in_a_string() -> None:
    text = '<mm:think>hm</mm:think>{"a": "x<mm:think>y</mm:think>z"}'
    parser = OutputParser(tiny(), starts_in_reasoning=None, parse_tools=False, structured=True)
    events = parser.feed_text(text) + parser.finish()
    assert json.loads(answer(events).content) == {"a": "xyz"}
    assert [e for e in events if isinstance(e, ReasoningDelta)] == [ReasoningDelta("hm")]


def test_a_call_starts_as_soon_as_its_name_is_known() -> None:
    parser = Transcript(name="x", text="", tools=["save_file"]).parser()
    assert parser.feed_text(f'{NAMESPACE}<tool_call>\n{NAMESPACE}<invoke name="save_file"') == []
    start, brace = parser.feed_text(">")
    assert isinstance(start, ToolCallStart) and start.name == "save_file"
    assert brace == ToolCallArguments(0, "{")
