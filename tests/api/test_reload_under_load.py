"""Names, weights, engines and limits change many times while requests run: no request notices."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from gateway.config import ConfigError, Settings
from gateway.reload import Reloader, differences, merged, reloadable
from tests.api.several import next_tiny, three
from tests.mock_engine import MockEngine

__all__ = ["next_tiny"]


async def test_no_request_notices_twenty_reloads(next_tiny: Path) -> None:
    slow = [{"pieces": [str(i) for i in range(8)], "delay_ms": 10}]
    routes = [{"name": "m", "weights": {"m3": 1}}]
    async with three(next_tiny, routes, {"m3": slow, "small": slow}) as t, MockEngine(next_tiny, slow) as second:
        services = t.stack.app.state.services
        start: Settings = services.settings

        def changed(turn: int) -> Settings:
            models = [m.model_dump() for m in start.models]
            if turn % 2:
                models[0]["engines"] = [{"url": second.url, "name": "second"}]
                models[0]["max_in_flight"] = 5
            weights = {"m3": 1.0, "small": float(turn % 3)}
            return Settings.model_validate(
                {
                    **start.model_dump(exclude={"models", "routes", "admission"}, exclude_unset=True),
                    "models": models,
                    "routes": [{"name": "m", "weights": weights, "aliases": [f"turn-{turn}"]}],
                    "admission": {"max_in_flight": 3 + turn % 5, "max_queue": 1000},
                }
            )

        async def client(number: int) -> None:
            for turn in range(6):
                events = await t.stack.stream("Hi", model="m", user=f"u{number}-{turn}")
                assert events.done and events.text() == "01234567"

        async def operator() -> None:
            for turn in range(20):
                reloader = Reloader(lambda turn=turn: changed(turn), services)
                assert await reloader.reload()
                await asyncio.sleep(0.02)

        await asyncio.gather(operator(), *(client(n) for n in range(12)))
        assert len(second.requests()) + sum(t.counts().values()) == 12 * 6, "each went to one engine, once"
        await t.stack.settled()
        assert (await t.stack.chat("Hi", model="turn-19", max_tokens=1)).status == 200
        assert (await t.stack.chat("Hi", model="turn-18")).status == 404


async def test_a_reload_that_fails_half_way_takes_everything_back(next_tiny: Path) -> None:
    """The second model's engines cannot be used: the first one's are as before, and so are the names."""
    async with three(next_tiny) as t:
        services = t.stack.app.state.services
        models = [m.model_dump() for m in services.settings.models]
        models[0]["engines"] = [{"url": "http://127.0.0.1:9"}]
        models[1]["engines"] = [{"url": "https://127.0.0.1:9", "tls": {"ca": "/nowhere.pem"}}]
        models[2]["aliases"] = ["tiny-one"]
        values = services.settings.model_dump(exclude={"models"}, exclude_unset=True)
        new = Settings.model_validate({**values, "models": models})
        assert not await Reloader(lambda: new, services).reload()
        for name in ("m3", "m3-next", "small"):
            assert (await t.stack.chat("Hi", model=name, max_tokens=1)).status == 200
        assert (await t.stack.chat("Hi", model="tiny-one")).status == 404


async def test_a_reader_that_breaks_is_a_refusal_too(next_tiny: Path) -> None:
    async with three(next_tiny) as t:
        for failure in (ConfigError("a: wrong\nb: wrong"), RuntimeError("bug")):

            def read(failure: Exception = failure) -> Settings:
                raise failure

            assert not await Reloader(read, t.stack.app.state.services).reload()
        assert await t.stack.metric('catalejo_config_reloads_total{result="refused"}') == 2
        assert (await t.stack.chat("Hi", model="m3", max_tokens=1)).status == 200


TWO = {"models": [{"name": "a.1", "model_path": "/a"}, {"name": "b", "model_path": "/b"}]}


@pytest.mark.parametrize(
    ("change", "told", "now"),
    [
        ({"port": 1}, ["port"], False),
        ({"routes": [{"name": "r", "weights": {"b": 1}}]}, ["routes"], True),
        ({"admission": {"max_queue": 3}}, ["admission.max_queue"], True),
        ({"admission": {"protect_metrics": True}}, ["admission.protect_metrics"], False),
        ({"admission": {"default_limits": {"max_in_flight": 3}}}, ["admission.default_limits.max_in_flight"], True),
        ({"engine_token": "t"}, ["engine_token"], False),
        ({"observability": {"log_level": "debug"}}, ["observability.log_level"], True),
        ({"observability": {"access_log": False}}, ["observability.access_log"], False),
        ({"models": [{**TWO["models"][0], "aliases": ["x"]}, TWO["models"][1]]}, ["models.a.1.aliases"], True),
        (
            {"models": [{**TWO["models"][0], "context_length": 9}, TWO["models"][1]]},
            ["models.a.1.context_length"],
            False,
        ),
        ({"models": [TWO["models"][0]]}, ["models.b"], False),
        ({"models": [*TWO["models"], {"name": "c", "model_path": "/c"}]}, ["models.c"], False),
        ({"models": TWO["models"][::-1]}, [], True),
    ],
    ids=lambda v: str(v)[:40],
)
def test_differences_are_named_and_sorted_out(change: dict[str, object], told: list[str], now: bool) -> None:
    old, new = Settings.model_validate(TWO), Settings.model_validate({**TWO, **change})
    found = list(differences(old, new))
    assert [".".join(p) for p in found] == told
    assert all(reloadable(p) == now for p in found)
    left = [".".join(p) for p in differences(merged(old, new), new)]
    assert left == ([] if now else told), "what is applied is no difference any more"
