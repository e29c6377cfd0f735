"""However the stream is cut, the client gets the same: one property for the whole of gateway/parsing.

Cuts: one by one, at every position, drawn by hypothesis; of ids (also inside characters, since a token may hold half of
one) and of text (also inside markers). Besides: no marker in what the client reads, nothing lost, work linear."""

import itertools
import random
import sys
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.parsing import ContentDelta, Event, OutputParser, ReasoningDelta, TokenLogprobs, ToolCallArguments
from tests.property.parsing.transcripts import MARKERS, NAMESPACE, Transcript, answer, merged, tiny, transcripts

CASES = transcripts()
IDS = [c.name for c in CASES]


def rows_for(ids: Sequence[int]) -> list[tuple[float, int, list[tuple[float, int]]]]:
    return [(-float(i), token, []) for i, token in enumerate(ids)]


def by_pieces(
    case: Transcript, ids: Sequence[int], cuts: Sequence[int], with_rows: bool = True
) -> tuple[list[Event], OutputParser]:
    """With rows of logprobs no token takes the parser's short way."""
    parser, events, rows = case.parser(), [], rows_for(ids)
    edges = [0, *sorted(cuts), len(ids)]
    for start, end in itertools.pairwise(edges):
        events += parser.feed(ids[start:end], rows[start:end] if with_rows else None)
    return merged(events + parser.finish()), parser


def by_text(case: Transcript, cuts: Sequence[int]) -> list[Event]:
    parser, events = case.parser(), []
    edges = [0, *sorted(cuts), len(case.text)]
    for start, end in itertools.pairwise(edges):
        events += parser.feed_text(case.text[start:end])
    return merged(events + parser.finish())


def check(case: Transcript, ids: Sequence[int], cuts: Sequence[int], whole: tuple[list[Event], OutputParser]) -> None:
    for with_rows in (True, False):
        events, parser = by_pieces(case, ids, cuts, with_rows)
        assert events == [e for e in whole[0] if with_rows or not isinstance(e, TokenLogprobs)]
        for name in ("reasoning_tokens", "tokens", "stopped", "parse_errors", "saw_tool_call"):
            assert getattr(parser, name) == getattr(whole[1], name), name


@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_every_cut_of_every_transcript_gives_the_same_events(case: Transcript) -> None:
    tokenizer = tiny().tokenizer
    for ids in (tokenizer.encode(case.text, add_special_tokens=False).ids, tiny().encode_plain(case.text)):
        whole = by_pieces(case, ids, [])
        check(case, ids, range(1, len(ids)), whole)
        for cut in range(1, len(ids)):
            check(case, ids, [cut], whole)
    uncut = by_text(case, [])
    assert by_text(case, range(1, len(case.text))) == uncut
    for cut in range(1, len(case.text)):
        assert by_text(case, [cut]) == uncut


# What models write, what they might write, and what nobody should: pieces glued together at random.
PIECES = st.one_of(
    st.sampled_from(
        [
            *MARKERS,
            *(m[:k] for m in MARKERS for k in (1, 4, len(m) - 1)),
            *(m[k:] for m in MARKERS for k in (1, 4)),
            *(f"{NAMESPACE}{tag}" for tag in (
                "<tool_call>", "</tool_call>", '<invoke name="typed">', '<invoke name="get_weather">', "</invoke>",
                "<s>", "</s>", "<i>", "</i>", "<o>", "</o>", "<l>", "</l>", "<item>", "</item>", "<x>", "</x>",
                'invoke name="typed">', "<invoke>", '<invoke name="">', "<city>", "</city>",
            )),
            "<tool_call>", "\n", " ", "12", "true", "null", "[1, 2]", '{"name": "x"}', "STOP", "ST", "OP", "<", ">",
            f'{NAMESPACE}<tool_call>\n{NAMESPACE}<invoke name="typed">{NAMESPACE}<s>a "word"',
            f'{NAMESPACE}<invoke name="typed">{NAMESPACE}<o>{NAMESPACE}<s>two words', "three words",
            "é", "日本", "👩‍👩‍👧", "\x00", "\u2028", '"', "\\",
        ]
    ),
    st.text(max_size=6).filter(lambda s: s.isprintable()),
)  # fmt: skip


