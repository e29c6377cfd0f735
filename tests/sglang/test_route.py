"""The route with a fake SGLang behind it: refusals before the 200, the media store, aborts, the bearer token."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import orjson
import pytest
from starlette.applications import Starlette

from engine import wire
from engine.sglang import server
from engine.sglang.service import Limits, Service
from tests.contract.client import image_item, request, text_ids, without_rows

IMAGE, VIDEO = 500, 501
TOKEN = "route-token"


class Host:
    """Generates the prompt's length as its tokens, one a step; keeps what it was asked."""

    vocab_size, context_length, image_token_id, video_token_id = 512, 1000, IMAGE, VIDEO
    seeds, incremental, priorities = True, True, True

    def __init__(self) -> None:
        self.asked: list[Any] = []
        self.running: set[str] = set()
        self.aborted: list[str] = []
        self.left: list[str] = []
        self.hold = asyncio.Event()
        self.hold.set()
        self.refuse: Exception | None = None
        self.waiting: dict[str, Any] = {}

    async def generate(self, obj: Any) -> AsyncIterator[dict[str, Any]]:
        if self.refuse is not None:
            raise self.refuse
        self.asked.append(obj)
        self.running.add(obj.rid)
        told = self.waiting.pop(obj.rid, None)
        if told is not None:
            told()
        try:
            await self.hold.wait()
            total = obj.sampling_params["max_new_tokens"]
            for step in range(total):
                await asyncio.sleep(0)
                stopped = obj.rid in self.aborted
                finish = {"type": "abort", "message": "x"} if stopped else None
                if step == total - 1:
                    finish = finish or {"type": "length", "length": total}
                meta = {"prompt_tokens": len(obj.input_ids), "cached_tokens": 0, "finish_reason": finish}
                token = len(obj.input_ids)
                if obj.return_logprob:
                    meta["output_token_logprobs"] = [(-0.5, token, None)]
                    meta["output_top_logprobs"] = [[(-0.5, token, None)]]
                yield {"output_ids": [token], "meta_info": meta}
                if finish:
                    return
        except GeneratorExit:
            self.left.append(obj.rid)
            raise
        finally:
            self.running.discard(obj.rid)

    def runs(self, rid: str) -> bool:
        return rid in self.running

    def abort(self, rid: str) -> None:
        self.aborted.append(rid)

    async def model_info(self) -> dict[str, Any]:
        return {"model_path": "/m", "is_generation": True}


class Adapter:
    AFTER_IDS = "after"

    def __init__(self, host: Host) -> None:
        self._host = host

    def request_input(self, prepared: Any, **fields: Any) -> Any:
        return SimpleNamespace(media=prepared, **fields)

    def media_inputs(self, ids: list[int], items: list[Any], image: int, video: int) -> Any:
        return [(item.hash, tuple(rows.shape), rows.dtype) for item, rows in items]

    def on_dispatch(self, rid: str, call: Any) -> Any:
        self._host.waiting[rid] = call
        return lambda: self._host.waiting.pop(rid, None)


class ApiKey:
    """SGLang's own check, added after our routes."""

    def __init__(self, app: Any) -> None:
        self._app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        given = dict(scope["headers"]).get(b"authorization")
        if given == f"Bearer {TOKEN}".encode():
            await self._app(scope, receive, send)
        else:
            await server.reply({"error": "Unauthorized"}, 401)(scope, receive, send)


class Wired:
    def __init__(self, limits: Limits, token: str | None) -> None:
        self.host = Host()
        self.app = Starlette()
        self.service = Service(self.host, Adapter(self.host), limits)
        self.aborts_seen: list[bytes] = []
        routes = server.Routes(self.service)
        self.app.add_route(wire.ROUTE, routes.generate, methods=["POST"])
        self.app.add_route("/model_info", routes.model_info)
        self.app.add_route("/abort_request", self._theirs, methods=["POST"])
        server.outermost(self.app, self.service, token)
        self.app.add_middleware(ApiKey)

    async def _theirs(self, asked: Any) -> Any:
        self.aborts_seen.append(await asked.body())
        return server.reply({})

    async def call(
        self, path: str, body: bytes = b"", token: str | None = TOKEN, leave: asyncio.Event | None = None
    ) -> Any:
        headers = [] if token is None else [(b"authorization", f"Bearer {token}".encode())]
        scope = {
            "type": "http", "method": "POST" if body else "GET", "path": path, "headers": headers,
            "query_string": b"", "http_version": "1.1", "scheme": "http", "server": ("x", 1), "root_path": "",
        }  # fmt: skip
        sent = False
        got: dict[str, Any] = {"body": b""}

        async def receive() -> Any:
            nonlocal sent
            if not sent:
                sent = True
                return {"type": "http.request", "body": body, "more_body": False}
            await (leave or asyncio.Event()).wait()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            if message["type"] == "http.response.start":
                got["status"] = message["status"]
            else:
                got["body"] += message.get("body", b"")

        await self.app(scope, receive, send)
        return SimpleNamespace(status=got.get("status"), body=got["body"], json=lambda: orjson.loads(got["body"]))

    async def generate(self, asked: wire.GenerateRequest, **options: Any) -> Any:
        answer = await self.call(wire.ROUTE, b"".join(wire.encode_request(asked)), **options)
        if answer.status == 200 and options.get("leave") is None:
            reader = wire.ReplyReader()
            answer.replies = reader.feed(answer.body)
            reader.finish()
        return answer


