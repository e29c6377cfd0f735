"""The mock's own promises: scripts, faults and the log, which every gateway test relies on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import numpy as np
import pytest

from engine import wire
from tests.contract.client import EngineClient, image_item, request, text_ids, without_rows
from tests.contract.targets import TINY
from tests.mock_engine import MockEngine
from tests.mock_engine.script import ScriptError, parse_script

EOS = 498
FREE: dict[str, Any] = {"sampling": {}}


@asynccontextmanager
async def scripted(*answers: dict[str, Any], **options: Any) -> AsyncIterator[tuple[MockEngine, EngineClient]]:
    async with MockEngine(TINY, list(answers), **options) as mock:
        timeout = aiohttp.ClientTimeout(total=20)
        async with aiohttp.ClientSession(timeout=timeout) as session:
            yield mock, EngineClient(mock.url, options.get("token"), session)


def prompt(mock: MockEngine, text: str, **fields: Any) -> wire.GenerateRequest:
    ids = np.array(mock.checkpoint.encode(text), dtype=np.uint32)
    return request(input_ids=ids, **{**FREE, **fields})


async def test_answers_are_used_in_turn_and_the_last_repeats() -> None:
    async with scripted({"pieces": [[1]]}, {"pieces": [[2]]}) as (_, client):
        said = [(await client.generate(request(**FREE))).choice() for _ in range(4)]
    assert said == [[1], [2], [2], [2]]


async def test_match_chooses_by_a_piece_of_the_prompt() -> None:
    answers: list[dict[str, Any]] = [
        {"pieces": [[1]]},
        {"match": "zebra", "pieces": [[2]]},
        {"match": "zebra", "pieces": [[3]]},
    ]
    async with scripted(*answers) as (mock, client):
        said = [(await client.generate(prompt(mock, t))).choice() for t in ("a zebra", "a horse", "zebra", "zebra")]
    assert said == [[2], [1], [3], [3]]


async def test_text_becomes_ids_with_its_added_tokens() -> None:
    async with scripted({"pieces": ["<mm:think>", "hi", "</mm:think>", [EOS]]}) as (mock, client):
        answer = await client.generate(request(**FREE))
        assert answer.tokens()[0].output_ids == [mock.checkpoint.added["<mm:think>"]]
        assert mock.checkpoint.decode(answer.choice()) == "<mm:think>hi</mm:think>[e~["
        assert (answer.finish().type, answer.finish().matched) == ("stop", EOS)


async def test_max_new_tokens_cuts_the_script() -> None:
    async with scripted({"pieces": [[1, 2, 3], [4, 5]]}) as (_, client):
        answer = await client.generate(request(sampling={"max_new_tokens": 4}))
    assert answer.choice() == [1, 2, 3, 4]
    assert answer.finish().type == "length"
    assert answer.finish().usage.completion_tokens == 4


async def test_choices_may_differ() -> None:
    async with scripted({"choices": [{"pieces": [[1]]}, {"pieces": [[2]], "finish": "length"}]}) as (_, client):
        answer = await client.generate(request(n=2, **FREE))
    assert (answer.choice(0), answer.choice(1)) == ([1], [2])
    assert (answer.finish(0).type, answer.finish(1).type) == ("stop", "length")


async def test_scripted_cached_tokens_and_logprobs_are_passed_on() -> None:
    rows = [[-0.25, 1, [[-0.25, 1], [-1.5, 2]]], [-0.5, 2, []]]
    async with scripted({"pieces": [[1], [2]], "cached_tokens": 7, "logprobs": rows}) as (_, client):
        answer = await client.generate(request(logprobs=2, **FREE))
    assert answer.finish().usage.cached_tokens == 7
    assert answer.rows() == [(-0.25, 1, [(-0.25, 1), (-1.5, 2)]), (-0.5, 2, [])]


@pytest.mark.parametrize("status", [429, 500, 503])
async def test_scripted_status_and_headers(status: int) -> None:
    async with scripted({"status": status, "headers": {"retry-after": "3"}}, {"pieces": [[1]]}) as (_, client):
        answer = await client.generate(request(**FREE))
        assert (answer.status, answer.headers["retry-after"]) == (status, "3")
        assert answer.error["code"]
        assert (await client.generate(request(**FREE))).choice() == [1]


async def test_missing_hashes_ask_for_a_resend_of_the_same_answer() -> None:
    async with scripted({"pieces": [[1]], "missing_hashes": ["*"]}, {"pieces": [[2]]}) as (_, client):
        ids = text_ids(12)
        ids[2:6] = 500
        item = image_item(2, 9)
        bare = request(input_ids=ids, items=(without_rows(item),), **FREE)
        refused = await client.generate(bare)
        assert (refused.status, refused.body["missing"]) == (409, [item.hash])
        assert (await client.generate(request(input_ids=ids, items=(item,), **FREE))).choice() == [1]


async def test_a_second_409_can_be_forced() -> None:
    async with scripted({"status": 409}) as (_, client):
        ids = text_ids(12)
        ids[2:6] = 500
        answer = await client.generate(request(input_ids=ids, items=(image_item(2, 9),), **FREE))
    assert answer.status == 409
    assert len(answer.body["missing"]) == 1


async def read(client: EngineClient, **fields: Any) -> list[wire.Reply]:
    """All replies until the end, whatever kind of end it is."""
    reader = wire.ReplyReader()
    out: list[wire.Reply] = []
    async with client.open(b"".join(wire.encode_request(request(**FREE, **fields)))) as response:
        async for data in response.content.iter_any():
            out += reader.feed(data)
    reader.finish()
    return out


THREE = {"pieces": [[1], [2], [3]]}


async def test_fail_after_ends_with_an_error_line() -> None:
    async with scripted({**THREE, "fail_after": 2, "code": "out_of_memory", "retryable": True}) as (_, client):
        replies = await read(client)
    assert [r.output_ids for r in replies if isinstance(r, wire.Tokens)] == [[1], [2]]
    assert replies[-1] == wire.Failure("out_of_memory", "the script ends here", True)


@pytest.mark.parametrize("fault", ["eof", "garbage"])
async def test_a_stream_that_ends_or_goes_bad(fault: str) -> None:
    async with scripted({**THREE, "fail_after": 1, "fault": fault}) as (_, client):
        with pytest.raises(wire.BadReply):
            await read(client)


@pytest.mark.parametrize("fault", ["reset", "half_close"])
@pytest.mark.parametrize("after", [-1, 0, 2])
async def test_a_connection_that_breaks(fault: str, after: int) -> None:
    async with scripted({**THREE, "fail_after": after, "fault": fault}) as (mock, client):
        with pytest.raises(aiohttp.ClientError):
            await read(client)
        assert mock.aborts() == []  # the engine's own doing is not an abort


@pytest.mark.parametrize("after", [-1, 0, 2])
async def test_a_hang_is_seen_as_an_abort_when_the_client_leaves(after: int) -> None:
    async with scripted({**THREE, "fail_after": after, "fault": "hang"}) as (mock, client):
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(read(client), 0.3)
        await asyncio.sleep(0.1)
        (abort,) = mock.aborts()
        assert (abort["phase"], abort["sent_tokens"]) == (("decode", 2) if after == 2 else ("prefill", 0))
        assert mock.running == 0


async def test_garbage_instead_of_http() -> None:
    async with scripted({"garbage": True, "fail_after": -1}) as (_, client):
        with pytest.raises(aiohttp.ClientError):
            await read(client)


async def test_split_bytes_change_nothing_but_the_cuts() -> None:
    async with scripted({**THREE, "split_bytes": 5}) as (_, client):
        replies = await read(client)
    assert [r.output_ids for r in replies if isinstance(r, wire.Tokens)] == [[1], [2], [3]]


async def test_the_log_says_everything_but_the_token() -> None:
    async with scripted(token="t-0123456789") as (mock, client):
        ids = text_ids(12)
        ids[2:6] = 500
        item = image_item(2, 9)
        grammar = wire.Grammar("regex", "a+", (509,))
        sent = request(input_ids=ids, items=(item,), grammar=grammar, priority=3, traceparent="00-aa-bb-01", n=2)
        await client.generate(sent)
        await client.send(b"nonsense")
        async with client.session.get(mock.url + "/log") as response:
            text = await response.text()
        entry, refused = mock.log()
    assert "t-0123456789" not in text
    assert entry["headers"]["authorization"] == "present"
    assert entry["ids"] == ids.tolist()
    assert entry["text"].count("]<]image[>[") == 4
    (logged,) = entry["items"]
    assert logged["hash"] == item.hash
    assert (logged["grid"], logged["ranges"], logged["sent"]) == ([1, 4, 4], [[2, 4]], True)
    assert entry["sampling"]["max_new_tokens"] == 8
    assert (entry["n"], entry["priority"], entry["traceparent"]) == (2, 3, "00-aa-bb-01")
    assert entry["grammar"] == {"type": "regex", "value": "a+", "after_ids": (509,)}
    assert entry["cache_salt"] == sent.cache_salt
    assert (refused["event"], refused["error"]["code"]) == ("refused", "truncated")


@pytest.mark.parametrize(
    "script",
    [{}, [1], [{"peices": []}], [{"pieces": "a"}], [{"pieces": [1]}], [{"finish": "x"}], [{"fault": "x"}],
     [{"status": 99}], [{"choices": [{}]}]],
)  # fmt: skip
def test_a_wrong_script_is_refused(script: Any) -> None:
    with pytest.raises(ScriptError):
        parse_script(script)
