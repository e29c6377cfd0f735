"""Conversations as (text, is_target) pieces, equal to the chat template's output (tests compare the two).

Pieces are cut next to control tokens only, so encoding them one by one gives the ids of the whole.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

ROOT = "You are a tiny demonstration model."
DEVELOPER = "You are a helpful assistant."
N = "]<]minimax[>["
IMAGE, VIDEO = "]<]image[>[", "]<]video[>["


@dataclass
class Call:
    name: str
    arguments: dict[str, Any]


@dataclass
class Turn:
    """One exchange step. role: user, ai or tool. task names the skill an ai turn exercises (for the metrics)."""

    role: str
    text: str = ""
    think: str = ""
    calls: list[Call] = field(default_factory=list)
    results: list[str] = field(default_factory=list)
    task: str = ""
    train: bool = True


@dataclass
class Chat:
    mode: str = "adaptive"
    root: str = ROOT
    developer: str = DEVELOPER
    tools: list[dict[str, Any]] = field(default_factory=list)
    turns: list[Turn] = field(default_factory=list)


def xml(v: Any) -> str:
    if isinstance(v, dict):
        return "".join(f"{N}<{k}>{xml(x)}{N}</{k}>" for k, x in v.items() if x is not None)
    if isinstance(v, str):
        return v
    if isinstance(v, bool):
        return json.dumps(v)
    if isinstance(v, (list, tuple)):
        return "".join(f"{N}<item>{xml(x)}{N}</item>" for x in v)
    return "" if v is None else str(v)


def calls_text(calls: list[Call]) -> str:
    if not calls:
        return ""
    body = "".join(f'{N}<invoke name="{c.name}">{xml(c.arguments)}{N}</invoke>\n' for c in calls)
    return f"{N}<tool_call>\n{body}{N}</tool_call>"


def pieces(chat: Chat) -> list[tuple[str, str]]:
    """-> [(text, task)], task "" where the model is not trained."""
    tools = ""
    if chat.tools:
        rows = "".join(f"<tool>{json.dumps(t, ensure_ascii=False)}</tool>\n" for t in chat.tools)
        tools = f"\n\n# Tools\n\n<tools>\n{rows}</tools>"
    head = f"]~!b[]~b]system\n{chat.root}\n\n<thinking_instructions>\nmode: {chat.mode}\n</thinking_instructions>[e~[\n"
    out: list[tuple[str, str]] = [(head, ""), (f"]~b]developer\n{chat.developer}{tools}[e~[\n", "")]
    for turn in chat.turns:
        if turn.role == "user":
            out.append((f"]~b]user\n{turn.text}[e~[\n", ""))
        elif turn.role == "tool":
            body = "".join(f"\n<response>{r}</response>" for r in turn.results)
            out.append((f"]~b]tool{body}[e~[\n", ""))
        else:
            answer = turn.text + calls_text(turn.calls) + "[e~["
            task = turn.task if turn.train else ""
            opener = (
                "<mm:think>" if turn.think else "</mm:think>",
                (turn.think + "</mm:think>" if turn.think else "") + answer,
            )
            given = chat.mode != "adaptive"  # the generation prompt already holds the opening tag
            out.append(("]~b]ai\n", ""))
            out.append((opener[0], "" if given else task))
            out.append((opener[1], task))
            out.append(("\n", ""))
    return out
