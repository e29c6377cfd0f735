"""Several models behind one gateway: each request meets the checkpoint, the template and the engines of its own model."""

from __future__ import annotations

from pathlib import Path

from tests.api.harness import CHAT, body_of
from tests.api.several import next_tiny, three

__all__ = ["next_tiny"]


async def test_a_request_meets_the_checkpoint_and_the_engines_of_its_model(next_tiny: Path) -> None:
    async with three(next_tiny, per_model={"m3": {"aliases": ["vendor/m3"]}}) as t:
        for name in ("m3", "m3-next", "small"):
            answer = await t.stack.chat("Hi", model=name)
            assert answer.message["content"] == f"I am {name}."
            assert (answer.json["model"], answer.headers["x-catalejo-model"]) == (name, name)
        assert t.counts() == {"m3": 1, "m3-next": 1, "small": 1}
        extra = (await t.stack.post("/tokenize", {"model": "m3", "prompt": "Next!"})).json["tokens"]
        assert t.prompt("m3-next") == extra + t.prompt("m3")
        assert t.prompt("small") != t.prompt("m3")
        alias = await t.stack.chat("Hi", model="vendor/m3")
        assert (alias.json["model"], alias.headers["x-catalejo-model"]) == ("vendor/m3", "m3")
        events = await t.stack.stream("Hi", model="small")
        assert {c["model"] for c in events.chunks} == {"small"}
        unknown = await t.stack.chat("Hi", model="m4")
        assert (unknown.status, unknown.error["code"], unknown.error["param"]) == (404, "model_not_found", "model")
        assert "m3-next" in unknown.error["message"]


async def test_tokens_and_completions_are_the_models_own(next_tiny: Path) -> None:
    async with three(next_tiny) as t:
        text = "A text of some length"
        tiny = (await t.stack.post("/tokenize", {"model": "m3", "prompt": text})).json
        small = (await t.stack.post("/tokenize", {"model": "small", "prompt": text})).json
        assert tiny["tokens"] != small["tokens"] and tiny["max_model_len"] != small["max_model_len"]
        assert (await t.stack.post("/tokenize", {"prompt": text})).json == tiny, "without a model: the first"
        back = await t.stack.post("/detokenize", {"model": "small", "tokens": small["tokens"]})
        assert back.json["prompt"] == text
        for model, ids in (("m3", tiny["tokens"]), ("small", small["tokens"])):
            answer = await t.stack.post("/v1/completions", {"model": model, "prompt": text})
            assert answer.json["model"] == model
            assert t.prompt(model) == ids


async def test_health_is_told_per_model_and_one_that_answers_is_enough(next_tiny: Path) -> None:
    async with three(next_tiny, routing={"health_interval_s": 0.05}) as t:
        assert (await t.stack.get("/ready")).json["models"] == {"m3": "ready", "m3-next": "ready", "small": "ready"}
        await t.engines["m3"].stop()
        while (ready := await t.stack.get("/ready")).json["models"]["m3"] == "ready":
            pass
        assert (ready.status, ready.json["status"]) == (200, "ready")
        assert len(ready.json["engines"]) == 3, "engines of several models have names that differ"
        refused = await t.stack.chat("Hi", model="m3")
        assert (refused.status, refused.error["code"]) == (503, "engine_unavailable")
        assert (await t.stack.chat("Hi", model="small")).status == 200
        for name in ("m3-next", "small"):
            await t.engines[name].stop()
        while (ready := await t.stack.get("/ready")).status == 200:
            pass
        assert ready.json["status"] == "not_ready"


async def test_metrics_tell_models_apart(next_tiny: Path) -> None:
    async with three(next_tiny) as t:
        for name in ("m3", "small", "small"):
            await t.stack.chat("Hi", model=name)
        for name, count in (("m3", 1), ("small", 2)):
            assert await t.stack.metric(f'catalejo_finishes_total{{gen_ai_request_model="{name}"') == count


async def test_a_key_sees_and_uses_only_its_models(next_tiny: Path) -> None:
    tenants = [
        {"name": "all", "api_keys": ["k-all"]},
        {"name": "one", "api_keys": ["k-one"], "models": ["m3"]},
        {"name": "alias", "api_keys": ["k-alias"], "models": ["vendor/m3"]},
        {"name": "none", "api_keys": ["k-none"], "models": []},
    ]
    routes = [{"name": "best", "weights": {"small": 1}}]
    per_model = {"m3": {"aliases": ["vendor/m3"]}}
    async with three(next_tiny, routes, per_model=per_model, admission={"tenants": tenants}) as t:
        seen = {
            "k-all": ["best", "m3", "vendor/m3", "m3-next", "small"],
            "k-one": ["m3", "vendor/m3"],
            "k-alias": ["vendor/m3"],
            "k-none": [],
        }
        for key, names in seen.items():
            headers = {"authorization": f"Bearer {key}"}
            listed = (await t.stack.get("/v1/models", headers=headers)).json["data"]
            assert [m["id"] for m in listed] == names
            for name in seen["k-all"]:
                may = name in names
                one = await t.stack.get(f"/v1/models/{name}", headers=headers)
                assert one.status == (200 if may else 404)
                answer = await t.stack.post(CHAT, body_of("Hi", {"model": name}), headers)
                assert answer.status == (200 if may else 404), name
                tokens = await t.stack.post("/tokenize", {"model": name, "prompt": "Hi"}, headers)
                assert tokens.status == (200 if may else 404)
            nameless = await t.stack.post("/tokenize", {"prompt": "Hi"}, headers)
            assert nameless.status == (200 if names else 404), "the first that the key may use"
        refused = await t.stack.get("/v1/models/small", headers={"authorization": "Bearer k-one"})
        assert refused.error["code"] == "model_not_found"
        assert "m3-next" not in refused.error["message"], "what a key may not use is not told"


async def test_context_lengths_are_per_model(next_tiny: Path) -> None:
    per_model = {"m3": {"context_length": 200}, "small": {"context_length": 100}}
    routes = [{"name": "both", "weights": {"m3": 1, "small": 1}}]
    async with three(next_tiny, routes, per_model=per_model) as t:
        lengths = {m["id"]: m["context_length"] for m in (await t.stack.get("/v1/models")).json["data"]}
        assert (lengths["m3"], lengths["small"], lengths["both"]) == (200, 100, 100)
        refused = await t.stack.post("/v1/completions", {"model": "m3", "prompt": [65] * 200})
        assert refused.error["code"] == "context_length_exceeded" and "200" in refused.error["message"]


async def test_a_model_has_places_of_its_own(next_tiny: Path) -> None:
    hang = [{"pieces": ["a", "b"], "fail_after": 1, "fault": "hang"}, {"pieces": ["done"]}]
    per_model = {"m3": {"max_in_flight": 1, "max_queue": 0}}
    async with three(next_tiny, scripts={"m3": hang}, per_model=per_model) as t:
        async with t.stack.open_stream("Hi", model="m3") as first:
            assert first.status == 200
            full = await t.stack.chat("Hi", model="m3")
            assert (full.status, full.error["code"]) == (429, "queue_full")
            assert int(full.headers["retry-after"]) >= 1
            assert (await t.stack.chat("Hi", model="small")).status == 200
        await t.stack.settled()
        assert (await t.stack.chat("Hi", model="m3")).message["content"] == "done"
