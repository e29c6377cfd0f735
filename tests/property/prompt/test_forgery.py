"""No text of a client becomes a control token, wherever it stands; and text that tries nothing of the kind gives
exactly the ids of the reference tokenizer."""

import copy
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.prompt import Checkpoint, PromptBuilder
from tests.property.prompt.support import control_ids, reference_ids, reference_text, tiny, write_real_shape

PLACES = [
    "user", "user part", "split over parts", "system", "root", "tool result", "tool result part", "function name",
    "function description", "schema key", "schema value", "schema enum", "called name", "argument", "argument key",
    "nested argument", "reasoning", "assistant", "message name", "call id",
]  # fmt: skip


def conversation(place: str, text: str) -> dict[str, Any]:
    """A conversation with every kind of message, and `text` at one place."""

    def at(*places: str) -> str:
        return text if place in places else "word"

    user: Any = at("user")
    if place == "user part":
        user = [{"type": "text", "text": text}, {"type": "image"}]
    if place == "split over parts":
        middle = len(text) // 2
        user = [{"type": "text", "text": text[:middle]}, {"type": "text", "text": text[middle:]}]
    result: Any = [{"type": "text", "text": text}] if place == "tool result part" else at("tool result")
    arguments = {"city": at("argument"), at("argument key"): 1, "deep": {"list": [{"leaf": at("nested argument")}]}}
    called = {"name": at("called name"), "arguments": arguments}
    function = {
        "name": at("function name"),
        "description": at("function description"),
        "parameters": {"type": "object", "properties": {at("schema key"): {"default": at("schema value"),
                                                                          "enum": [at("schema enum")]}}},
    }  # fmt: skip
    return {
        "tools": [{"type": "function", "function": function}],
        "messages": [
            {"role": "root", "content": at("root")},
            {"role": "system", "content": at("system")},
            {"role": "user", "content": user, "name": at("message name")},
            {
                "role": "assistant",
                "content": at("assistant"),
                "reasoning_content": at("reasoning"),
                "tool_calls": [{"id": at("call id"), "type": "function", "function": called}],
            },
            {"role": "tool", "tool_call_id": at("call id"), "content": result},
            {"role": "user", "content": "and now?"},
        ],
    }


@pytest.fixture(scope="module", params=["tiny", "real shape"])
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    if request.param == "tiny":
        return tiny()
    return Checkpoint.load(write_real_shape(Path(tmp_path_factory.mktemp("real_shape"))))


def render_ids(checkpoint: Checkpoint, request: dict[str, Any]) -> list[int]:
    return PromptBuilder(checkpoint).render(request["messages"], tools=request["tools"]).ids


@functools.cache
def innocent(checkpoint: Checkpoint, place: str) -> list[int]:
    return control_ids(checkpoint, render_ids(checkpoint, conversation(place, "word")))


def assert_harmless(checkpoint: Checkpoint, place: str, text: str) -> None:
    """Same control tokens as with an innocent word, and the text itself is all there."""
    request = conversation(place, text)
    ids = render_ids(checkpoint, copy.deepcopy(request))
    assert control_ids(checkpoint, ids) == innocent(checkpoint, place)
    assert checkpoint.decode(ids) == reference_text(checkpoint, request["messages"], tools=request["tools"])


@pytest.mark.parametrize("place", PLACES)
def test_no_control_token_can_be_written_by_a_client(checkpoint: Checkpoint, place: str) -> None:
    tokens = [t for t in checkpoint.added_tokens if not t.startswith("<unused") or t == "<unused0>"]
    for token in tokens:
        assert_harmless(checkpoint, place, token)
    variants = [f"a {t} b\n{t * 2}{t[1:]}{t[:-1]}{t[1:-1]}{t}ai\n{t}" for t in tokens]
    assert_harmless(checkpoint, place, " ".join(variants))
    for start, end in ((1, None), (None, -1), (1, -1)):
        for token in ("<tool_call>", "]<]image[>[", "</mm:think>"):
            assert_harmless(checkpoint, place, token[start:end])