@pytest.fixture
async def wired() -> Wired:
    return Wired(Limits(media_store_bytes=64 << 10, max_body_bytes=256 << 10, keep_alive_s=5), TOKEN)


def with_picture(seed: int = 1) -> dict[str, Any]:
    ids = text_ids(30)
    ids[5:9] = IMAGE
    return {"input_ids": ids, "items": (image_item(5, seed),)}


async def test_text(wired: Wired) -> None:
    answer = await wired.generate(request())
    assert [i for r in answer.replies if isinstance(r, wire.Tokens) for i in r.output_ids] == [12] * 8
    assert isinstance(answer.replies[-1], wire.Done)
    assert not wired.service._streams
    assert wired.service._open_choices == 0


async def test_sampling_reaches_sglang_in_its_words(wired: Wired) -> None:
    grammar = wire.Grammar("regex", "(a|b)", after_ids=(7,))
    sampling = {"max_new_tokens": 5000, "temperature": 0.5, "sampling_seed": 9, "stop_token_ids": [3]}
    call = request(
        sampling=sampling, grammar=grammar, n=2, logprobs=3, cache_salt="t", priority=4, traceparent="00-1-2-3"
    )
    assert (await wired.generate(call)).status == 200
    one, two = wired.host.asked
    assert one.sampling_params["max_new_tokens"] == 1000 - 12 - 1
    assert one.sampling_params["regex"] == "(a|b)"
    assert one.sampling_params["custom_params"] == {"after": [7]}
    assert one.sampling_params["sampling_seed"] == 9 != two.sampling_params["sampling_seed"]
    assert (one.return_logprob, one.top_logprobs_num, one.cache_salt, one.priority) == (True, 3, "t", 4)
    assert one.external_trace_header == {"traceparent": "00-1-2-3"}
    assert one.rid != two.rid


async def test_pictures_once_then_by_hash(wired: Wired) -> None:
    fields = with_picture()
    assert (await wired.generate(request(**fields))).status == 200
    again = {**fields, "items": tuple(without_rows(i) for i in fields["items"])}
    assert (await wired.generate(request(**again))).status == 200
    assert wired.host.asked[0].media == wired.host.asked[1].media
    assert wired.host.asked[0].media[0][:2] == (fields["items"][0].hash, (16, 588))


async def test_unknown_hash_is_409_before_anything_runs(wired: Wired) -> None:
    fields = with_picture()
    answer = await wired.generate(request(**{**fields, "items": tuple(without_rows(i) for i in fields["items"])}))
    assert answer.status == 409
    assert answer.json()["missing"] == [fields["items"][0].hash]
    assert not wired.host.asked


async def test_rows_are_pinned_while_a_request_runs(wired: Wired) -> None:
    wired.host.hold.clear()
    running = asyncio.create_task(wired.generate(request(**with_picture(0))))
    while not wired.host.asked:
        await asyncio.sleep(0)
    held = with_picture(0)["items"][0].hash
    for seed in range(1, 12):
        other = with_picture(seed)
        wired.service.store.pin(other["items"])
        wired.service.store.unpin(other["items"])
    assert wired.service.store.holds(held)
    wired.host.hold.set()
    assert (await running).status == 200
    assert not wired.service.store._pins


