"""Every refusal has OpenAI's body, the right status, code and param, and an x-request-id; the same for streams."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from tests.api.harness import CHAT, MODEL, Stack

USER = [{"role": "user", "content": "Hello"}]
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}


def user(*parts: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": list(parts)}]}


BAD: list[tuple[str, dict[str, Any], str, str]] = [
    ("no messages", {"messages": None}, "messages", "missing_required_parameter"),
    ("empty messages", {"messages": []}, "messages", "invalid_value"),
    ("messages is text", {"messages": "hi"}, "messages", "invalid_value"),
    ("unknown role", {"messages": [{"role": "wizard", "content": "x"}]}, "messages[0]", "invalid_value"),
    ("no content", {"messages": [{"role": "user"}]}, "messages[0].content", "missing_required_parameter"),
    ("number content", {"messages": [{"role": "user", "content": 3}]}, "messages[0].content", "invalid_value"),
    ("unknown part", user({"type": "hologram"}), "messages[0].content[0]", "invalid_value"),
    ("no url", user({"type": "text", "text": "x"}, {"type": "image_url", "image_url": {}}),
     "messages[0].content[1].image_url.url", "missing_required_parameter"),
    ("number url", user({"type": "image_url", "image_url": {"url": 5}}),
     "messages[0].content[0].image_url.url", "invalid_value"),
    ("bad detail", user({"type": "image_url", "image_url": {"url": "https://x.example/a", "detail": "huge"}}),
     "messages[0].content[0].image_url.detail", "invalid_value"),
    ("text temperature", {"temperature": "0.5"}, "temperature", "invalid_value"),
    ("temperature", {"temperature": 2.5}, "temperature", "invalid_value"),
    ("top_p", {"top_p": 1.5}, "top_p", "invalid_value"),
    ("min_p", {"min_p": -0.1}, "min_p", "invalid_value"),
    ("n", {"n": 0}, "n", "invalid_value"),
    ("n above the limit", {"n": 64}, "n", "invalid_value"),
    ("max_tokens", {"max_tokens": 0}, "max_tokens", "invalid_value"),
    ("max_completion_tokens", {"max_completion_tokens": -1}, "max_completion_tokens", "invalid_value"),
    ("penalty", {"frequency_penalty": 3}, "frequency_penalty", "invalid_value"),
    ("bias key", {"logit_bias": {"cat": 1}}, "logit_bias", "invalid_value"),
    ("bias value", {"logit_bias": {"5": 101}}, "logit_bias.5", "invalid_value"),
    ("bias outside the vocabulary", {"logit_bias": {"999999": 1}}, "logit_bias", "invalid_value"),
    ("stop count", {"stop": ["x"] * 17}, "stop", "invalid_value"),
    ("empty stop", {"stop": ""}, "stop", "invalid_value"),
    ("top_logprobs alone", {"top_logprobs": 2}, "top_logprobs", "invalid_value"),
    ("top_logprobs", {"logprobs": True, "top_logprobs": 21}, "top_logprobs", "invalid_value"),
    ("format", {"response_format": {"type": "yaml"}}, "response_format", "invalid_value"),
    ("schema elsewhere", {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema":
     {"type": "object", "properties": {"a": {"items": {"$ref": "http://x.example/s"}}}}}}},
     "response_format.json_schema.schema", "invalid_schema"),
    ("n far above the limit", {"n": 200}, "n", "invalid_value"),
    ("schema missing", {"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}},
     "response_format.json_schema.schema", "missing_required_parameter"),
    ("tool without name", {"tools": [{"type": "function", "function": {}}]},
     "tools[0].function.name", "missing_required_parameter"),
    ("tool name", {"tools": [{"type": "function", "function": {"name": "a b"}}]},
     "tools[0].function.name", "invalid_value"),
    ("choice without tools", {"tool_choice": "required"}, "tool_choice", "invalid_value"),
    ("choice of an unknown tool",
     {"tools": [{"type": "function", "function": {"name": "f"}}],
      "tool_choice": {"type": "function", "function": {"name": "g"}}}, "tool_choice.function.name", "invalid_value"),
    ("thinking", {"thinking": {"type": "sometimes"}}, "thinking.type", "invalid_value"),
    ("thinking text", {"thinking": "maybe"}, "thinking", "invalid_value"),
    ("mode", {"chat_template_kwargs": {"thinking_mode": "x"}}, "chat_template_kwargs.thinking_mode", "invalid_value"),
    ("effort", {"reasoning_effort": "extreme"}, "reasoning_effort", "invalid_value"),
    ("legacy functions", {"functions": [{"name": "f"}]}, "functions", "unsupported_parameter"),
    ("strict", {"strict_fields": True, "frobnicate": 1}, "frobnicate", "unknown_parameter"),
    ("undecodable image", user(IMAGE), "messages[0].content[0]", "media_unsupported_format"),
    ("only an assistant message", {"messages": [{"role": "assistant", "content": "x"}]}, "messages",
     "invalid_messages"),
    ("tool message without a call",
     {"messages": [*USER, {"role": "tool", "tool_call_id": "1", "content": "x"}]}, "messages[1]", "invalid_messages"),
]  # fmt: skip


@pytest.mark.parametrize("streamed", [False, True], ids=["plain", "stream"])
@pytest.mark.parametrize(("fields", "param", "code"), [b[1:] for b in BAD], ids=[b[0] for b in BAD])
async def test_bad_field_is_refused_by_name(
    stack: Stack, fields: dict[str, Any], param: str, code: str, streamed: bool
) -> None:
    answer = await stack.chat("Hi", **{"stream": streamed, **fields})
    assert 400 <= answer.status < 500, answer.raw
    assert answer.error["code"] == code, answer.error
    assert answer.error["param"].startswith(param), answer.error
    assert answer.error["type"] == "invalid_request_error"
    assert answer.headers["x-request-id"]
    assert not stack.engine.requests()


HUGE = 10**31


@pytest.mark.parametrize(
    "fields",
    [
        {"seed": HUGE}, {"temperature": HUGE}, {"n": HUGE}, {"user": HUGE}, {"logit_bias": {"5": HUGE}},
        {"stop_token_ids": [HUGE]}, {"messages": [{"role": "user", "content": HUGE}]},
        {"response_format": {"type": "json_schema", "json_schema": {"schema": {"const": HUGE}}}},
    ],
    ids=lambda f: next(iter(f)),
)  # fmt: skip
async def test_integers_beyond_64_bits_are_a_400(stack: Stack, fields: dict[str, Any]) -> None:
    answer = await stack.chat("Hi", **fields)
    assert answer.status == 400, answer.raw
    assert answer.error["param"]


async def test_a_schema_nested_too_deeply_is_a_400(stack: Stack) -> None:
    schema: dict[str, Any] = {}
    for _ in range(300):
        schema = {"items": schema}
    form = {"type": "json_schema", "json_schema": {"schema": schema}}
    body = json.dumps({"model": MODEL, "messages": USER, "response_format": form}).encode()
    answer = await stack.post(CHAT, body)
    assert answer.status == 400, answer.raw


async def test_unknown_model(stack: Stack) -> None:
    answer = await stack.chat("Hi", model="gpt-99")
    assert (answer.status, answer.error["code"], answer.error["param"]) == (404, "model_not_found", "model")


@pytest.mark.parametrize("body", [b"", b"{", b"[1]", b'"x"', b'{"model": "tiny", "messages": [}', b"\xff\xfe"])
async def test_broken_json(stack: Stack, body: bytes) -> None:
    answer = await stack.post(CHAT, body)
    assert answer.status == 400
    assert answer.error["code"] == "invalid_json"


async def test_paths_methods_and_types(stack: Stack) -> None:
    missing = await stack.post("/v1/nothing", {})
    assert (missing.status, missing.error["code"]) == (404, "not_found")
    wrong = await stack.get(CHAT)
    assert (wrong.status, wrong.error["code"], wrong.headers["allow"]) == (405, "method_not_allowed", "POST")
    form = await stack.post(CHAT, b"a=b", headers={"content-type": "application/x-www-form-urlencoded"})
    assert (form.status, form.error["code"]) == (415, "unsupported_media_type")
    packed = await stack.post(CHAT, b"{}", headers={"content-encoding": "gzip"})
    assert (packed.status, packed.error["code"]) == (415, "unsupported_media_type")
    for answer in (missing, wrong, form, packed):
        assert answer.headers["x-request-id"]


async def test_client_request_id_is_kept(stack: Stack) -> None:
    answer = await stack.post(CHAT, {"model": MODEL, "messages": USER, "max_tokens": 2}, {"x-request-id": "abc-1"})
    assert answer.headers["x-request-id"] == "abc-1"
    odd = await stack.post(CHAT, {"model": "no"}, {"x-request-id": "a b" * 99})
    assert odd.headers["x-request-id"].startswith("req_")


async def test_too_long_prompt_says_the_numbers() -> None:
    async with Stack(context_length=50) as s:
        for streamed in (False, True):
            answer = await s.chat("word " * 100, stream=streamed)
            assert answer.status == 400
            assert answer.error["code"] == "context_length_exceeded"
            assert answer.error["param"] == "messages"
            assert "maximum context length is 50 tokens" in answer.error["message"]
        assert not s.engine.requests()


async def test_max_tokens_is_clipped_to_what_is_left() -> None:
    async with Stack(context_length=400) as s:
        s.engine.script([{"pieces": ["ok"]}])
        assert (await s.chat("Hi", max_tokens=32768)).status == 200
        assert s.sent["sampling"]["max_new_tokens"] == 400 - len(s.sent["ids"])
        assert (await s.chat("Hi", max_completion_tokens=5)).status == 200
        assert s.sent["sampling"]["max_new_tokens"] == 5


async def test_body_limit_is_a_json_413() -> None:
    async with Stack(api={"max_body_bytes": 2000}) as s:
        answer = await s.chat("x" * 5000)
        assert (answer.status, answer.error["code"]) == (413, "request_too_large")
        assert "2000 bytes" in answer.error["message"]

        async def pieces() -> Any:
            for _ in range(10):
                yield b"x" * 1000

        chunked = await s.call("POST", CHAT, data=pieces(), headers={"content-type": "application/json"})
        assert chunked.status == 413
        assert (await s.chat("Hi", max_tokens=2)).status == 200


ENGINE = [
    ({"status": 400, "code": "bad_sampling"}, 400, "engine_refused"),
    ({"status": 500}, 502, "engine_error"),
    ({"status": 401}, 502, "engine_error"),
    ({"status": 503, "headers": {"retry-after": "7"}}, 503, "overloaded"),
    ({"status": 429}, 503, "overloaded"),
    ({"fault": "reset", "fail_after": -1}, 503, "engine_unavailable"),
]


@pytest.mark.parametrize("streamed", [False, True], ids=["plain", "stream"])
@pytest.mark.parametrize(("script", "status", "code"), ENGINE, ids=[str(e[0]) for e in ENGINE])
async def test_engine_refusal_before_the_200(script: Any, status: int, code: str, streamed: bool) -> None:
    async with Stack([script], routing={"breaker_failures": 100}) as s:
        answer = await s.chat("Hi", stream=streamed)
        assert (answer.status, answer.error["code"]) == (status, code), answer.raw
        if status == 503:
            assert int(answer.headers["retry-after"]) == int(script.get("headers", {}).get("retry-after", 1))
        await s.settled()


async def test_a_redirect_of_an_engine_is_not_followed() -> None:
    """Symptom: a 307 would have sent the prompt to any address."""
    asked: list[bytes] = []

    async def engine(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        asked.append(head.split(b" ", 2)[1])
        where = f"http://127.0.0.1:{port}/elsewhere".encode()
        status = b"307 Temporary Redirect\r\nlocation: " + where if head.startswith(b"POST") else b"200 OK"
        writer.write(b"HTTP/1.1 " + status + b"\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{}")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(engine, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with Stack(engines=[{"url": f"http://127.0.0.1:{port}"}]) as s:
        answer = await s.chat("Hi")
        assert (answer.status, answer.error["code"]) == (502, "engine_error")
    server.close()
    assert b"/elsewhere" not in asked


@pytest.mark.parametrize("form", ["--b\r\nnonsense", "--b\r\nContent-Disposition: form-data\r\n\r\nx\r\n--b--\r\n"])
async def test_a_refused_upload_that_has_come_whole_is_not_waited_for(stack: Stack, form: str) -> None:
    headers = {"content-type": "multipart/form-data; boundary=b"}
    answer = await stack.call("POST", "/v1/files", data=form.encode(), headers=headers)
    assert answer.status == 400, answer.raw
    assert "connection" not in answer.headers, "the connection goes on: no rest of the body was waited for"