FRAGMENTS = st.sampled_from(sorted({t[i:j] for t in tiny().added_tokens for i in (0, 1, 2) for j in (2, 3, 5, None)}))
HOSTILE = st.lists(st.one_of(FRAGMENTS, st.sampled_from(list("<>[]~!/ \n")), st.text(max_size=3)), max_size=10).map(
    "".join
)


@settings(max_examples=300)
@given(place=st.sampled_from(PLACES), text=HOSTILE)
def test_no_mixture_of_fragments_becomes_a_control_token(place: str, text: str) -> None:
    text = text.encode("utf-8", "ignore").decode()
    if text:  # an empty name is refused
        assert_harmless(tiny(), place, text)


@settings(max_examples=200)
@given(pieces=st.lists(HOSTILE, min_size=2, max_size=6))
def test_no_sequence_of_parts_becomes_a_control_token(pieces: list[str]) -> None:
    pieces = [p.encode("utf-8", "ignore").decode() for p in pieces]
    parts = [{"type": "text", "text": p} for p in pieces]
    ids = PromptBuilder(tiny()).render([{"role": "user", "content": parts}]).ids
    innocent = PromptBuilder(tiny()).render([{"role": "user", "content": "x"}]).ids
    assert control_ids(tiny(), ids) == control_ids(tiny(), innocent)


CLEAN = st.text(max_size=30).map(lambda s: s.encode("utf-8", "ignore").decode())
# `]`, `[` and `<` are frequent, so that risky but clean text is frequent
BRACKETS = st.text(alphabet="]<[>~ e\nb/x", max_size=12)


@settings(max_examples=300)
@given(data=st.data())
def test_clean_text_gives_the_ids_of_the_reference(checkpoint: Checkpoint, data: st.DataObject) -> None:
    texts = st.one_of(CLEAN, BRACKETS)
    request = {
        "tools": [{"type": "function", "function": {"name": "f", "description": data.draw(texts), "parameters": {
            "properties": {data.draw(texts): {"enum": data.draw(st.lists(texts, max_size=2))}}}}}],
        "messages": [
            {"role": "system", "content": data.draw(texts)},
            {"role": "user", "content": [{"type": "text", "text": data.draw(texts)}, {"type": "image"},
                                         {"type": "text", "text": data.draw(texts)}]},
            {"role": "assistant", "reasoning_content": data.draw(texts), "content": data.draw(texts), "tool_calls": [
                {"function": {"name": "f", "arguments": {"k": data.draw(texts), data.draw(texts): [data.draw(texts)]}}}
            ]},
            {"role": "tool", "content": data.draw(texts)},
        ],
    }  # fmt: skip
    text = reference_text(checkpoint, request["messages"], tools=request["tools"])
    expected = reference_ids(checkpoint, text)
    ids = render_ids(checkpoint, copy.deepcopy(request))
    if control_ids(checkpoint, ids) == control_ids(checkpoint, expected):  # else the text was not clean
        assert ids == expected
    assert checkpoint.decode(ids) == text


def _upper(template: str) -> str:
    return template.replace("{{ c }}", "{{ (c | upper) ~ c.lower() ~ c.strip() ~ (c | trim | length) ~ c[:3] }}")


@pytest.mark.parametrize("text", ["plain words", " ]~b]ai\n<b>Mixed Case</b> ", "tool_call", "É<ß"])
@pytest.mark.parametrize("change", [_upper])
def test_string_operations_of_a_template_see_the_text(tmp_path: Path, text: str, change: Callable[[str], str]) -> None:
    folder = write_real_shape(tmp_path)
    template = change((folder / "chat_template.jinja").read_text())
    (folder / "chat_template.jinja").write_text(template)
    checkpoint = Checkpoint.load(folder)
    messages = [{"role": "user", "content": text}]
    ids = PromptBuilder(checkpoint).render(messages).ids
    assert checkpoint.decode(ids) == reference_text(checkpoint, messages)
    innocent = PromptBuilder(checkpoint).render([{"role": "user", "content": "x"}]).ids
    assert control_ids(checkpoint, ids) == control_ids(checkpoint, innocent)
