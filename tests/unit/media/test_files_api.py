"""/v1/files through a real application: shapes, bounds, tenants, expiry, and nothing left behind."""

from __future__ import annotations

import asyncio
import importlib.util
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import JSONResponse

from gateway.api.files.router import create_router
from gateway.errors import ApiError
from gateway.media.files import FileStore
from gateway.media.metrics import MediaMetrics
from gateway.media.problems import MediaProblem
from gateway.media.settings import FileSettings
from tests.fixtures.media.png import png

GIF = b"GIF89a"
FORM_B = {"content-type": "multipart/form-data; boundary=b"}


class Clock:
    def __init__(self) -> None:
        self.now = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now


class Staying:
    """The connection of a client that does not leave."""

    gone = False

    def watch(self, told: object) -> None: ...


@asynccontextmanager
async def running(clock: Clock | None = None, **changes: Any) -> AsyncIterator[tuple[httpx.AsyncClient, FileStore]]:
    store = FileStore(FileSettings(**changes), MediaMetrics(), clock or Clock())
    await store.start()
    app = FastAPI()
    app.include_router(create_router(lambda _: store, lambda r: r.headers.get("x-tenant", "default")))

    async def refuse(_: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, ApiError)
        return JSONResponse(error.body(), error.status, dict(error.headers))

    app.add_exception_handler(ApiError, refuse)

    async def served(scope: Any, receive: Any, send: Any) -> None:
        await app({**scope, "extensions": {"catalejo.connection": Staying()}}, receive, send)

    async with httpx.AsyncClient(transport=httpx.ASGITransport(served), base_url="http://gateway") as client:
        yield client, store
    await store.close()


def form(data: bytes = b"", purpose: str | None = "vision", name: str = "shot.png", **more: str) -> dict[str, Any]:
    """`data` after a GIF's first bytes, unless it is a picture itself."""
    fields = {} if purpose is None else {"purpose": purpose}
    data = data if data.startswith(b"\x89PNG") else GIF + data
    return {"files": {"file": (name, data, "text/html")}, "data": fields | more}


def raw_file(data: bytes) -> dict[str, Any]:
    return {"files": {"file": ("shot.png", data, "image/png")}, "data": {"purpose": "vision"}}


