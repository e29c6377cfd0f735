"""The data path's HTTP against scripted peers: framing in every cut, reuse, early answers, silence, rubbish."""

from __future__ import annotations

import asyncio

import pytest

from gateway.upstream.http import PIECE_BYTES, HttpError, HttpPool
from tests.unit.upstream.peers import ask, peer, read

CHUNKED = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n4\r\ndefg\r\n0\r\n\r\n"
SIZED = b"HTTP/1.1 200 OK\r\ncontent-length: 7\r\n\r\nabcdefg"
UNTIL_END = b"HTTP/1.1 200 OK\r\n\r\nabcdefg"
CONTINUED = b"HTTP/1.1 100 Continue\r\nx: 1\r\n\r\n" + SIZED


async def post(pool: HttpPool, body: bytes = b"{}", silence_s: float = 5, fresh: bool = False) -> tuple[int, bytes]:
    answer = await pool.post("/x", {"a": "b"}, [body], len(body), silence_s=silence_s, fresh=fresh)
    try:
        return answer.status, await read(answer)
    finally:
        answer.close()


@pytest.mark.parametrize("data", [CHUNKED, SIZED, UNTIL_END, CONTINUED], ids=["chunked", "sized", "end", "continue"])
async def test_every_cut_gives_the_same_body(data: bytes) -> None:
    cut = 0

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked = await ask(reader)
        assert asked.startswith(b"POST /base/x HTTP/1.1\r\nhost: 127.0.0.1:") and b"\r\na: b\r\n" in asked
        writer.write(data[:cut])
        await writer.drain()
        await asyncio.sleep(0.001)
        writer.write(data[cut:])
        await writer.drain()

    async with peer(handle) as (pool, _):
        for cut in range(len(data)):  # noqa: B007  read by the peer
            assert await post(pool, fresh=True) == (200, b"abcdefg")


async def test_a_connection_read_to_its_end_is_used_again() -> None:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            await ask(reader)
            writer.write(CHUNKED)

    async with peer(handle) as (pool, connections):
        for _ in range(5):
            assert await post(pool) == (200, b"abcdefg")
        assert len(connections) == 1


async def test_an_idle_connection_is_dropped_in_time_and_a_cut_one_never_used_again() -> None:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            await ask(reader)
            writer.write(CHUNKED)

    async with peer(handle, idle_s=0.05) as (pool, connections):
        await post(pool)
        await asyncio.sleep(0.1)
        await post(pool)
        assert len(connections) == 2
        answer = await pool.post("/x", {}, [b"{}"], 2, silence_s=5)
        answer.close()
        await post(pool)
        assert len(connections) == 3


async def test_a_closed_connection_is_told_apart_from_a_broken_answer() -> None:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked = await ask(reader)
        if b"half" in asked:
            writer.write(CHUNKED[:-8])

    async with peer(handle) as (pool, _):
        with pytest.raises(HttpError) as caught:
            await post(pool, b"none")
        assert caught.value.untouched
        with pytest.raises(HttpError) as caught:
            await post(pool, b"half")
        assert not caught.value.untouched


@pytest.mark.parametrize("data", [b"rubbish\r\n\r\n", b"HTTP/1.1 200 OK\r\nx: " + b"y" * 400_000 + b"\r\n\r\n"])
async def test_rubbish_is_an_error(data: bytes) -> None:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await ask(reader)
        writer.write(data)
        await reader.read()

    async with peer(handle) as (pool, _):
        with pytest.raises(HttpError):
            await post(pool)


async def test_a_head_longer_than_a_piece_is_seen_while_the_request_is_sent() -> None:
    """Before the connection is closed, and with a body behind it."""
    head = b"HTTP/1.1 413 Too Large\r\ncontent-length: 2\r\nx: " + b"y" * (3 * PIECE_BYTES) + b"\r\n\r\n"

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(head + b"no")
        await writer.drain()
        await asyncio.sleep(5)

    async with peer(handle) as (pool, _):
        async with asyncio.timeout(3):
            assert await post(pool, bytes(64 << 20)) == (413, b"no")


@pytest.mark.parametrize("size", [7, 3 * PIECE_BYTES])
async def test_more_than_was_asked_for_costs_the_connection(size: int) -> None:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await ask(reader)
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % size + bytes(size) + bytes(2 * PIECE_BYTES))
        await reader.read()

    async with peer(handle) as (pool, connections):
        for count in (1, 2):
            assert await post(pool) == (200, bytes(size))
            await asyncio.sleep(0.01)
            assert len(connections) == count


