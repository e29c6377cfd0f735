"""A client that leaves frees the engine and its place in admission, whatever the request was doing."""

from __future__ import annotations

import asyncio

import orjson
import pytest

from tests.api.harness import CHAT, Stack, body_of, read_events


async def leave_after(stack: Stack, body: bytes, until: bytes | None) -> None:
    """Sends a request on a raw socket and closes it once `until` was seen, or once the engine runs it."""
    reader, writer = await asyncio.open_connection("127.0.0.1", stack.port)
    writer.write(
        f"POST {CHAT} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
        f"content-length: {len(body)}\r\n\r\n".encode()
        + body
    )
    seen = b""
    while until is not None and until not in seen:
        seen += await reader.read(65536)
    while until is None and not stack.engine.running:
        await asyncio.sleep(0.01)
    writer.close()
    await writer.wait_closed()


@pytest.mark.parametrize("streamed", [True, False], ids=["stream", "plain"])
async def test_leaving_during_prefill_aborts_engine_request(stack: Stack, streamed: bool) -> None:
    stack.engine.script([{"pieces": ["late"], "first_delay_ms": 60_000}])
    await leave_after(stack, orjson.dumps(body_of("Hi", {"stream": streamed})), None)
    await stack.settled()
    [abort] = stack.engine.aborts()
    assert (abort["phase"], abort["reason"]) == ("prefill", "disconnect")


@pytest.mark.parametrize("streamed", [True, False], ids=["stream", "plain"])
async def test_leaving_during_decode_aborts_engine_request(stack: Stack, streamed: bool) -> None:
    stack.engine.script([{"pieces": ["x "] * 5000, "delay_ms": 20}])
    body = orjson.dumps(body_of("Hi", {"stream": streamed, "thinking": "disabled", "max_tokens": 100000}))
    await leave_after(stack, body, b"content" if streamed else None)
    await stack.settled()
    assert len(stack.engine.aborts()) == 1


async def test_leaving_while_queued_gives_the_place_in_the_queue_back() -> None:
    async with Stack([{"pieces": ["x"], "delay_ms": 400}], admission={"max_in_flight": 1}) as s:
        first = asyncio.create_task(s.chat("one"))
        while not s.engine.running:
            await asyncio.sleep(0.01)
        body = orjson.dumps(body_of("two", {}))
        _, writer = await asyncio.open_connection("127.0.0.1", s.port)
        writer.write(
            f"POST {CHAT} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
            f"content-length: {len(body)}\r\n\r\n".encode()
            + body
        )
        while not await s.metric("catalejo_admission_queue_depth"):
            await asyncio.sleep(0.01)
        writer.close()
        async with asyncio.timeout(30):
            while await s.metric("catalejo_admission_queue_depth"):
                await asyncio.sleep(0.01)
        assert (await first).status == 200
        await s.settled()
        assert len(s.engine.requests()) == 1


async def test_engine_failure_in_a_stream_is_an_error_event_without_a_finish(stack: Stack) -> None:
    stack.engine.script([{"pieces": ["one ", "two "], "fail_after": 1}])
    events = await stack.stream("Hi", thinking="disabled")
    assert not events.done
    assert events.chunks[-1]["error"]["code"] == "engine_error"
    assert set(events.chunks[-1]["error"]) == {"message", "type", "param", "code"}
    assert events.text() == "one "
    assert set(events.finishes()) == {None}
    await stack.settled()


@pytest.mark.parametrize("fault", ["reset", "eof", "garbage", "half_close"])
async def test_broken_engine_stream_never_looks_finished(stack: Stack, fault: str) -> None:
    stack.engine.script([{"pieces": ["one ", "two "], "fail_after": 1, "fault": fault}])
    events = await stack.stream("Hi", thinking="disabled")
    assert not events.done
    assert events.chunks[-1]["error"]["code"] == "engine_error"
    plain = await stack.chat("Hi", thinking="disabled")
    assert plain.status == 502
    assert plain.error["code"] == "engine_error"
    await stack.settled()


async def test_long_prefill_is_kept_alive_by_comments() -> None:
    async with Stack([{"pieces": ["late"], "first_delay_ms": 500}], api={"keep_alive_s": 0.1}) as s:
        events = await s.stream("Hi", thinking="disabled")
        assert len(events.comments) >= 3
        assert events.text() == "late"
        assert events.done


