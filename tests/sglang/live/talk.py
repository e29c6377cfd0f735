"""One chat request to an OpenAI-compatible server, and what it said in a form in which two servers can be compared."""

from __future__ import annotations

import json
from typing import Any

import aiohttp

Record = dict[str, Any]


async def ask(session: aiohttp.ClientSession, url: str, token: str | None, body: dict[str, Any]) -> Record:
    headers = {"authorization": f"Bearer {token}"} if token else {}
    async with session.post(f"{url}/v1/chat/completions", json=body, headers=headers) as response:
        raw = await response.text()
    if response.status != 200:
        return refusal(response.status, json.loads(raw))
    return streamed(raw) if body.get("stream") else plain(json.loads(raw))


def refusal(status: int, body: Any) -> Record:
    wrapped = isinstance(body.get("error"), dict)
    error = body["error"] if wrapped else body
    return {"status": status, "error in": "error" if wrapped else "body", "error names": error.get("param"),
            "said": error.get("message")}  # fmt: skip


def plain(body: Any) -> Record:
    choices = [_choice(c, c["message"]) for c in body["choices"]]
    return {"status": 200, "choices": choices, **_usage(body.get("usage"))}


def streamed(raw: str) -> Record:
    """The chunks merged as a client does."""
    events = [line[5:].strip() for line in raw.splitlines() if line.startswith("data:")]
    chunks = [json.loads(event) for event in events if event != "[DONE]"]
    if any("error" in chunk for chunk in chunks):
        return refusal(200, chunks[-1])
    merged: dict[int, Any] = {}
    usage = None
    for chunk in chunks:
        usage = chunk.get("usage") or usage
        for given in chunk["choices"]:
            one = merged.setdefault(given["index"], {"index": given["index"], "message": {"tool_calls": {}}})
            _merge(one, given)
    choices = []
    for _, one in sorted(merged.items()):
        one["message"]["tool_calls"] = [c for _, c in sorted(one["message"]["tool_calls"].items())]
        choices.append(_choice(one, one["message"]))
    return {"status": 200, "choices": choices, "ends with [DONE]": events[-1] == "[DONE]", **_usage(usage)}


def _merge(one: Any, given: Any) -> None:
    message, delta = one["message"], given["delta"]
    for name in ("content", "reasoning_content"):
        if delta.get(name):
            message[name] = message.get(name, "") + delta[name]
    for piece in delta.get("tool_calls") or ():
        call = message["tool_calls"].setdefault(piece["index"], {"function": {"name": "", "arguments": ""}})
        for name in ("name", "arguments"):
            call["function"][name] += piece.get("function", {}).get(name) or ""
    if given.get("logprobs"):
        one.setdefault("logprobs", {"content": []})["content"] += given["logprobs"].get("content") or []
    one["finish_reason"] = given.get("finish_reason") or one.get("finish_reason")


def _choice(choice: Any, message: Any) -> Record:
    rows = (choice.get("logprobs") or {}).get("content") or []
    return {
        "content": message.get("content") or "",
        "reasoning": message.get("reasoning_content") or "",
        "tool_calls": [(c["function"]["name"], _arguments(c)) for c in message.get("tool_calls") or ()],
        "finish_reason": choice.get("finish_reason"),
        "logprobs": [(row["token"], round(row["logprob"], 2), len(row["top_logprobs"])) for row in rows],
    }


def _arguments(call: Any) -> Any:
    try:
        return json.loads(call["function"]["arguments"])
    except json.JSONDecodeError:
        return call["function"]["arguments"]


def _usage(usage: Any) -> Record:
    if not usage:
        return {"usage": None}
    details = usage.get("completion_tokens_details") or {}
    reasoning = details.get("reasoning_tokens", usage.get("reasoning_tokens"))
    return {
        "usage": "sent",
        "prompt_tokens": usage["prompt_tokens"],
        "completion_tokens": usage["completion_tokens"],
        "reasoning_tokens": reasoning or 0,
    }


def flat(record: Record) -> Record:
    """choices[0].content and so on, one level; what a server said in words is not compared."""
    out = {name: value for name, value in record.items() if name not in ("choices", "said")}
    for i, choice in enumerate(record.get("choices", ())):
        out |= {f"{name}" if i == 0 else f"{name}[{i}]": value for name, value in choice.items()}
    return out
