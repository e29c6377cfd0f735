"""The routes around generation: health, model info, loads, metrics, the bearer token."""

from __future__ import annotations

import pytest

from engine import wire
from tests.contract.client import EngineClient, request
from tests.contract.targets import Target


async def test_health(engine: EngineClient) -> None:
    status, _ = await engine.get("/health")
    assert status == 200


async def test_model_info_names_the_model(engine: EngineClient) -> None:
    status, body = await engine.get("/model_info")
    assert status == 200
    assert isinstance(body["model_path"], str)
    assert body["is_generation"] is True


async def test_loads_say_what_runs_and_waits(engine: EngineClient) -> None:
    status, body = await engine.get("/v1/loads")
    assert status == 200
    assert body["loads"]
    for one in body["loads"]:
        assert one["num_running_reqs"] >= 0
        assert one["num_waiting_reqs"] >= 0
        assert 0 <= one["token_usage"] <= 1


async def test_metrics_are_prometheus_text(engine: EngineClient) -> None:
    status, text = await engine.get("/metrics")
    assert status == 200
    assert "# TYPE" in text


@pytest.mark.parametrize("given", [{}, {"authorization": "Bearer wrong"}, {"authorization": "Basic eDp5"}])
async def test_without_the_right_token_nothing_is_generated(
    target: Target, engine: EngineClient, given: dict[str, str]
) -> None:
    if target.token is None:
        pytest.skip("this engine has no bearer token configured")
    answer = await engine.send(b"".join(wire.encode_request(request())), headers=given)
    assert answer.status == 401
    assert answer.error["message"]


async def test_health_needs_no_token(target: Target, engine: EngineClient) -> None:
    async with engine.session.get(target.url + "/health") as response:
        assert response.status == 200
