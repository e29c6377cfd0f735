"""The media room's promises as a client of the whole gateway sees them."""

from __future__ import annotations

import asyncio
import io
import json
from pathlib import Path
from typing import Any

import pytest

from tests.api.harness import Stack
from tests.fixtures.media.hostile import Server
from tests.fixtures.media.png import data_url, png

CASES = json.loads((Path(__file__).parents[2] / "fixtures" / "media" / "urls.json").read_text())
NEEDS_RESOLVER = "http://127.0.0.1.nip.io/"
SAY = [{"pieces": ["ok"]}]
PARAM = "messages[0].content[1]"


def with_picture(*urls: str) -> list[dict[str, Any]]:
    pictures = [{"type": "image_url", "image_url": {"url": url}} for url in urls]
    return [{"type": "text", "text": "What is this?"}, *pictures]


def reach(*servers: Server, **fetch: Any) -> dict[str, Any]:
    return {"fetch": {"private_endpoints": [f"127.0.0.1:{s.port}" for s in servers], **fetch}}


async def test_every_url_of_the_case_list_is_answered_as_it_should() -> None:
    async with Stack(SAY) as stack:
        for case in CASES:
            if case["url"] == NEEDS_RESOLVER:
                continue  # test_servers.py, with a resolver of its own
            before = len(stack.engine.requests())
            answer = await stack.chat(with_picture(case["url"]))
            if case["expect"] == "ok":
                assert answer.status == 200, case
                assert len(stack.sent["items"]) == 1
            else:
                assert answer.status == 400 and answer.error["param"].startswith(PARAM), case
                assert len(stack.engine.requests()) == before, "no engine was asked"
                streamed = await stack.chat(with_picture(case["url"]), stream=True)
                assert (streamed.status, streamed.error) == (answer.status, answer.error)
        assert (await stack.chat()).status == 200


async def test_the_same_picture_twice_is_decoded_once_and_its_pixels_travel_once() -> None:
    picture = data_url(png(200, 100))
    async with Stack(SAY) as stack:
        for _ in range(3):
            assert (await stack.chat(with_picture(picture))).status == 200
        assert await stack.metric("catalejo_media_decodes_total") == 1
        assert await stack.metric("catalejo_media_cache_misses_total") == 1
        assert await stack.metric("catalejo_media_cache_hits_total") == 2
        hashes = [request["items"][0]["hash"] for request in stack.engine.requests()]
        assert len(set(hashes)) == 1


async def test_text_and_health_are_answered_while_every_fetch_hangs() -> None:
    async with Server(lambda c: c.until_gone()) as slow:
        media = reach(slow, idle_timeout_s=60, total_timeout_s=60)
        async with Stack(SAY, media=media) as stack:
            url = f"http://127.0.0.1:{slow.port}"
            hanging = [asyncio.create_task(stack.chat(with_picture(f"{url}/{n}"))) for n in range(20)]
            while slow.open_now < 20:
                await asyncio.sleep(0.01)
            assert (await stack.get("/health")).status == 200
            assert (await stack.chat()).status == 200
            assert not any(task.done() for task in hanging)
            for task in hanging:
                task.cancel()
            await asyncio.gather(*hanging, return_exceptions=True)
            while slow.open_now:  # leaving clients end their fetches
                await asyncio.sleep(0.01)
            await stack.settled()


async def test_a_fetch_that_times_out_is_the_clients_error() -> None:
    async with Server(lambda c: c.until_gone()) as slow:
        async with Stack(SAY, media=reach(slow, idle_timeout_s=0.2)) as stack:
            answer = await stack.chat(with_picture(f"http://127.0.0.1:{slow.port}/"))
            assert (answer.status, answer.error["code"]) == (400, "media_fetch_timeout")
            assert answer.error["param"].startswith(PARAM) and "127.0.0.1" not in answer.error["message"]


async def test_uploaded_file_is_used_by_id_until_deleted() -> None:
    import aiohttp

    async with Stack(SAY) as stack:
        form = aiohttp.FormData()
        form.add_field("purpose", "vision")
        form.add_field("file", png(120, 60), filename="shot.png", content_type="image/png")
        stored = (await stack.call("POST", "/v1/files", data=form)).json
        part = {"type": "image_file", "image_file": {"file_id": stored["id"]}}
        answer = await stack.chat([{"type": "text", "text": "Read it."}, part])
        assert answer.status == 200
        by_id = stack.sent["items"][0]["hash"]
        await stack.chat(with_picture(data_url(png(120, 60))))
        assert stack.sent["items"][0]["hash"] == by_id
        assert (await stack.call("DELETE", f"/v1/files/{stored['id']}")).json["deleted"] is True
        answer = await stack.chat([{"type": "text", "text": "Read it."}, part])
        assert (answer.status, answer.error["code"]) == (404, "file_not_found")


@pytest.mark.parametrize("name", ["localhost", "metadata.google.internal", "[::ffff:169.254.169.254]", "2852039166"])
async def test_refusals_do_not_repeat_the_address(name: str) -> None:
    async with Stack(SAY) as stack:
        answer = await stack.chat(with_picture(f"http://{name}/latest/meta-data/iam"))
        assert answer.status == 400
        assert name not in answer.error["message"] and "iam" not in answer.error["message"]


async def test_the_openai_client_uploads_lists_reads_and_deletes() -> None:
    from openai import AsyncOpenAI, NotFoundError

    picture = png(90, 60)
    async with Stack(SAY) as stack:
        async with AsyncOpenAI(base_url=f"{stack.url}/v1", api_key="none", max_retries=0) as client:
            made = await client.files.create(file=("shot.png", picture), purpose="vision")
            assert (made.bytes, made.purpose, made.filename) == (len(picture), "vision", "shot.png")
            assert [f.id async for f in client.files.list()] == [made.id]
            assert (await client.files.retrieve(made.id)).id == made.id
            assert (await client.files.content(made.id)).content == picture
            assert (await client.files.delete(made.id)).deleted
            with pytest.raises(NotFoundError) as caught:
                await client.files.retrieve(made.id)
            assert caught.value.code == "file_not_found"


@pytest.mark.parametrize("size", [300_000, 3_000_000])
async def test_an_upload_above_the_limit_gets_its_refusal_not_a_reset(size: int) -> None:
    import aiohttp

    async with Stack(SAY, media={"files": {"max_file_bytes": 100_000}}) as stack:
        for _ in range(5):
            form = aiohttp.FormData()
            form.add_field("purpose", "vision")
            form.add_field("file", io.BytesIO(bytes(size)), filename="big.png")
            answer = await stack.call("POST", "/v1/files", data=form)
            assert answer.status in (400, 413) and answer.error["param"] == "file"
        assert (await stack.get("/v1/files")).json["data"] == []
