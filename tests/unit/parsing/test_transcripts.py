"""Every transcript of the table gives the client what the table says."""

import pytest

from gateway.parsing import ToolCallStart
from tests.property.parsing.transcripts import Transcript, answer, tiny, transcripts


@pytest.mark.parametrize("case", transcripts(), ids=lambda c: c.name)
@pytest.mark.parametrize("as_control_tokens", [True, False], ids=["control tokens", "spelled out"])
def test_answer_is_what_the_table_says(case: Transcript, as_control_tokens: bool) -> None:
    parser = case.parser()
    if as_control_tokens:
        ids = tiny().tokenizer.encode(case.text, add_special_tokens=False).ids
    else:
        ids = tiny().encode_plain(case.text)
    events = parser.feed(ids) + parser.finish()
    got = answer(events)
    assert (got.reasoning, got.content, got.calls, got.stopped) == (
        case.reasoning,
        case.content,
        case.calls,
        case.stopped,
    )
    assert parser.stopped == case.stopped
    assert parser.saw_tool_call == bool(case.calls)
    ids_of_calls = [e.id for e in events if isinstance(e, ToolCallStart)]
    assert len(set(ids_of_calls)) == len(ids_of_calls) and all(ids_of_calls)
    if case.slips:
        assert parser.parse_errors >= case.slips
    else:
        assert parser.parse_errors == 0