@pytest.fixture(params=["local", "folder", "memory://"])
def location(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return str(tmp_path / "store") if request.param == "folder" else str(request.param)


async def test_upload_list_get_content_delete(location: str) -> None:
    picture = png(300, 200)
    async with running(location=location) as (client, store):
        made = (await client.post("/v1/files", **form(picture))).json()
        assert made["object"] == "file" and made["bytes"] == len(picture) and made["purpose"] == "vision"
        assert made["filename"] == "shot.png" and made["expires_at"] - made["created_at"] == 86_400
        assert (await client.get(f"/v1/files/{made['id']}")).json() == made
        listed = (await client.get("/v1/files")).json()
        assert listed["data"] == [made] and listed["has_more"] is False and listed["first_id"] == made["id"]
        content = await client.get(f"/v1/files/{made['id']}/content")
        assert content.content == picture == await store.read("default", made["id"], 1 << 20)
        assert content.headers["content-type"] == "application/octet-stream", "never the type that was claimed"
        assert content.headers["x-content-type-options"] == "nosniff"
        gone = (await client.delete(f"/v1/files/{made['id']}")).json()
        assert gone == {"id": made["id"], "object": "file", "deleted": True}
        for path in ("", "/content"):
            assert (await client.get(f"/v1/files/{made['id']}{path}")).status_code == 404
        assert (await client.get("/v1/files")).json()["data"] == []


async def test_another_tenants_file_does_not_exist() -> None:
    async with running() as (client, store):
        made = (await client.post("/v1/files", **form(b"x"), headers={"x-tenant": "a"})).json()
        other = {"x-tenant": "b"}
        for call in (client.get, client.delete):
            answer = await call(f"/v1/files/{made['id']}", headers=other)
            assert answer.status_code == 404 and answer.json()["error"]["code"] == "file_not_found"
        assert (await client.get("/v1/files", headers=other)).json()["data"] == []
        with pytest.raises(MediaProblem):
            await store.read("b", made["id"], 100)
        assert await store.read("a", made["id"], 100) == GIF + b"x"


@pytest.mark.parametrize("file_id", ["..", "file-xyz", "../../etc/passwd", "file-" + "0" * 31, "file-" + "A" * 32])
async def test_ids_that_cannot_be_are_not_found(file_id: str) -> None:
    async with running() as (_, store):
        with pytest.raises(MediaProblem) as caught:
            await store.get("default", file_id)
        assert caught.value.code == "file_not_found"


async def test_files_expire_and_are_swept() -> None:
    clock = Clock()
    async with running(clock, ttl_s=100) as (client, store):
        short = (await client.post("/v1/files", **form(b"1", **{"expires_after[seconds]": "10"}))).json()
        long = (await client.post("/v1/files", **form(b"2", **{"expires_after[seconds]": "2592000"}))).json()
        assert long["expires_at"] - long["created_at"] == 100, "a client can shorten a life, not lengthen it"
        clock.now += 11
        assert (await client.get(f"/v1/files/{short['id']}")).status_code == 404
        assert (await client.get(f"/v1/files/{long['id']}")).status_code == 200
        assert await store.sweep() == 0
        clock.now += 100
        assert await store.sweep() == 1
        assert (await client.get("/v1/files")).json()["data"] == []


@pytest.mark.parametrize(
    ("call", "status", "code", "param"),
    [
        (form(b"x", purpose=None), 400, "missing_required_parameter", "purpose"),
        (form(b"x", purpose="assistants"), 400, "invalid_value", "purpose"),
        ({"files": {"other": b"x"}, "data": {"purpose": "vision"}}, 400, "missing_required_parameter", "file"),
        ({"files": [("file", b"x"), ("file", b"y")], "data": {"purpose": "vision"}}, 400, "invalid_value", "file"),
        (form(b"x", **{"expires_after[seconds]": "soon"}), 400, "invalid_value", "expires_after[seconds]"),
        (raw_file(b""), 400, "media_unsupported_format", "file"),
        (raw_file(b"hello, I am text"), 400, "media_unsupported_format", "file"),
        (raw_file(b"%PDF-1.7 "), 400, "media_unsupported_format", "file"),
        (raw_file(b"<svg xmlns='http://www.w3.org/2000/svg'/>"), 400, "media_unsupported_format", "file"),
        (form(b"x", junk="y" * 5000), 400, "string_above_max_length", "junk"),
        (form(b"x" * 200_000), 400, "media_too_large", "file"),
        (form(b"x" * 500_000), 413, "request_too_large", "file"),
        ({"json": {"file": "x"}}, 415, "unsupported_media_type", None),
        ({"content": b"--b\r\nnonsense", "headers": FORM_B}, 400, "invalid_value", "file"),
        ({"content": b"", "headers": FORM_B}, 400, "invalid_value", "file"),
        ({"content": b"", "headers": {"content-type": "multipart/form-data"}}, 415, "unsupported_media_type", None),
    ],
)  # fmt: skip
async def test_wrong_uploads_are_refused_and_leave_nothing(
    call: Any, status: int, code: str, param: str | None
) -> None:
    async with running(max_file_bytes=100_000) as (client, store):
        answer = await client.post("/v1/files", **call)
        error = answer.json()["error"]
        assert (answer.status_code, error["code"], error["param"]) == (status, code, param)
        assert await store.listing("default") == []
        assert store._uploading == {}


async def test_a_tenants_share_is_bounded_in_files_and_bytes() -> None:
    async with running(max_files_per_tenant=2, max_bytes_per_tenant=1000) as (client, _):
        for size in (600, 300):
            assert (await client.post("/v1/files", **form(b"x" * size))).status_code == 200
        answer = await client.post("/v1/files", **form(b"x"))
        assert answer.json()["error"]["code"] == "media_limit_exceeded" and "2" in answer.json()["error"]["message"]
        assert (await client.post("/v1/files", **form(b"x" * 900), headers={"x-tenant": "b"})).status_code == 200
        answer = await client.post("/v1/files", **form(b"x" * 101), headers={"x-tenant": "b"})
        assert answer.json()["error"]["code"] == "media_too_large"


async def test_pages_of_the_list() -> None:
    clock = Clock()
    async with running(clock) as (client, _):
        ids = []
        for number in range(5):
            clock.now += 1
            ids.insert(0, (await client.post("/v1/files", **form(bytes([number])))).json()["id"])
        first = (await client.get("/v1/files?limit=2")).json()
        assert [f["id"] for f in first["data"]] == ids[:2] and first["has_more"] is True
        rest = (await client.get(f"/v1/files?limit=3&after={first['last_id']}")).json()
        assert [f["id"] for f in rest["data"]] == ids[2:] and rest["has_more"] is False
        assert (await client.get("/v1/files?purpose=user_data")).json()["data"] == []
        for wrong in ("0", "10001", "-1", "x", "", "１", "9" * 5000):
            assert (await client.get("/v1/files", params={"limit": wrong})).status_code == 400


async def test_the_list_comes_in_the_asked_order_and_no_third_one() -> None:
    clock = Clock()
    async with running(clock) as (client, _):
        ids = []
        for _ in range(3):
            clock.now += 10
            files = {"file": ("a.png", png(8, 8)), "purpose": (None, "vision")}
            ids.append((await client.post("/v1/files", files=files)).json()["id"])
        for query, wanted in (("", ids[::-1]), ("?order=desc", ids[::-1]), ("?order=asc", ids)):
            assert [f["id"] for f in (await client.get(f"/v1/files{query}")).json()["data"]] == wanted
        page = (await client.get(f"/v1/files?order=asc&after={ids[0]}&limit=1")).json()
        assert [f["id"] for f in page["data"]] == [ids[1]] and page["has_more"]
        for wrong in ("foo", "", "ASC"):
            refused = await client.get(f"/v1/files?order={wrong}")
            assert (refused.status_code, refused.json()["error"]["param"]) == (400, "order")


async def test_every_cut_of_the_body_gives_the_same_file() -> None:
    from gateway.api.files.multipart import read_form

    boundary, data = "xyz", b"\r\n--xy\r\n--xyy-not\r\n" + bytes(range(256))
    head = (
        f'--{boundary}\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nvision\r\n--{boundary}\r\n'
        'Content-Type: image/png\r\nContent-Disposition: form-data; name="file"; filename="a/b\\\\c.png"\r\n\r\n'
    )
    body = head.encode() + data + f"\r\n--{boundary}--\r\n".encode()
    for step in (*range(1, 40), len(body)):
        got = bytearray()

        async def sink(chunk: bytes, got: bytearray = got) -> None:
            got.extend(chunk)

        async def stream(step: int = step) -> AsyncIterator[bytes]:
            for start in range(0, len(body), step):
                yield body[start : start + step]

        found = await read_form(stream(), f"multipart/form-data; boundary={boundary}", sink, 1 << 20)
        assert bytes(got) == data
        assert found.fields == {"purpose": "vision"} and found.filename == "c.png"


async def test_uploads_at_once_are_bounded_per_tenant_too_and_places_come_back() -> None:
    async with running(uploads_at_once=6) as (_, store):
        uploads = [await store.begin("a") for _ in range(3)]
        with pytest.raises(MediaProblem) as caught:
            await store.begin("a")
        assert caught.value.at("file").status == 429
        uploads += [await store.begin(f"t{n}") for n in range(3)]
        with pytest.raises(MediaProblem) as caught:
            await store.begin("late")
        assert caught.value.at("file").status == 503
        for upload in uploads:
            store.end(upload)
        store.end(await store.begin("late"))
        assert store._uploading == {}


async def test_a_slow_upload_gives_its_place_back() -> None:
    async def trickle() -> AsyncIterator[bytes]:
        yield b"--b\r\n"
        await asyncio.sleep(30)

    async with running(upload_timeout_s=0.1) as (client, store):
        answer = await client.post("/v1/files", content=trickle(), headers=FORM_B)
        assert (answer.status_code, answer.json()["error"]["code"]) == (408, "request_timeout")
        assert answer.headers["connection"] == "close" and store._uploading == {}


@pytest.mark.parametrize("location", ["nosuchprotocol://x", "s3://bucket/prefix"])
async def test_a_store_that_cannot_be_opened_stops_the_start_and_names_the_setting(location: str) -> None:
    if location.startswith("s3") and importlib.util.find_spec("s3fs"):
        pytest.skip("s3fs is installed here")
    store = FileStore(FileSettings(location=location), MediaMetrics())
    with pytest.raises(ValueError, match=r"media\.files\.location"):
        await store.start()
    await store.close()
