"""The same chat requests to our gateway and to SGLang's own OpenAI layer, on one running server with a model that
answers (the demo checkpoint), greedy. What differs must be in DIFFERENCES with its reason, and docs/differences.md
explains it; what is listed must differ, so that the table stays true."""

from __future__ import annotations

import asyncio
import os
import re
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import pytest

from tests.sglang.live.cases import CASES
from tests.sglang.live.stack import gateway_in_front
from tests.sglang.live.talk import Record, ask, flat

pytestmark = pytest.mark.timeout(1800)  # seconds on an idle machine, minutes on a busy one
DEMO = Path(__file__).parents[3] / "engine" / "checkpoints" / "demo" / "model"

REFUSED = {"error in", "error names"}
FORCED = {"content", "tool_calls", "finish_reason", "completion_tokens"}


@dataclass(frozen=True)
class Difference:
    """`row`: the subject in docs/differences.md, "From SGLang's OpenAI layer", where the reason stands. A status that
    differs stands for all of the answer."""

    row: str
    fields: set[str]
    cases: tuple[str, ...]
    reason: str


DIFFERENCES = (
    Difference("error body", REFUSED,
               ("no messages", "unknown role", "n zero", "tool message alone", "tool_choice without tools",
                "tool_choice of no tool", "bad schema", "too long", "picture that is none"),
               "ours has OpenAI's `error` object and names the field"),
    Difference("several system messages", {"prompt_tokens"}, ("system later",),
               "M3 has one developer turn; we join them in it, SGLang's fork of the conversation keeps the place"),
    Difference("control tokens written by a client", {"content", "reasoning", "reasoning_tokens", "prompt_tokens"},
               ("control tokens in the text",), "SGLang reads them as turns, ours stay text"),
    Difference("`reasoning_effort`", {"reasoning", "reasoning_tokens", "prompt_tokens", "completion_tokens"},
               ("effort high",), "M3 thinks or does not; SGLang hands the level to a template that may not read it"),
    Difference("`stop` in the thinking", {"reasoning", "reasoning_tokens", "completion_tokens", "finish_reason"},
               ("stop inside the thinking",), "the answer would be lost"),
    Difference("forced tool calls", FORCED, ("tool_choice required",),
               "SGLang asks for a JSON list; ours is M3's own syntax, in which it was trained"),
    Difference("forced tool calls", FORCED | {"prompt_tokens"}, ("tool_choice named",),
               "and SGLang hides the tools that are not named, so that the prompt is another than in the turn before"),
    Difference("past arguments that are no JSON", {"status"}, ("past arguments not JSON",),
               "one slip of the model must not end a conversation"),
    Difference("`tool_call_id` of no call", {"status"}, ("tool message of another call",),
               "M3 has no ids: results are told by their order"),
    Difference("video", {"status"}, ("video",), "torchcodec is left out of the environment (cuda_only.txt)"),
    Difference("numbers that OpenAI refuses", {"status"},
               ("temperature too high", "max_tokens zero", "top_logprobs without logprobs"), "refused as there"),
    Difference("`top_p: 0`", {"status"}, ("top_p zero",), "OpenAI accepts it: the likeliest token"),
    Difference("names of other models", {"status"}, ("other model",), "404, as there"),
)  # fmt: skip


AT_ONCE = 8
MAX_TOKENS = 40


async def everything(gateway: str) -> dict[str, tuple[Record, Record]]:
    """Every case's (ours, SGLang's), several at a time: a CPU decodes eight requests about as fast as one."""
    engine, token = os.environ["CATALEJO_CONTRACT_URL"], os.environ["CATALEJO_CONTRACT_TOKEN"]
    slots = asyncio.Semaphore(AT_ONCE)
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=600)) as session:

        async def both(case: Record) -> tuple[Record, Record]:
            body = {"model": "demo", "temperature": 0, "max_tokens": MAX_TOKENS, **case}
            if "max_completion_tokens" in case:
                del body["max_tokens"]
            async with slots:
                return await ask(session, gateway, None, body), await ask(session, engine, token, body)

        answers = await asyncio.gather(*(both(case) for case in CASES.values()))
    return dict(zip(CASES, answers, strict=True))


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Record, Record]]:
    folder = tmp_path_factory.mktemp("gateway")
    with gateway_in_front(os.environ["CATALEJO_CONTRACT_URL"], DEMO, "demo", folder) as url:
        return asyncio.run(everything(url))


def without_markers(answer: Record) -> Record:
    """SGLang leaves a thinking marker in the text of a model that says one where it should not, as small models held to JSON
    do; the gateway never shows one."""
    shown = {name: value for name, value in answer.items() if name.startswith("content") and isinstance(value, str)}
    return answer | {name: re.sub("</?mm:think>", "", value) for name, value in shown.items()}


@pytest.mark.parametrize("name", CASES)
def test_the_same_answer(name: str, answers: dict[str, tuple[Record, Record]]) -> None:
    ours, theirs = flat(answers[name][0]), without_markers(flat(answers[name][1]))
    differ = {field for field in ours.keys() | theirs.keys() if ours.get(field) != theirs.get(field)}
    if "status" in differ:
        differ = {"status"}
    listed = {field for one in DIFFERENCES if name in one.cases for field in one.fields}
    shown = {field: (ours.get(field), theirs.get(field)) for field in sorted(differ ^ listed)}
    assert differ == listed, f"(ours, SGLang's) {shown}; they said {[a.get('said') for a in answers[name]]}"


def test_every_difference_is_explained() -> None:
    page = (DEMO.parents[3] / "docs" / "differences.md").read_text()
    section = page.split("## From SGLang's OpenAI layer")[1].split("\n## ")[0]
    assert [one.row for one in DIFFERENCES if f"| {one.row} |" not in section] == []
    assert {name for one in DIFFERENCES for name in one.cases} <= CASES.keys()


def test_our_refusals_name_the_field(answers: dict[str, tuple[Record, Record]]) -> None:
    refused = {name: ours for name, (ours, _) in answers.items() if ours["status"] >= 400}
    assert all(ours["error in"] == "error" and ours["error names"] for ours in refused.values()), refused
    assert len(refused) >= 10