@st.composite
def random_case(draw: st.DrawFn) -> Transcript:
    return Transcript(
        name="random",
        text="".join(draw(st.lists(PIECES, max_size=24))),
        mode=draw(st.sampled_from(["content", "reasoning", "adaptive"])),
        tools=draw(st.sampled_from([[], ["typed"], ["typed", "get_weather"]])),
        stop=draw(st.sampled_from([[], ["STOP"], ["T", "STOP", "é日"], ["<"], ["]", "<mm"]])),
        min_tokens=draw(st.sampled_from([0, 0, 0, 1, 5])),
        parse_tools=draw(st.sampled_from([True, True, True, False])),
    )


@settings(max_examples=300)
@given(case=random_case(), data=st.data())
def test_any_cut_of_any_text_gives_the_same_events(case: Transcript, data: st.DataObject) -> None:
    ids = tiny().tokenizer.encode(case.text, add_special_tokens=False).ids
    whole = by_pieces(case, ids, [])
    check(case, ids, range(1, len(ids)), whole)
    cuts = data.draw(st.lists(st.integers(0, max(1, len(case.text))), max_size=6))
    check(case, ids, [min(c, len(ids)) for c in cuts], whole)
    uncut = by_text(case, [])
    assert by_text(case, range(1, len(case.text))) == uncut
    assert by_text(case, [min(c, len(case.text)) for c in cuts]) == uncut

    got = answer(whole[0])  # the arguments of every call are JSON objects
    assert all(isinstance(arguments, dict) for _, arguments in got.calls)
    for marker in MARKERS:
        assert marker not in got.content
        assert marker not in got.reasoning
    shown = sum(len(e.rows) for e in whole[0] if isinstance(e, TokenLogprobs))
    assert shown == whole[1].tokens == (len(ids) if whole[1].stopped is None else shown)


@settings(max_examples=200)
@given(ids=st.lists(st.integers(0, 511), max_size=60), data=st.data())
def test_random_ids_lose_nothing(ids: list[int], data: st.DataObject) -> None:
    """Random bytes in place of text: content is what decoding all at once gives, without the control tokens."""
    checkpoint = tiny()
    silent = set(checkpoint.added_tokens.values())
    ids = [i for i in ids if i not in silent]
    case = Transcript(name="bytes", text="", parse_tools=False)
    cuts = data.draw(st.lists(st.integers(0, len(ids)), max_size=6))
    events, _ = by_pieces(case, ids, cuts)
    assert answer(events).content == checkpoint.decode(ids)


@settings(max_examples=100)
@given(text=st.text().filter(lambda s: not any(m[:2] in s for m in MARKERS)), data=st.data())
def test_plain_text_comes_out_as_it_went_in(text: str, data: st.DataObject) -> None:
    ids = tiny().encode_plain(text)
    case = Transcript(name="text", text=text)
    cuts = data.draw(st.lists(st.integers(0, len(ids)), max_size=6))
    for mode in ("content", "reasoning", "adaptive"):
        case.mode = mode
        got = answer(by_pieces(case, ids, cuts)[0])
        assert (got.reasoning if mode == "reasoning" else got.content) == text