async def test_what_came_before_the_connection_broke_is_read_first() -> None:
    size = 50 * PIECE_BYTES

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await ask(reader)
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % (size + 1) + bytes(size))

    async with peer(handle) as (pool, _):
        answer = await pool.post("/x", {}, [b"{}"], 2, silence_s=5)
        await asyncio.sleep(0.05)
        got = 0

        def take(piece: bytes) -> bool:
            nonlocal got
            got += len(piece)
            return True

        with pytest.raises(HttpError, match="was closed"):
            await answer.deliver(take)
        assert got == size


async def test_silence_is_a_timeout() -> None:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked = await ask(reader)
        if b"head" in asked:
            writer.write(CHUNKED[:-15])
        await reader.read()

    async with peer(handle) as (pool, _):
        for body in (b"none", b"head"):
            with pytest.raises(TimeoutError):
                await post(pool, body, silence_s=0.05)


async def test_an_answer_before_the_body_was_sent_is_taken() -> None:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 413 Too Large\r\ncontent-length: 2\r\n\r\nno")
        await writer.drain()
        await asyncio.sleep(5)

    async with peer(handle) as (pool, _):
        async with asyncio.timeout(3):
            assert await post(pool, bytes(64 << 20)) == (413, b"no")


async def test_large_bodies_arrive_whole_and_slow_readers_slow_the_peer() -> None:
    body = bytes(range(256)) * 20_000
    got = bytearray()
    sent = 0

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        got.extend((await ask(reader)).partition(b"\r\n\r\n")[2])
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % (64 << 20))
        for _ in range(1024):
            writer.write(bytes(64 << 10))
            await writer.drain()
            sent += 64 << 10

    async with peer(handle) as (pool, _):
        answer = await pool.post("/x", {}, [memoryview(body)[:1000], memoryview(body)[1000:]], len(body), silence_s=5)
        await asyncio.sleep(0.2)
        assert bytes(got) == body
        assert sent < 32 << 20
        assert len(await read(answer)) == 64 << 20
        answer.close()


async def test_a_reader_that_wants_no_more_gets_the_rest_later_and_in_pieces() -> None:
    """Whether it says so while it waits, or of what was there already."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await ask(reader)
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % (4 << 20))
        for start in range(0, 4 << 20, 1 << 10):
            writer.write(b"%07x " % start * 128)
            if start < 64 << 10:
                await asyncio.sleep(0)

    async with peer(handle) as (pool, _):
        answer = await pool.post("/x", {}, [b"{}"], 2, silence_s=5)
        pieces: list[bytes] = []

        def one(piece: bytes) -> bool:
            pieces.append(piece)
            return False

        while not await answer.deliver(one):
            had = len(pieces)
            await asyncio.sleep(0)
            assert len(pieces) == had, "nothing comes unasked"
        assert b"".join(pieces) == b"".join(b"%07x " % start * 128 for start in range(0, 4 << 20, 1 << 10))
        assert max(map(len, pieces)) <= PIECE_BYTES
        answer.close()


async def test_what_the_reader_raises_comes_out_of_deliver() -> None:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await ask(reader)
        writer.write(CHUNKED[:-15])
        await asyncio.sleep(0.02)
        writer.write(CHUNKED[-15:])

    def fail(piece: bytes) -> bool:
        raise KeyError(piece)

    async with peer(handle) as (pool, _):
        for first in (True, False):
            answer = await pool.post("/x", {}, [b"{}"], 2, silence_s=5, fresh=True)
            if first:
                await answer.deliver(lambda piece: False)
            with pytest.raises(KeyError):
                await answer.deliver(fail)
            answer.close()


async def test_a_deadline_that_moves_is_kept() -> None:
    """Later with each piece, and at once when it comes nearer."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await ask(reader)
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        for _ in range(6):
            writer.write(b"x")
            await asyncio.sleep(0.05)
        await reader.read()

    async with peer(handle) as (pool, _):
        answer = await pool.post("/x", {}, [b"{}"], 2, silence_s=30)
        loop, pieces = asyncio.get_running_loop(), 0
        deadline = loop.time() + 30

        def take(piece: bytes) -> bool:
            nonlocal pieces, deadline
            pieces += len(piece)
            deadline = loop.time() + 0.2
            answer.look_again()
            return True

        with pytest.raises(TimeoutError):
            async with asyncio.timeout(20):
                await answer.deliver(take, lambda: deadline)
        assert pieces == 6
        answer.close()


async def test_no_peer_is_an_os_error() -> None:
    pool = HttpPool("http://127.0.0.1:9", connect_timeout_s=2, idle_s=1)
    with pytest.raises(OSError):
        await post(pool)


async def test_idle_connections_are_closed_without_being_asked_for() -> None:
    closed = asyncio.Event()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await ask(reader)
        writer.write(CHUNKED)
        await reader.read()
        closed.set()

    async with peer(handle, idle_s=0.05) as (pool, _):
        await post(pool)
        async with asyncio.timeout(30):
            await closed.wait()
