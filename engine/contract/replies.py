"""The replies of one request between the engine that makes them and the response that sends them; one event loop."""

from __future__ import annotations

import asyncio

from engine import wire


class ReplyQueue:
    """`ended`: the last reply (done or a failure) is in; what is pushed later is dropped. `gone`: nobody reads on."""

    def __init__(self) -> None:
        self.ended = False
        self.gone = False
        self._replies: list[wire.Reply] = []
        self._news = asyncio.Event()

    def push(self, replies: list[wire.Reply]) -> None:
        if self.ended or not replies:
            return
        for reply in replies:
            self._replies.append(reply)
            if isinstance(reply, (wire.Done, wire.Failure)):
                self.ended = True
                break
        self._news.set()

    def leave(self) -> None:
        """The client is gone: nobody will read on."""
        self.gone = True
        self._news.set()

    async def next(self, timeout_s: float) -> list[wire.Reply]:
        """All that has arrived; empty after `timeout_s` of silence or when the client is gone."""
        if not self._replies and not self.gone:
            try:
                async with asyncio.timeout(timeout_s):
                    await self._news.wait()
            except TimeoutError:
                return []
        self._news.clear()
        replies, self._replies = self._replies, []
        return replies
