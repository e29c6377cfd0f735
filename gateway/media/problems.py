"""What can be wrong with one media part, before anybody knows which part it was.

A `MediaProblem` is raised deep inside (and kept by the negative cache, shared by single-flight waiters); `at(param)`
turns it into the `ApiError` of the part that asked. Its message never holds an address, a path or the URL itself.
"""

from __future__ import annotations

from typing import Final

from gateway.errors import ApiError

TRANSIENT: Final = frozenset({"overloaded", "shutting_down", "internal_error", "video_unavailable"})
"""Codes that say something about us, not about the media: never remembered."""

_PREPROC_CODES: Final = {
    "unsupported_format": "media_unsupported_format",
    "decoder_disabled": "media_unsupported_format",
    "corrupt": "media_undecodable",
    "truncated": "media_undecodable",
    "too_many_bytes": "media_too_large",
    "too_many_pixels": "media_limit_exceeded",
    "bad_dimensions": "media_limit_exceeded",
    "bad_aspect_ratio": "media_limit_exceeded",
    "limit_exceeded": "media_limit_exceeded",
    "deadline": "media_limit_exceeded",
    "cancelled": "overloaded",
    "out_of_memory": "overloaded",
    "bad_option": "invalid_value",
    "bad_data_url": "invalid_media_url",
}


class MediaProblem(Exception):
    """code: of gateway.errors. reason: label value of `catalejo_media_rejected_total`, from a closed set."""

    def __init__(self, code: str, message: str, *, reason: str | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.reason = reason or code

    def at(self, param: str) -> ApiError:
        return ApiError(self.code, f"{param}: {self.message}", param=param)


def from_preproc(error: ValueError, what: str) -> MediaProblem:
    """A `preproc_rs.PreprocError` (has .code and .message) as a problem of `what` ("the image")."""
    inner = str(getattr(error, "code", ""))
    message = str(getattr(error, "message", "") or error)
    code = _PREPROC_CODES.get(inner, "media_undecodable")
    return MediaProblem(code, f"{what} cannot be used: {message}", reason=inner if inner in _PREPROC_CODES else code)


def mib(size: int) -> str:
    return f"{size / (1 << 20):.1f} MiB" if size >= 1 << 20 else f"{size} bytes"
