"""Conversations give the ids that the reference library gives (tests/fixtures/prompt/make_golden.py wrote them)."""

import json

import pytest

from gateway.prompt import PromptBuilder
from tests.property.prompt.support import ROOT, tiny

GOLDEN = json.loads((ROOT / "tests/fixtures/prompt/golden.json").read_text())


@pytest.mark.parametrize("name", GOLDEN)
def test_ids_equal_the_reference(name: str) -> None:
    case = dict(GOLDEN[name])
    expected = case.pop("ids")
    assert PromptBuilder(tiny()).render(case.pop("messages"), **case).ids == expected


@pytest.mark.parametrize(("mode", "starts"), [("enabled", True), ("disabled", False), ("adaptive", None), (None, None)])
def test_the_prompt_says_whether_the_answer_starts_in_reasoning(mode: str | None, starts: bool | None) -> None:
    history = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "reasoning_content": "b", "content": "c"},
        {"role": "user", "content": "</mm:think>"},
    ]
    assert PromptBuilder(tiny()).render(history, thinking_mode=mode).starts_in_reasoning is starts