LONG = {
    "content": lambda n: "word " * n,
    "held markers": lambda n: "</mm:" * n,
    "reasoning": lambda n: "<mm:think>" + "a < b " * n,
    "one string argument": lambda n: (
        f'{NAMESPACE}<tool_call>{NAMESPACE}<invoke name="typed">{NAMESPACE}<s>' + "x < " * n
    ),
    "one held argument": lambda n: f'{NAMESPACE}<tool_call>{NAMESPACE}<invoke name="typed">{NAMESPACE}<i>' + "1" * n,
    "white space": lambda n: " " * n,
    "undecided tag": lambda n: f"{NAMESPACE}<" + "a" * n,
    "many calls": lambda n: f'{NAMESPACE}<invoke name="typed">{NAMESPACE}<i>1' * (n // 4),
    "deep": lambda n: f'{NAMESPACE}<invoke name="typed">' + f"{NAMESPACE}<o>" * n,
    "many keys": lambda n: f'{NAMESPACE}<invoke name="typed">' + "".join(f"{NAMESPACE}<k{i}>1" for i in range(n // 4)),
    "stop string begun again and again": lambda n: "STO" * n,
}


def operations(case: Transcript, ids: Sequence[int]) -> int:
    """Work, counted: characters of all strings that Python-level calls inside gateway/parsing receive, and the calls.

    A parser that looks at its text again with every piece does quadratically many of them."""
    count = 0

    def profile(frame: object, event: str, argument: object) -> None:
        nonlocal count
        if event == "call" and "/gateway/parsing/" in frame.f_code.co_filename:  # type: ignore[attr-defined]
            values = frame.f_locals.values()  # type: ignore[attr-defined]
            count += 1 + sum(len(v) for v in values if isinstance(v, str))

    parser = case.parser()
    sys.setprofile(profile)
    try:
        for token in ids:
            parser.feed([token])
        parser.finish()
    finally:
        sys.setprofile(None)
    return count


@pytest.mark.parametrize("kind", LONG)
def test_work_grows_with_the_text_and_not_faster(kind: str) -> None:
    counts = []
    for n in (200, 800):
        text = LONG[kind](n)
        case = Transcript(name=kind, text=text, tools=["typed"], stop=["STOP"])
        ids = tiny().encode_plain(text)
        counts.append(operations(case, ids) / len(ids))
    assert counts[1] < 2 * counts[0] + 50


@settings(max_examples=200)
@given(case=random_case(), data=st.data())
def test_the_short_way_gives_the_very_same_events(case: Transcript, data: st.DataObject) -> None:
    ids = tiny().tokenizer.encode(case.text, add_special_tokens=False).ids
    same_events(case, ids + data.draw(st.lists(st.integers(0, len(tiny().vocabulary.token_bytes) + 3), max_size=20)))


@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_the_short_way_through_every_transcript_gives_the_very_same_events(case: Transcript) -> None:
    same_events(case, tiny().tokenizer.encode(case.text, add_special_tokens=False).ids)


def same_events(case: Transcript, ids: Sequence[int]) -> None:
    """Not only the same text: the same events, feed by feed."""
    short, long = case.parser(), case.parser()
    for token in ids:
        expected = [e for e in long.feed([token], [(0.0, token, [])]) if not isinstance(e, TokenLogprobs)]
        assert short.feed([token]) == expected
        assert (short.tokens, short.reasoning_tokens) == (long.tokens, long.reasoning_tokens)
    assert short.finish() == long.finish()


def test_one_row_of_logprobs_per_token_and_none_after_a_stop_string() -> None:
    case = Transcript(name="stop", text="one two STOP three", stop=["STOP"])
    ids = tiny().encode_plain(case.text)
    rng = random.Random(1)
    events, parser = by_pieces(case, ids, [rng.randrange(len(ids)) for _ in range(3)])
    rows = [r for e in events if isinstance(e, TokenLogprobs) for r in e.rows]
    assert [r[1] for r in rows] == ids[: parser.tokens]
    assert parser.tokens < len(ids)


def test_deltas_are_as_early_as_they_can_be() -> None:
    """Each token of plain text, of a thought and of a string argument comes out with the feed that brought it."""
    prefix = f'{NAMESPACE}<tool_call>\n{NAMESPACE}<invoke name="typed">{NAMESPACE}<s>'
    for mode, start, kind in (
        ("content", "", ContentDelta),
        ("reasoning", "", ReasoningDelta),
        ("content", prefix, ToolCallArguments),
    ):
        case = Transcript(name="early", text="", mode=mode, tools=["typed"])
        parser = case.parser()
        parser.feed_text(start)
        for token in tiny().encode_plain("Hello there, you"):
            (event,) = parser.feed([token])
            assert type(event) is kind
