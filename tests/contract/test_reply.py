"""The stream of a good request: lines, finish, usage, `done`, rows of logprobs, several choices, stop ids."""

from __future__ import annotations

import asyncio
from time import perf_counter

import pytest

from engine import wire
from tests.contract.client import EngineClient, request, text_ids
from tests.contract.targets import Target, needs_model
from tests.unit.wire.frames import roomy_frame, with_header


def greedy(**fields: object) -> dict[str, object]:
    return {"temperature": 0.0, "ignore_eos": True, **fields}


async def test_stream_ends_with_one_finish_and_done(engine: EngineClient) -> None:
    answer = await engine.generate(request())
    assert answer.status == 200
    assert answer.headers["content-type"].startswith(wire.REPLY_CONTENT_TYPE)
    assert isinstance(answer.replies[-1], wire.Done)
    finish = answer.finish()
    assert finish.type == "length"
    assert finish.matched is None
    assert len(answer.choice()) == 8
    assert finish.usage.prompt_tokens == 12
    assert finish.usage.completion_tokens == 8


async def test_no_tokens_after_a_finish(engine: EngineClient) -> None:
    answer = await engine.generate(request(n=3))
    finished: set[int] = set()
    for reply in answer.replies:
        if isinstance(reply, wire.Finish):
            finished.add(reply.index)
        elif isinstance(reply, wire.Tokens):
            assert reply.index not in finished
    assert finished == {0, 1, 2}


async def test_first_line_of_a_choice_tells_the_cached_tokens(engine: EngineClient) -> None:
    answer = await engine.generate(request(n=2))
    for index in range(2):
        first, *later = answer.tokens(index)
        assert first.cached_tokens == answer.finish(index).usage.cached_tokens
        assert all(t.cached_tokens is None for t in later)


async def test_every_choice_is_complete_and_counts_itself(engine: EngineClient) -> None:
    answer = await engine.generate(request(n=3))
    assert {r.index for r in answer.replies if isinstance(r, wire.Tokens)} == {0, 1, 2}
    for index in range(3):
        assert len(answer.choice(index)) == 8
        assert answer.finish(index).usage.completion_tokens == 8
        assert answer.finish(index).usage.prompt_tokens == 12


async def test_greedy_choices_are_equal(engine: EngineClient) -> None:
    answer = await engine.generate(request(n=2))
    assert answer.choice(0) == answer.choice(1)


async def test_stop_id_is_part_of_the_output_and_named(engine: EngineClient) -> None:
    free = (await engine.generate(request())).choice()
    stop = free[2]
    expected = free[: free.index(stop) + 1]
    sampling = {"max_new_tokens": 8, "temperature": 0.0, "stop_token_ids": [stop]}
    answer = await engine.generate(request(sampling=sampling))
    if answer.choice() != expected:  # without ignore_eos a model may end its turn earlier
        assert len(answer.choice()) < len(expected)
    assert answer.finish().type == "stop"
    assert answer.finish().matched == answer.choice()[-1]
    assert answer.finish().usage.completion_tokens == len(answer.choice())


async def test_max_new_tokens_of_one(engine: EngineClient) -> None:
    answer = await engine.generate(request(sampling=greedy(max_new_tokens=1)))
    assert len(answer.choice()) == 1
    assert answer.finish().type == "length"


async def test_no_logprobs_unless_asked(engine: EngineClient) -> None:
    answer = await engine.generate(request())
    assert all(t.logprobs is None for t in answer.tokens())


@pytest.mark.parametrize("top", [0, 1, 4])
async def test_one_logprob_row_per_token(engine: EngineClient, top: int) -> None:
    answer = await engine.generate(request(logprobs=top, n=2))
    for index in range(2):
        rows = answer.rows(index)
        assert [row[1] for row in rows] == answer.choice(index)
        for logprob, token, alternatives in rows:
            assert logprob <= 1e-6
            assert len(alternatives) == top
            values = [value for value, _ in alternatives]
            assert values == sorted(values, reverse=True)
            if top:  # greedy: the chosen token is among the best
                assert token in [i for _, i in alternatives] or logprob >= values[-1] - 1e-5


