"""A burst of an engine is worked on piece by piece, in turns that all share: other streams' turns come in between."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from gateway.turns import Turns, turns_of
from gateway.upstream.http import PIECE_BYTES
from tests.unit.upstream.peers import ask, peer

LINES = 20_000
LINE = b'{"index":0,"output_ids":[65]}\n'
BURST = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n" + b"%x\r\n%b\r\n" % (len(LINE), LINE) * LINES
END = b"0\r\n\r\n"


@contextmanager
def counted_turns() -> Iterator[list[int]]:
    """[how many turns the loop has made]."""
    loop, count = asyncio.get_running_loop(), [0]

    def tick() -> None:
        nonlocal handle
        count[0] += 1
        handle = loop.call_soon(tick)

    handle = loop.call_soon(tick)
    try:
        yield count
    finally:
        handle.cancel()


async def bursting(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while True:
        await ask(reader)
        writer.write(BURST + END)


async def test_several_bursts_share_the_turns_and_a_connection_is_used_again() -> None:
    """Symptom: ten streams of 20,000 lines at once held all others for 0.8 s."""
    pieces: list[tuple[int, int]] = []
    async with peer(bursting) as (pool, connections):

        async def one(name: int) -> bytes:
            got: list[bytes] = []

            def take(piece: bytes) -> bool:
                pieces.append((turns[0], name))
                got.append(piece)
                return True

            answer = await pool.post("/x", {}, [b"{}"], 2, silence_s=30)
            assert await answer.deliver(take)
            return b"".join(got)

        with counted_turns() as turns:
            bodies = await asyncio.gather(*map(one, range(3)))
        assert bodies == [LINE * LINES] * 3
        assert len({turn for turn, _ in pieces}) == len(pieces) > 3 * len(BURST) // PIECE_BYTES
        first_ended = min(max(i for i, (_, name) in enumerate(pieces) if name == n) for n in range(3))
        assert first_ended > len(pieces) * 0.9, "nobody's burst is served before the others'"
        await asyncio.gather(*map(one, range(3)))
        assert len(connections) == 3


async def test_a_quiet_stream_waits_for_no_burst() -> None:
    """Its lines are handed over when they come, whatever else is being worked on."""
    now = asyncio.Event()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if b"burst" in await ask(reader):
            writer.write(BURST + END)
        else:
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(LINE))
            await now.wait()
            writer.write(LINE)

    async with peer(handle) as (pool, _):
        quiet = await pool.post("/x", {}, [b"{}"], 2, silence_s=30)
        bursts = [await pool.post("/x", {}, [b"burst"], 5, silence_s=30) for _ in range(5)]
        worked, heard = 0, []

        def take(piece: bytes) -> bool:
            nonlocal worked
            worked += 1
            if worked == 10:
                now.set()
            return True

        def listen(piece: bytes) -> bool:
            heard.append((piece, worked))
            return True

        await asyncio.gather(quiet.deliver(listen), *(burst.deliver(take) for burst in bursts))
        [(line, after)] = heard
        assert line == LINE and after < 30 < worked / 10, "at most a few turns later"


async def test_turns_come_in_order_one_per_turn_of_the_loop_and_skip_who_left() -> None:
    turns = Turns(asyncio.get_running_loop())
    came: list[tuple[str, int]] = []

    async def wait(name: str) -> None:
        await turns.next()
        came.append((name, count[0]))

    with counted_turns() as count:
        tasks = {name: asyncio.create_task(wait(name)) for name in "abcd"}
        await asyncio.sleep(0)
        tasks["b"].cancel()
        await asyncio.gather(*tasks.values(), return_exceptions=True)
        assert [name for name, _ in came] == ["a", "c", "d"]
        assert len({turn for _, turn in came}) == 3
        async with asyncio.timeout(5):
            await wait("again")


async def test_a_loop_has_one_set_of_turns() -> None:
    loop = asyncio.get_running_loop()
    assert turns_of(loop) is turns_of(loop)
    assert await asyncio.to_thread(asyncio.run, _own()) is not turns_of(loop)


async def _own() -> Turns:
    return turns_of(asyncio.get_running_loop())
