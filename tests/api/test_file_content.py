"""The content of a large stored file is read as its client takes it, and a client that takes nothing of it is dropped."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from io import BytesIO

import aiohttp
import pytest

from gateway.media.files import FileStore
from tests.api.harness import Stack
from tests.api.test_slow_readers import begin, connect, dropped, rest

DATA = b"GIF89a" + bytes(range(256)) * (96 << 10)
"""24 MiB: far more than the buffers on the way hold."""


async def upload(stack: Stack) -> bytes:
    """Returns the request for its content."""
    form = aiohttp.FormData({"purpose": "vision"})
    form.add_field("file", BytesIO(DATA), filename="a.gif")
    async with stack.session.post(f"{stack.url}/v1/files", data=form) as response:
        name = (await response.json())["id"]
    return f"GET /v1/files/{name}/content HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n".encode()


async def test_what_is_not_taken_is_not_read_and_who_takes_nothing_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []
    part = FileStore.read_part

    async def counted(self: FileStore, tenant: str, file_id: str, start: int, end: int) -> bytes:
        read.append(end - start)
        return await part(self, tenant, file_id, start, end)

    monkeypatch.setattr(FileStore, "read_part", counted)
    async with Stack(server_header_timeout_s=0.3) as stack:
        request = await upload(stack)
        own = await connect(stack)
        await asyncio.get_running_loop().sock_sendall(own, request)
        async with asyncio.timeout(30):
            while not read:
                await asyncio.sleep(0.02)
        await dropped(stack, own)
        await stack.alone()
        head, _, body = (await rest(own)).partition(b"\r\n\r\n")
        own.close()
        assert head.startswith(b"HTTP/1.1 200") and f"content-length: {len(DATA)}".encode() in head.lower()
        assert len(body) < len(DATA) and sum(read) < len(DATA) / 2

        reader, writer = await begin(stack, request)
        await reader.readuntil(b"\r\n\r\n")
        whole = await reader.read(-1) == DATA
        assert whole
        writer.close()
        assert (await stack.call("HEAD", request.decode().split()[1])).headers["content-length"] == str(len(DATA))


async def test_a_file_that_is_removed_meanwhile_does_not_look_whole() -> None:
    async with Stack() as stack:
        request = await upload(stack)
        reader, writer = await begin(stack, request)
        await reader.readuntil(b"\r\n\r\n")
        path = request.decode().split()[1].removesuffix("/content")
        assert (await stack.call("DELETE", path)).status == 200
        got = 0
        with suppress(ConnectionResetError):
            while data := await reader.read(1 << 20):
                got += len(data)
        writer.close()
        assert got < len(DATA)
        await stack.alone()