async def test_leaving_while_a_picture_is_fetched_ends_the_fetch() -> None:
    asked, gone = asyncio.Event(), asyncio.Event()

    async def slow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        asked.set()
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: image/png\r\ncontent-length: 100000\r\n\r\n\x89PNG")
        await reader.read()
        gone.set()
        writer.close()

    server = await asyncio.start_server(slow, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    fetch = {"ports": [port], "private_endpoints": [f"127.0.0.1:{port}"]}
    async with Stack(media={"fetch": fetch}) as s:
        part = {"type": "image_url", "image_url": {"url": f"http://127.0.0.1:{port}/a.png"}}
        body = orjson.dumps(body_of([part], {}))
        _, writer = await asyncio.open_connection("127.0.0.1", s.port)
        writer.write(
            f"POST {CHAT} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
            f"content-length: {len(body)}\r\n\r\n".encode()
            + body
        )
        async with asyncio.timeout(30):
            await asked.wait()
        writer.close()
        async with asyncio.timeout(30):
            await gone.wait()
        await s.settled()
        assert not s.engine.requests()
    server.close()


async def test_a_stream_cut_by_shutdown_says_so() -> None:
    """Symptom: the connection just ended, and clients took the half answer for a whole one."""
    async with Stack([{"pieces": ["x "] * 5000, "delay_ms": 20}]) as s:
        async with s.open_stream("Hi", thinking="disabled") as response:
            await response.content.readline()
            assert s._server is not None
            s._server.should_exit = True  # the harness gives one second of grace
            events = await read_events(response)
        assert events.chunks[-1]["error"]["code"] == "shutting_down"
        assert not events.done
        assert set(events.finishes()) <= {None}


async def test_a_plain_answer_cut_by_shutdown_is_a_503() -> None:
    async with Stack([{"pieces": ["x "] * 5000, "delay_ms": 20}]) as s:
        task = asyncio.create_task(s.chat("Hi"))
        while not s.engine.running:
            await asyncio.sleep(0.01)
        assert s._server is not None
        s._server.should_exit = True
        answer = await task
        assert (answer.status, answer.error["code"]) == (503, "shutting_down")
        assert answer.headers["retry-after"]


LONG = [{"pieces": ["x "] * 5000, "delay_ms": 20}]
FAST = [{"pieces": ["one ", "two "], "delay_ms": 100}]


def request_of(streamed: bool, **fields: object) -> bytes:
    body = orjson.dumps(body_of("Hi", {"stream": streamed, "thinking": "disabled", "max_tokens": 100000, **fields}))
    head = f"POST {CHAT} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    return head.encode() + body


async def runs(stack: Stack, count: int = 1) -> None:
    async with asyncio.timeout(20):
        while stack.engine.running < count:
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("requests", [1, 3])
@pytest.mark.parametrize("streamed", [True, False], ids=["stream", "plain"])
async def test_a_client_that_only_ends_its_side_gets_its_answers(stack: Stack, streamed: bool, requests: int) -> None:
    """Symptom: `nc -N` and proxies that pass on the end of a request got nothing."""
    stack.engine.script(FAST)
    reader, writer = await asyncio.open_connection("127.0.0.1", stack.port)
    writer.write(request_of(streamed) * requests)
    writer.write_eof()
    async with asyncio.timeout(20):
        answer = await reader.read()
    writer.close()
    finals = answer.replace(b"HTTP/1.1 100 Continue\r\n\r\n", b"")
    assert finals.startswith(b"HTTP/1.1 200 OK\r\n") and finals.count(b"HTTP/1.1 200 OK\r\n") == requests
    assert finals.count(b'"finish_reason":"stop"') == requests
    assert finals.endswith(b"0\r\n\r\n" if streamed else b"}")
    await stack.settled()
    assert not stack.engine.aborts()


@pytest.mark.parametrize("streamed", [True, False], ids=["stream", "plain"])
async def test_a_client_that_ends_its_side_and_leaves_later_aborts_its_request(stack: Stack, streamed: bool) -> None:
    stack.engine.script([{"pieces": ["late"], "first_delay_ms": 60_000}])
    reader, writer = await asyncio.open_connection("127.0.0.1", stack.port)
    writer.write(request_of(streamed))
    await runs(stack)
    writer.write_eof()
    async with asyncio.timeout(20):
        await reader.readuntil(b": keep-alive\n" if streamed else b"100 Continue\r\n\r\n")
    writer.transport.abort()
    await stack.settled(10)
    assert len(stack.engine.aborts()) == 1


async def test_a_client_of_http_1_0_that_ends_its_side_gets_what_is_quick(stack: Stack) -> None:
    stack.engine.script([*FAST, {"pieces": ["late"], "first_delay_ms": 60_000}])
    for answered in (True, False):
        reader, writer = await asyncio.open_connection("127.0.0.1", stack.port)
        writer.write(request_of(False).replace(b"HTTP/1.1", b"HTTP/1.0"))
        writer.write_eof()
        async with asyncio.timeout(20):
            assert (await reader.read()).startswith(b"HTTP/1.1 200") == answered
        writer.close()
    await stack.settled()
    assert len(stack.engine.aborts()) == 1, (
        "nothing can be sent to it before the answer: who stays and who left look the same"
    )


@pytest.mark.parametrize("streamed", [True, False], ids=["stream", "plain"])
async def test_leaving_with_requests_that_wait_behind_the_running_one(stack: Stack, streamed: bool) -> None:
    """Symptom: while a pipelined request waits nothing is read, so the engine worked on until the idle timeout."""
    stack.engine.script(LONG)
    _, writer = await asyncio.open_connection("127.0.0.1", stack.port)
    writer.write(request_of(streamed))
    await runs(stack)
    writer.write(request_of(False))
    await asyncio.sleep(0.2)  # it has been read
    writer.close()
    await writer.wait_closed()
    await stack.settled(10)
    assert len(stack.engine.aborts()) == 1
    assert len(stack.engine.requests()) == 1