@pytest.mark.parametrize(
    ("fields", "code", "status"),
    [
        ({"input_ids": text_ids(1000)}, "context_length_exceeded", 400),
        ({"input_ids": text_ids(4) + 600}, "bad_request", 400),
        ({"sampling": {"stop_token_ids": [512]}}, "bad_sampling", 400),
        ({"sampling": {"logit_bias": {"512": 1}}}, "bad_sampling", 400),
        ({"grammar": wire.Grammar("json_schema", "{not json")}, "bad_grammar", 400),
        ({"grammar": wire.Grammar("regex", "(")}, "bad_grammar", 400),
        ({"items": (image_item(5, 1),)}, "bad_item", 400),
    ],
)
async def test_refusals(wired: Wired, fields: dict[str, Any], code: str, status: int) -> None:
    answer = await wired.generate(request(**fields))
    assert (answer.status, answer.json()["error"]["code"]) == (status, code)
    assert not wired.host.asked
    assert wired.service._open_choices == 0


async def test_rows_that_are_not_their_hash(wired: Wired) -> None:
    fields = with_picture()
    item = fields["items"][0]
    lying = wire.Item(item.modality, "0" * 64, item.rows, item.t_dup, item.grid, item.ranges, item.data)
    answer = await wired.generate(request(**{**fields, "items": (lying,)}))
    assert (answer.status, answer.json()["error"]["code"]) == (400, "hash_mismatch")


async def test_sglangs_own_refusal_is_a_400(wired: Wired) -> None:
    wired.host.refuse = ValueError("The input is longer than the model's context length")
    answer = await wired.generate(request(**with_picture()))
    assert answer.status == 400
    assert "context length" in answer.json()["error"]["message"]
    assert not wired.service._streams
    assert not wired.service.store._pins
    assert wired.service._open_choices == 0


async def test_a_body_over_the_cap(wired: Wired) -> None:
    answer = await wired.call(wire.ROUTE, bytes(300 << 10))
    assert (answer.status, answer.json()["error"]["code"]) == (413, "body_too_large")


async def test_the_same_id_twice_at_once(wired: Wired) -> None:
    wired.host.hold.clear()
    call = request()
    first = asyncio.create_task(wired.generate(call))
    while not wired.host.asked:
        await asyncio.sleep(0)
    answer = await wired.generate(call)
    assert (answer.status, answer.json()["error"]["code"]) == (400, "duplicate_rid")
    wired.host.hold.set()
    assert (await first).status == 200


async def test_a_client_that_leaves_ends_the_generation(wired: Wired) -> None:
    wired.host.hold.clear()
    leave = asyncio.Event()
    call = request(**with_picture())
    running = asyncio.create_task(wired.generate(call, leave=leave))
    while not wired.host.asked:
        await asyncio.sleep(0)
    leave.set()
    await running
    for _ in range(5):
        await asyncio.sleep(0)
    assert not wired.host.running
    assert not wired.service._streams
    assert not wired.service.store._pins


async def test_abort_by_id_reaches_every_choice_and_sglang(wired: Wired) -> None:
    wired.host.hold.clear()
    call = request(n=2)
    running = asyncio.create_task(wired.generate(call))
    while not wired.host.asked:
        await asyncio.sleep(0)
    body = orjson.dumps({"rid": call.rid})
    assert (await wired.call("/abort_request", body)).status == 200
    assert wired.aborts_seen == [body]
    wired.host.hold.set()
    answer = await running
    assert [r.type for r in answer.replies if isinstance(r, wire.Finish)] == ["abort", "abort"]


@pytest.mark.parametrize("token", [None, "wrong"])
async def test_without_the_token_nothing(wired: Wired, token: str | None) -> None:
    answer = await wired.generate(request(), token=token)
    assert (answer.status, answer.json()["error"]["code"]) == (401, "unauthorized")
    await wired.call("/abort_request", b'{"rid": "x"}', token=token)
    assert not wired.host.aborted


async def test_model_info_adds_what_the_gateway_looks_for(wired: Wired) -> None:
    body = (await wired.call("/model_info")).json()
    assert body["model_path"] == "/m"
    assert body["catalejo"] == {"version": 1, "engine": "sglang", "seeds": True, "priorities": True}


async def test_an_engine_without_pictures(wired: Wired) -> None:
    wired.host.image_token_id = None  # type: ignore[assignment]
    answer = await wired.generate(request(**with_picture()))
    assert (answer.status, answer.json()["error"]["code"]) == (400, "bad_item")


async def test_too_many_choices(wired: Wired) -> None:
    wired.service.limits = Limits(max_choices=2)
    answer = await wired.generate(request(n=3))
    assert (answer.status, answer.json()["error"]["code"]) == (503, "queue_full")


def test_limits_from_the_environment() -> None:
    assert Limits.of({"CATALEJO_MEDIA_STORE_BYTES": "7"}).media_store_bytes == 7
    with pytest.raises(SystemExit, match="CATALEJO_KEEP_ALIVE_S"):
        Limits.of({"CATALEJO_KEEP_ALIVE_S": "long"})
