"""Each sampling parameter and grammar, seen in the tokens. Needs an engine with a model."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tokenizers import Tokenizer

from engine import wire
from tests.contract.client import Answer, EngineClient, request
from tests.contract.targets import TINY, needs_model

FORCED = 72


pytestmark = needs_model


async def tokens(engine: EngineClient, grammar: wire.Grammar | None = None, **sampling: Any) -> list[int]:
    return (await ask(engine, grammar, **sampling)).choice()


async def ask(engine: EngineClient, grammar: wire.Grammar | None = None, **sampling: Any) -> Answer:
    given = {"max_new_tokens": 8, "temperature": 0.0, "ignore_eos": True, **sampling}
    answer = await engine.generate(request(sampling=given, grammar=grammar))
    assert answer.status == 200, answer.error
    return answer


def text_of(ids: list[int]) -> str:
    return str(Tokenizer.from_file(str(TINY / "tokenizer.json")).decode(ids, skip_special_tokens=True))


async def test_logit_bias_forces_a_token(engine: EngineClient) -> None:
    assert await tokens(engine, logit_bias={str(FORCED): 100}) == [FORCED] * 8


async def test_logit_bias_forbids_a_token(engine: EngineClient) -> None:
    first = (await tokens(engine))[0]
    assert first not in await tokens(engine, logit_bias={str(first): -100})


@pytest.mark.parametrize("narrow", [{"top_k": 1}, {"top_p": 1e-6}, {"min_p": 1.0}])
async def test_narrowed_to_one_candidate_is_greedy(engine: EngineClient, narrow: dict[str, Any]) -> None:
    assert await tokens(engine, temperature=1.5, sampling_seed=3, **narrow) == await tokens(engine)


@pytest.mark.parametrize("name", ["frequency_penalty", "presence_penalty"])
async def test_penalties_spread_the_choice(engine: EngineClient, name: str) -> None:
    """Among favourites that a bias makes equal, what was said gives way to what was not."""
    sampling: dict[str, Any] = {"logit_bias": {str(FORCED + i): 50.0 for i in range(12)}, "max_new_tokens": 12}
    plain = await tokens(engine, **sampling)
    sampling[name] = 2.0
    assert len(set(await tokens(engine, **sampling))) > len(set(plain))


async def test_repetition_penalty_repeats_less(engine: EngineClient) -> None:
    plain = await tokens(engine, max_new_tokens=24)
    assert len(set(await tokens(engine, max_new_tokens=24, repetition_penalty=2.0))) >= len(set(plain))


async def test_min_new_tokens_holds_the_stop_back(engine: EngineClient) -> None:
    eager: dict[str, Any] = {"logit_bias": {str(FORCED): 100}, "stop_token_ids": [FORCED], "ignore_eos": False}
    assert await tokens(engine, **eager) == [FORCED]
    later = await tokens(engine, **eager, min_new_tokens=4)
    assert len(later) == 5
    assert later[-1] == FORCED
    assert FORCED not in later[:-1]


async def test_choices_of_one_seed_differ_and_repeat(engine: EngineClient) -> None:
    sampling = {"max_new_tokens": 12, "temperature": 1.0, "sampling_seed": 5, "ignore_eos": True}
    one, two = [await engine.generate(request(sampling=sampling, n=3)) for _ in range(2)]
    choices = [one.choice(i) for i in range(3)]
    assert choices == [two.choice(i) for i in range(3)]
    assert len({tuple(c) for c in choices}) == 3


async def test_logprobs_of_greedy_tokens_are_the_best(engine: EngineClient) -> None:
    answer = await engine.generate(request(logprobs=3))
    for logprob, token, alternatives in answer.rows():
        assert alternatives[0][1] == token
        assert alternatives[0][0] == pytest.approx(logprob, abs=1e-5)


async def test_json_schema(engine: EngineClient) -> None:
    schema = {
        "type": "object",
        "properties": {"city": {"enum": ["Rome", "Oslo"]}, "warm": {"type": "boolean"}},
        "required": ["city", "warm"],
        "additionalProperties": False,
    }
    answer = await ask(engine, wire.Grammar("json_schema", json.dumps(schema)), max_new_tokens=200, ignore_eos=False)
    assert answer.finish().type == "stop"
    value = json.loads(text_of(answer.choice()))
    assert value["city"] in ("Rome", "Oslo")
    assert isinstance(value["warm"], bool)


@pytest.mark.parametrize(
    ("kind", "value", "allowed"),
    [("regex", "(yes|no)", {"yes", "no"}), ("ebnf", 'root ::= "left" | "right"', {"left", "right"})],
)
async def test_small_grammars(engine: EngineClient, kind: Any, value: str, allowed: set[str]) -> None:
    answer = await ask(engine, wire.Grammar(kind, value), ignore_eos=False)
    assert text_of(answer.choice()) in allowed
    assert answer.finish().type == "stop"


async def test_a_grammar_begins_after_its_marker(engine: EngineClient) -> None:
    """The bias makes the marker the first token; from then on the grammar rules, against the bias."""
    grammar = wire.Grammar("regex", "(yes|no)", after_ids=(FORCED,))
    answer = await ask(engine, grammar, logit_bias={str(FORCED): 100}, ignore_eos=False)
    first, *rest = answer.choice()
    assert first == FORCED
    assert text_of(rest) in ("yes", "no")


async def test_without_its_marker_a_grammar_never_begins(engine: EngineClient) -> None:
    grammar = wire.Grammar("regex", "(yes|no)", after_ids=(FORCED,))
    assert await tokens(engine, grammar, logit_bias={str(FORCED): -100}) == await tokens(
        engine, logit_bias={str(FORCED): -100}
    )
