"""Which key may do what, what a browser may read, and what the second port serves instead of the first."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from tests.api.harness import CHAT, MODEL, Answer, Stack, body_of

TENANTS = [
    {"name": "app", "api_keys": ["key-app"]},
    {"name": "ops", "api_keys": ["key-ops"], "scopes": ["admin", "metrics"]},
    {"name": "all", "api_keys": ["key-all"], "scopes": ["inference", "admin", "metrics"]},
]
ORIGIN = {"origin": "https://app.example"}


def key(name: str) -> dict[str, str]:
    return {"authorization": f"Bearer key-{name}"}


async def test_a_key_may_what_its_scopes_say_and_nothing_else() -> None:
    async with Stack(admission={"tenants": TENANTS}) as s:

        async def status(name: str, method: str, path: str) -> tuple[int, str | None]:
            body = {"json": body_of("Hi", {"max_tokens": 1})} if method == "POST" and path == CHAT else {}
            answer = await s.call(method, path, headers=key(name), **body)
            return answer.status, None if answer.status == 200 else answer.error["code"]

        denied = (403, "insufficient_permissions")
        for name, may in {"app": "inference", "ops": "admin metrics", "all": "inference admin metrics"}.items():
            assert await status(name, "POST", CHAT) == ((200, None) if "inference" in may else denied)
            assert await status(name, "GET", "/v1/models") == ((200, None) if "inference" in may else denied)
            assert await status(name, "GET", "/v1/files") == ((200, None) if "inference" in may else denied)
            assert await status(name, "GET", "/metrics") == ((200, None) if "metrics" in may else denied)
            assert await status(name, "GET", "/admin/none") == ((404, "not_found") if "admin" in may else denied)
        for path in ("/metrics", "/admin/none", "/v1/models"):
            assert (await s.get(path)).error["code"] == "invalid_api_key"
        for path in ("/health", "/ready", "/docs"):
            assert (await s.get(path)).status == 200


async def test_metrics_can_be_left_open_beside_keys() -> None:
    async with Stack(admission={"tenants": TENANTS, "protect_metrics": False}) as s:
        assert (await s.get("/metrics")).status == 200
        assert (await s.get("/v1/models")).error["code"] == "invalid_api_key"


async def test_without_keys_nobody_is_an_administrator(stack: Stack) -> None:
    for path in ("/admin", "/admin/engines/engine-0/drain"):
        refused = await stack.call("POST", path)
        assert (refused.status, refused.error["code"]) == (403, "insufficient_permissions")
    assert (await stack.get("/metrics")).status == 200


@pytest.mark.parametrize("scopes", [[], ["everything"]])
def test_unknown_scopes_are_named(scopes: list[str]) -> None:
    from gateway.admission.settings import AdmissionSettings

    with pytest.raises(ValueError, match="scopes"):
        AdmissionSettings.model_validate({"tenants": [{"name": "a", "api_keys": ["k"], "scopes": scopes}]})


async def test_a_browser_can_read_refusals_and_limits() -> None:
    """A 401 without CORS headers is a network error to the page, which cannot tell its user what is wrong."""
    limits = {"requests_per_minute": 1}
    async with Stack(cors_origins=[ORIGIN["origin"]], admission={"api_keys": ["k"], "default_limits": limits}) as s:
        answers: list[Answer] = [await s.get("/v1/models", headers=ORIGIN), await s.get("/v1/none", headers=ORIGIN)]
        body = body_of("Hi", {"max_tokens": 1})
        for _ in range(2):
            answers.append(await s.post(CHAT, body, {**ORIGIN, "authorization": "Bearer k"}))
        assert [a.status for a in answers] == [401, 401, 200, 429]
        for answer in answers:
            assert answer.headers["access-control-allow-origin"] == ORIGIN["origin"]
            exposed = answer.headers["access-control-expose-headers"]
            assert "retry-after" in exposed and "x-ratelimit-remaining-tokens" in exposed
        stranger = await s.get("/v1/models", headers={"origin": "https://evil.example"})
        assert "access-control-allow-origin" not in stranger.headers


@pytest.mark.parametrize("origin", ["app.example", "https://app.example/", "https://a b"])
def test_an_origin_that_can_never_match_is_named(origin: str) -> None:
    from gateway.config import ConfigError, load

    with pytest.raises(ConfigError, match="cors_origins"):
        load(model_path="/m", cors_origins=[origin])


async def second_port(s: Stack, path: str) -> Answer:
    port = s.app.state.operations_sockets[0].getsockname()[1]
    async with s.session.get(f"http://127.0.0.1:{port}{path}") as response:
        return Answer(response.status, dict(response.headers), await response.read())


@pytest.mark.parametrize("debug", [False, True])
async def test_the_second_port_serves_what_operators_ask_and_the_first_no_longer(debug: bool) -> None:
    async with Stack(operations={"port": 0, "debug": debug}, admission={"tenants": TENANTS}) as s:
        assert (await second_port(s, "/health")).json == {"status": "ok"}
        assert (await second_port(s, "/ready")).json["status"] == "ready"
        assert b"catalejo_http_requests_total" in (await second_port(s, "/metrics")).raw
        for path in ("/v1/models", CHAT, "/docs", "/openapi.json"):
            assert (await second_port(s, path)).error["code"] == "not_found"
        for path in ("/metrics", "/debug/tasks", "/debug/stacks", "/debug/loop"):
            assert (await s.get(path, headers=key("all"))).status in (403, 404)
        assert (await s.get("/health")).status == 200
        tasks, stacks = await second_port(s, "/debug/tasks"), await second_port(s, "/debug/stacks")
        if debug:
            assert b"engine health: " in tasks.raw and b"router.py:" in tasks.raw
            assert b"MainThread" in stacks.raw and b"in stacks" in stacks.raw
        else:
            assert (tasks.status, stacks.status) == (404, 404)


async def test_the_loops_stalls_are_told_while_they_happen() -> None:
    async with Stack(operations={"port": 0, "debug": True}) as s:
        told = asyncio.create_task(second_port(s, "/debug/loop?seconds=0.3"))
        while not told.done():
            time.sleep(0.05)
            await asyncio.sleep(0.001)
        report = (await told).json
        assert report["seconds"] == 0.3 and report["timers"] > 1
        assert report["longest_ms"][0] > 40 and report["longest_ms"] == sorted(report["longest_ms"], reverse=True)
        for wrong in ("0", "61", "-1", "x", "nan", "1e1", ""):
            answer = await second_port(s, f"/debug/loop?seconds={wrong}")
            assert (answer.status, answer.error["param"]) == (400, "seconds")


async def test_pictures_per_minute_are_a_limit_of_the_tenant(picture: dict[str, Any]) -> None:
    async with Stack(admission={"default_limits": {"media_per_minute": 3}}) as s:
        two = [picture, picture, {"type": "text", "text": "Hi"}]
        assert (await s.chat(two, max_tokens=1)).status == 200
        refused = await s.chat(two, max_tokens=1)
        assert (refused.status, refused.error["code"]) == (429, "rate_limit_exceeded")
        assert "2 pictures and videos" in refused.error["message"] and 1 <= int(refused.headers["retry-after"]) <= 120
        assert (await s.chat(two[1:], max_tokens=1)).status == 200
        assert (await s.chat("only text", model=MODEL, max_tokens=1)).status == 200


@pytest.fixture
def picture() -> dict[str, Any]:
    from base64 import b64encode

    from tests.fixtures.media.png import png

    return {"type": "image_url", "image_url": {"url": "data:image/png;base64," + b64encode(png(56, 56)).decode()}}