async def test_the_same_seed_gives_the_same_tokens(engine: EngineClient) -> None:
    sampling = {"max_new_tokens": 12, "temperature": 1.0, "sampling_seed": 7, "ignore_eos": True}
    one, two = [await engine.generate(request(sampling=sampling)) for _ in range(2)]
    assert one.choice() == two.choice()


@needs_model
async def test_another_seed_gives_other_tokens(target: Target, engine: EngineClient) -> None:
    answers = set()
    for seed in range(4):
        sampling = {"max_new_tokens": 12, "temperature": 1.0, "sampling_seed": seed, "ignore_eos": True}
        answers.add(tuple((await engine.generate(request(sampling=sampling))).choice()))
    assert len(answers) > 1


async def test_optional_fields_are_accepted(engine: EngineClient) -> None:
    traceparent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    answer = await engine.generate(request(priority=5, traceparent=traceparent, require=("n", "priority")))
    assert answer.status == 200
    assert len(answer.choice()) == 8


async def test_unknown_header_keys_are_ignored(engine: EngineClient) -> None:
    header, body = roomy_frame(request())
    header["from_the_future"] = {"a": [1, 2, 3]}
    answer = await engine.send(with_header(body, header))
    assert answer.status == 200
    assert len(answer.choice()) == 8


async def test_the_same_prompt_gives_the_same_greedy_tokens_alone_and_in_company(engine: EngineClient) -> None:
    prompts = [text_ids(8 + 5 * i, seed=i) for i in range(6)]
    alone = [(await engine.generate(request(input_ids=p))).choice() for p in prompts]
    together = await asyncio.gather(*(engine.generate(request(input_ids=p)) for p in prompts))
    assert [a.choice() for a in together] == alone


async def test_a_silent_engine_says_it_is_alive(target: Target, engine: EngineClient) -> None:
    """An empty line at least every keep-alive period while there is nothing to say, a long prefill for example."""
    if target.keep_alive_s > 1:
        pytest.skip("needs an engine started with a short keep-alive")
    call = request(input_ids=text_ids(4_000, 11), sampling=greedy(max_new_tokens=1))
    if not target.real:
        await rescript(target, engine, [{"first_delay_ms": 1000, "pieces": ["a"]}])
    try:
        async with engine.open(b"".join(wire.encode_request(call))) as response:
            began = perf_counter()
            lines = [await response.content.readline()]
            while lines[-1] == b"\n":
                lines.append(await response.content.readline())
            silence = perf_counter() - began
            await response.read()
    finally:
        if not target.real:
            await rescript(target, engine, [])
    assert isinstance(wire.decode_reply(lines[-1]), wire.Tokens)
    if silence > 4 * target.keep_alive_s:
        assert len(lines) > 1


async def rescript(target: Target, engine: EngineClient, script: list[dict[str, object]]) -> None:
    async with engine.session.put(target.url + "/script", json=script) as response:
        assert response.status == 200


@needs_model
async def test_a_grammar_binds_from_the_first_token(target: Target, engine: EngineClient) -> None:
    sampling = {"max_new_tokens": 16, "temperature": 0.0}
    answer = await engine.generate(request(grammar=wire.Grammar("regex", "a{3}b"), sampling=sampling))
    assert answer.status == 200
    assert answer.finish().type == "stop"
    free = await engine.generate(request(sampling=sampling))
    assert answer.choice() != free.choice()
    assert len(answer.choice()) <= 5


@needs_model
async def test_a_schema_that_is_not_json_is_refused(target: Target, engine: EngineClient) -> None:
    answer = await engine.generate(request(grammar=wire.Grammar("json_schema", "{not json")))
    assert answer.status == 400
    assert "grammar" in (answer.error.get("param") or "")
