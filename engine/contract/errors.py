"""Refusals: everything an engine says no to before the first token, with the HTTP status each becomes.

    Refusal                     400
      ContextTooLong            400  prompt does not fit the context
      BadGrammar                400  the constraint does not compile
      DuplicateRid              400  that request id is running
      TooMuchMedia              413  the request's rows are more than the store may hold
      MissingMedia              409  hash-only items whose rows are not here
      QueueFull                 503  retry later
      MediaStoreFull            503  rows of running requests fill the store; retry later
      ShuttingDown              503  retry elsewhere

Contract violations in the frame are `engine.wire.WireError` (400).
"""

from __future__ import annotations

from typing import Any


class Refusal(Exception):
    code = "bad_request"
    status = 400
    retry_after_s: int | None = None

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param

    def body(self) -> dict[str, Any]:
        return {"error": {"code": self.code, "message": self.message, "param": self.param}}


class ContextTooLong(Refusal):
    code = "context_length_exceeded"


class BadGrammar(Refusal):
    code = "bad_grammar"


class DuplicateRid(Refusal):
    code = "duplicate_rid"


class TooMuchMedia(Refusal):
    code = "too_much_media"
    status = 413


class MissingMedia(Refusal):
    code = "missing_media"
    status = 409

    def __init__(self, missing: list[str]) -> None:
        super().__init__(f"rows of {len(missing)} items are not here; send them", param="items")
        self.missing = missing

    def body(self) -> dict[str, Any]:
        return super().body() | {"missing": self.missing}


class QueueFull(Refusal):
    code = "queue_full"
    status = 503
    retry_after_s = 1


class MediaStoreFull(Refusal):
    code = "media_store_full"
    status = 503
    retry_after_s = 1


class ShuttingDown(Refusal):
    code = "shutting_down"
    status = 503
    retry_after_s = 5
