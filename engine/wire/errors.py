"""Every way a peer can break the contract, by name. `code` is stable and travels in the error body."""

from __future__ import annotations

from typing import Any


class WireError(ValueError):
    """The peer sent something that breaks the contract. Becomes a 400 with `code` before anything is scheduled."""

    code = "bad_request"

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param

    def body(self) -> dict[str, Any]:
        return {"error": {"code": self.code, "message": self.message, "param": self.param}}


class BadMagic(WireError):
    code = "bad_magic"


class Truncated(WireError):
    code = "truncated"


class HeaderTooLarge(WireError):
    code = "header_too_large"


class BadHeader(WireError):
    """The header is not a JSON object, or a field has the wrong type or an impossible value."""

    code = "bad_header"


class BadRange(WireError):
    """A tensor range is unaligned, overlaps, goes backwards or leaves the body."""

    code = "bad_range"


class BodyTooLarge(WireError):
    code = "body_too_large"


class UnknownRequirement(WireError):
    code = "unknown_requirement"


class BadSampling(WireError):
    """An unknown sampling parameter, or one outside its range. The message names it."""

    code = "bad_sampling"


class BadItem(WireError):
    """An item's shape, grid, rows, ranges or order contradict each other or `input_ids`."""

    code = "bad_item"


class HashMismatch(WireError):
    code = "hash_mismatch"


class BadReply(WireError):
    """The engine's reply broke the contract (unknown line, bad JSON, end of file without `done`)."""

    code = "bad_reply"
