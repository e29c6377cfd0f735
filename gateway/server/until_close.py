"""Answers to clients that speak HTTP/1.0: they know no chunks, so a body whose length is not known ends with the connection."""

from __future__ import annotations

from typing import Any

from uvicorn.protocols.http.httptools_impl import RequestResponseCycle


def until_close(app: Any, cycle: RequestResponseCycle) -> Any:
    """`app`, served so that `cycle` sends no chunks."""
    cycle.keep_alive = (
        False  # also where a client of such a version asks to keep it: it could not tell where a body ends
    )
    cycle.waiting_for_100_continue = False  # 1.0 has no interim answers

    async def served(scope: Any, receive: Any, send: Any) -> None:
        without_length = False

        async def send_unframed(message: Any) -> None:
            nonlocal without_length
            if message["type"] == "http.response.start":
                without_length = all(name.lower() != b"content-length" for name, _ in message["headers"])
                if without_length:
                    cycle.chunked_encoding = False
            elif without_length:
                cycle.expected_content_length = len(message.get("body", b""))  # uvicorn holds a body to its length
            await send(message)

        await app(scope, receive, send_unframed)

    return served
