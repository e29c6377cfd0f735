"""The generators write exactly what the shipped chat template renders, and cut it only where tokens end anyway."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from engine.checkpoints.demo import picture_tasks, talk_tasks, tool_tasks
from engine.checkpoints.demo import tokenizer as demo_tokenizer
from engine.checkpoints.demo.prompt import IMAGE, Chat, Turn, pieces
from engine.checkpoints.demo.scenes import sample_things

transformers = pytest.importorskip("transformers")
TEMPLATE = Path(picture_tasks.__file__).with_name("chat_template.jinja").read_text()


def messages(chat: Chat) -> list[dict[str, Any]]:
    out: list[dict[str, Any]] = [
        {"role": "root", "content": chat.root},
        {"role": "developer", "content": chat.developer},
    ]
    for t in chat.turns:
        if t.role == "user":
            out.append({"role": "user", "content": t.text})
        elif t.role == "tool":
            out += [{"role": "tool", "content": r} for r in t.results]
        else:
            calls = [{"function": {"name": c.name, "arguments": c.arguments}} for c in t.calls]
            out.append({"role": "assistant", "content": t.text, "reasoning_content": t.think, "tool_calls": calls})
    return out


def chats() -> list[Chat]:
    rng = random.Random(5)
    out = []
    for mode in ("adaptive", "disabled", "enabled"):
        for _ in range(25):
            tools, turns = tool_tasks.conversation(rng)
            out.append(Chat(mode, tools=[{"type": "function", "function": t} for t in tools], turns=turns))
            turns = [t for f in (talk_tasks.chat, talk_tasks.sums, talk_tasks.sorting) for t in f(rng)]
            out.append(Chat(mode, turns=turns))
            out.append(Chat(mode, turns=picture_tasks.single(rng, sample_things(rng, 2), 2)))
    return out


@pytest.fixture(scope="module")
def tokenizer():
    tk = demo_tokenizer.build(["the picture shows a red circle", "tools weather city"])
    return transformers.PreTrainedTokenizerFast(tokenizer_object=tk)


def test_pieces_equal_the_template(tokenizer) -> None:
    for chat in chats():
        listed = chat.tools
        chat.tools = [t["function"] for t in listed]
        mine = "".join(text for text, _ in pieces(chat))
        ref = tokenizer.apply_chat_template(
            messages(chat), tools=listed or None, chat_template=TEMPLATE, tokenize=False, thinking_mode=chat.mode
        )
        assert mine == ref


def test_pieces_encode_to_the_ids_of_the_whole(tokenizer) -> None:
    for chat in chats():
        chat.tools = [t["function"] for t in chat.tools]
        parts = [text for text, _ in pieces(chat)]
        cut = [i for p in parts for i in tokenizer.encode(p, add_special_tokens=False)]
        assert cut == tokenizer.encode("".join(parts), add_special_tokens=False)


def test_targets_are_answers_and_their_end(tokenizer) -> None:
    chat = Chat("adaptive", turns=[Turn("user", IMAGE + "What is this?"), Turn("ai", "A circle.", task="describe")])
    assert [t for t, task in pieces(chat) if task] == ["</mm:think>", "A circle.[e~["]
