"""A name that is split over models by weight, and one that falls to the next model: clients notice nothing but `model`."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.api.harness import CHAT, body_of
from tests.api.several import next_tiny, three
from tests.fixtures.media.png import data_url, png

__all__ = ["next_tiny"]

CANARY = [{"name": "m", "weights": {"m3": 3, "m3-next": 1}, "aliases": ["vendor/m"]}]
FALLS = [{"name": "m", "weights": {"m3": 1}, "fallbacks": ["m3-next", "small"]}]
HALF = [{"pieces": ["Half ", "an answer"], "fail_after": 1, "fault": "reset"}]
DEAD_EARLY: dict[str, dict[str, Any]] = {
    "refuses": {"status": 500},
    "is-full": {"status": 503},
    "dies-before-headers": {"fail_after": -1, "fault": "reset"},
    "dies-before-its-first-token": {"pieces": ["x"], "fail_after": 0, "fault": "eof"},
    "fails-before-its-first-token": {"pieces": ["x"], "fail_after": 0, "fault": "error"},
}


async def test_requests_are_split_by_weight(next_tiny: Path) -> None:
    async with three(next_tiny, CANARY) as t:
        served: Counter[str] = Counter()
        for _ in range(200):
            answer = await t.stack.chat("Hi", model="m", max_tokens=1)
            assert answer.json["model"] == answer.headers["x-catalejo-model"]
            served[answer.json["model"]] += 1
        assert served == {k: n for k, n in t.counts().items() if n}
        assert 20 <= served["m3-next"] <= 85, served  # 50 expected, standard deviation 6
        assert (await t.stack.chat("Hi", model="vendor/m", max_tokens=1)).json["model"] in ("m3", "m3-next")


@pytest.mark.parametrize("field", ["prompt_cache_key", "user"])
async def test_a_session_stays_with_its_model(next_tiny: Path, field: str) -> None:
    async with three(next_tiny, CANARY) as t:
        seen: dict[str, set[str]] = {}
        for i in range(90):
            who = f"u-{i % 30}"
            answer = await t.stack.chat("Hi", model="m", max_tokens=1, **{field: who})
            seen.setdefault(who, set()).add(answer.json["model"])
        assert all(len(models) == 1 for models in seen.values())
        assert set.union(*seen.values()) == {"m3", "m3-next"}


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("fault", DEAD_EARLY.values(), ids=DEAD_EARLY.keys())
async def test_the_next_model_answers_when_the_first_cannot(
    next_tiny: Path, fault: dict[str, Any], streamed: bool
) -> None:
    async with three(next_tiny, FALLS, {"m3": [fault]}) as t:
        if streamed:
            events = await t.stack.stream("Hi", model="m", stream_options={"include_usage": True})
            assert events.done and events.text() == "I am m3-next."
            assert {c["model"] for c in events.chunks} == {"m3-next"}
            usage = events.chunks[-1]["usage"]
        else:
            answer = await t.stack.chat("Hi", model="m")
            assert answer.message["content"] == "I am m3-next."
            assert answer.json["model"] == "m3-next"
            usage = answer.json["usage"]
        tries = 2 if fault.get("fail_after") == -1 else 1  # an idle connection may have been closed by the engine
        assert t.counts() == {"m3": tries, "m3-next": 1, "small": 0}
        assert len(t.prompt("m3-next")) == len(t.prompt("m3")) + len(await ids_of(t, "m3", "Next!"))
        assert usage["prompt_tokens"] == len(t.prompt("m3-next")), "the prompt was rendered again"
        assert await t.stack.metric("catalejo_model_fallbacks_total{") == 1
        await t.stack.settled()


async def ids_of(t: Any, model: str, text: str) -> list[int]:
    return (await t.stack.post("/tokenize", {"model": model, "prompt": text})).json["tokens"]


async def test_after_the_first_token_nothing_moves(next_tiny: Path) -> None:
    async with three(next_tiny, FALLS, {"m3": HALF}) as t:
        events = await t.stack.stream("Hi", model="m")
        if not events.done:  # a reset may swallow the token it follows; then the request may move
            assert [c for c in events.chunks if "error" in c]
            assert t.counts()["m3-next"] == 0
        await t.stack.settled()


async def test_a_lost_model_is_not_asked_and_each_fallback_is_tried_in_order(next_tiny: Path) -> None:
    async with three(next_tiny, FALLS, {"m3-next": [{"status": 500}]}) as t:
        await t.engines["m3"].stop()
        assert (await t.stack.chat("Hi", model="m")).json["model"] == "small"
        assert (await t.stack.chat("Hi", model="m")).json["model"] == "small"
        assert t.counts() == {"m3": 0, "m3-next": 2, "small": 2}
        answer = await t.stack.post("/v1/completions", {"model": "m", "prompt": "Hi", "echo": True, "logprobs": 1})
        assert answer.json["model"] == "small"
        assert answer.json["choices"][0]["text"].startswith("Hi")
        direct = await t.stack.chat("Hi", model="m3")
        assert direct.error["code"] == "engine_unavailable", "a model's own name has no fallback"


async def test_a_canary_that_is_lost_costs_nobody_an_answer(next_tiny: Path) -> None:
    async with three(next_tiny, CANARY) as t:
        await t.engines["m3-next"].stop()
        for i in range(20):
            answer = await t.stack.chat("Hi", model="m", user=f"u-{i}", max_tokens=1)
            assert (answer.status, answer.json["model"]) == (200, "m3")


async def test_a_full_model_falls_and_its_place_comes_back(next_tiny: Path) -> None:
    hang = [{"pieces": ["a", "b"], "fail_after": 1, "fault": "hang"}, {"pieces": ["done"]}]
    async with three(next_tiny, FALLS, {"m3": hang}, {"m3": {"max_in_flight": 1}}) as t:
        async with t.stack.open_stream("Hi", model="m") as first:
            assert first.headers["x-catalejo-model"] == "m3"
            assert (await t.stack.chat("Hi", model="m")).json["model"] == "m3-next"
        await t.stack.settled()
        assert (await t.stack.chat("Hi", model="m")).json["model"] == "m3"


async def test_when_nobody_can_the_first_models_failure_is_told(next_tiny: Path) -> None:
    scripts = {name: [{"status": 500}] for name in ("m3", "m3-next", "small")}
    async with three(next_tiny, FALLS, scripts) as t:
        refused = await t.stack.chat("Hi", model="m")
        assert (refused.status, refused.error["code"]) == (502, "engine_error")
        assert t.counts() == {"m3": 1, "m3-next": 1, "small": 1}, "each once"
        await t.stack.settled()


async def test_a_fallback_that_would_refuse_is_passed_over(next_tiny: Path) -> None:
    per_model = {"m3-next": {"context_length": 10}}
    async with three(next_tiny, FALLS, {"m3": [{"status": 503}]}, per_model) as t:
        assert (await t.stack.chat("Hi", model="m")).json["model"] == "small"
    per_model["small"] = {"context_length": 10}
    async with three(next_tiny, FALLS, {"m3": [{"status": 503}]}, per_model) as t:
        refused = await t.stack.chat("Hi", model="m")
        assert (refused.status, refused.error["code"]) == (503, "overloaded"), "not a limit of a model nobody asked for"


async def test_the_clients_own_mistake_goes_nowhere_else(next_tiny: Path) -> None:
    refusal = {"status": 400, "body": {"error": {"message": "no", "param": None, "code": None, "type": "x"}}}
    async with three(next_tiny, FALLS, {"m3": [refusal]}) as t:
        refused = await t.stack.chat("Hi", model="m")
        assert (refused.status, refused.error["code"]) == (400, "engine_refused")
        assert t.counts() == {"m3": 1, "m3-next": 0, "small": 0}


@pytest.mark.parametrize("fields", [{"logit_bias": {"65": 1}}, {"stop_token_ids": [65]}, {"prompt": [65, 66]}])
async def test_token_ids_go_only_where_they_mean_the_same(next_tiny: Path, fields: dict[str, Any]) -> None:
    body = {"model": "m", "prompt": "Hi", **fields}
    async with three(next_tiny, FALLS, {"m3": [{"status": 500}], "m3-next": [{"status": 500}]}) as t:
        refused = await t.stack.post("/v1/completions", body)
        assert refused.status == 502
        assert t.counts() == {"m3": 1, "m3-next": 1, "small": 0}


async def test_several_prompts_are_answered_by_one_model(next_tiny: Path) -> None:
    script = [{"pieces": ["one"]}, {"status": 500}]
    async with three(next_tiny, FALLS, {"m3": script}) as t:
        answer = await t.stack.post("/v1/completions", {"model": "m", "prompt": ["a", "b", "c"]})
        assert answer.json["model"] == "m3-next"
        assert [c["text"] for c in answer.json["choices"]] == ["I am m3-next."] * 3
        await t.stack.settled()


async def test_pictures_are_prepared_once(next_tiny: Path) -> None:
    content = [{"type": "image_url", "image_url": {"url": data_url(png(64, 64))}}, {"type": "text", "text": "What?"}]
    media = {"cache_bytes": 0}
    async with three(next_tiny, FALLS, {"m3": [{"pieces": ["x"], "fail_after": 0, "fault": "eof"}]}, media=media) as t:
        answer = await t.stack.post(CHAT, body_of(content, {"model": "m"}))
        assert (answer.status, answer.json["model"]) == (200, "m3-next"), answer.raw
        first, second = (t.engines[n].requests()[-1] for n in ("m3", "m3-next"))
        assert [i["hash"] for i in first["items"]] == [i["hash"] for i in second["items"]] != []
        assert await t.stack.metric("catalejo_media_parts_total{") == 1


async def test_tokens_are_charged_for_the_prompt_that_ran(next_tiny: Path) -> None:
    admission = {"default_limits": {"tokens_per_minute": 1_000_000}}
    fault = {"pieces": ["x"], "fail_after": 0, "fault": "eof"}
    async with three(next_tiny, FALLS, {"m3": [fault]}, admission=admission) as t:
        usage = (await t.stack.chat("Hi", model="m")).json["usage"]
        after = await t.stack.chat("Hi", model="m3-next")
        left = int(after.headers["x-ratelimit-remaining-tokens"])
        spent = usage["total_tokens"] + after.json["usage"]["prompt_tokens"]
        assert abs(1_000_000 - left - spent) <= 1_000, "refilled by the clock meanwhile"
        assert 1_000_000 - left <= spent + 1


@pytest.mark.parametrize("where", ["before-headers", "before-first-token"])
async def test_a_client_that_leaves_while_its_request_moves_holds_nothing(next_tiny: Path, where: str) -> None:
    hang = {"fail_after": -1 if where == "before-headers" else 0, "fault": "hang", "pieces": ["x"]}
    sick = {"pieces": ["x"], "fail_after": 0, "fault": "eof"}
    per_model = {name: {"max_in_flight": 2} for name in ("m3", "m3-next")}
    async with three(next_tiny, FALLS, {"m3": [sick], "m3-next": [hang]}, per_model) as t:
        for streamed in (False, True):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(1):
                    await t.stack.chat("Hi", model="m", stream=streamed)
        await t.stack.settled()
        places = t.stack.app.state.services.admission.models
        assert not places.full("m3") and not places.full("m3-next")
        for _ in range(2):  # both places of each came back
            assert places.take("m3-next", "x") is not None
            assert places.take("m3", "x") is not None


async def test_a_storm_with_early_leavers_leaves_every_place_free(next_tiny: Path) -> None:
    routes = [{"name": "m", "weights": {"m3": 1, "m3-next": 1}, "fallbacks": ["small"]}]
    scripts = {
        "m3": [{"status": 500}, {"pieces": ["a"]}, {"pieces": ["x"], "fail_after": 0, "fault": "eof"}],
        "m3-next": [{"status": 503}, {"pieces": ["b"], "delay_ms": 20}, {"fail_after": -1, "fault": "reset"}],
    }
    per_model = {name: {"max_in_flight": 4, "max_queue": 100} for name in ("m3", "m3-next", "small")}
    rng = random.Random(7)
    async with three(next_tiny, routes, scripts, per_model) as t:

        async def one(i: int) -> int:
            async with asyncio.timeout(0.05 if rng.random() < 0.3 else 20):
                return (await t.stack.chat("Hi", model="m", user=f"u{i}", max_tokens=3)).status

        results = await asyncio.gather(*(one(i) for i in range(80)), return_exceptions=True)
        assert {r for r in results if isinstance(r, int)} <= {200, 429, 502, 503}
        assert results.count(200) > 20
        await t.stack.settled()
        places = t.stack.app.state.services.admission.models
        for name in per_model:
            assert [places.take(name, "x") is not None for _ in range(5)] == [True] * 4 + [False], name
