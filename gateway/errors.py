"""Every refusal the gateway can give: code -> (status, OpenAI error type). The only place that knows statuses and
bodies.

Raise `ApiError("code", "sentence", param="messages[0].content")` anywhere; `gateway.app` turns it into the body, before
a stream has begun, and `gateway.api.sse` into an `error` event after. A message says what was wrong, where, the limit,
and what to do; it never holds an internal address, a path or a stack.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

ERRORS: Final[Mapping[str, tuple[int, str]]] = {
    # the request
    "invalid_request": (400, "invalid_request_error"),
    "invalid_json": (400, "invalid_request_error"),
    "invalid_value": (400, "invalid_request_error"),
    "missing_required_parameter": (400, "invalid_request_error"),
    "unknown_parameter": (400, "invalid_request_error"),
    "unsupported_parameter": (400, "invalid_request_error"),
    "invalid_messages": (400, "invalid_request_error"),
    "invalid_schema": (400, "invalid_request_error"),
    "context_length_exceeded": (400, "invalid_request_error"),
    "string_above_max_length": (400, "invalid_request_error"),
    "request_timeout": (408, "invalid_request_error"),
    "request_headers_too_large": (431, "invalid_request_error"),
    "expectation_failed": (417, "invalid_request_error"),
    "request_too_large": (413, "invalid_request_error"),
    "unsupported_media_type": (415, "invalid_request_error"),
    "not_found": (404, "invalid_request_error"),
    "method_not_allowed": (405, "invalid_request_error"),
    "model_not_found": (404, "invalid_request_error"),
    # media
    "invalid_media_url": (400, "invalid_request_error"),
    "media_url_forbidden": (400, "invalid_request_error"),
    "media_fetch_failed": (400, "invalid_request_error"),
    "media_fetch_timeout": (400, "invalid_request_error"),
    "media_too_large": (400, "invalid_request_error"),
    "media_undecodable": (400, "invalid_request_error"),
    "media_unsupported_format": (400, "invalid_request_error"),
    "media_limit_exceeded": (400, "invalid_request_error"),
    "video_unavailable": (400, "invalid_request_error"),
    "file_not_found": (404, "invalid_request_error"),
    # who may, and how much
    "invalid_api_key": (401, "authentication_error"),
    "insufficient_permissions": (403, "permission_error"),
    "rate_limit_exceeded": (429, "rate_limit_error"),
    "queue_full": (429, "rate_limit_error"),
    "client_closed_request": (499, "client_error"),
    # the engine and ourselves
    "engine_refused": (400, "invalid_request_error"),
    "engine_error": (502, "api_error"),
    "engine_unavailable": (503, "service_unavailable"),
    "engine_timeout": (504, "api_error"),
    "shutting_down": (503, "service_unavailable"),
    "overloaded": (503, "service_unavailable"),
    "internal_error": (500, "api_error"),
}
RETRY_AFTER_DEFAULT_S: Final = 1
RETRY_AFTER_MAX_S: Final = 120  # openai-python does not retry at all above this


class ApiError(Exception):
    """A refusal with a stable code. `retry_after_s` is sent with every 429 and 503."""

    def __init__(
        self,
        code: str,
        message: str,
        *,
        param: str | None = None,
        retry_after_s: float | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.param = param
        self.status, self.type = ERRORS[code]
        self.headers = dict(headers or {})
        if self.status in (429, 503):
            wait = RETRY_AFTER_DEFAULT_S if retry_after_s is None else retry_after_s
            self.headers.setdefault("retry-after", str(max(1, min(RETRY_AFTER_MAX_S, round(wait)))))

    def body(self) -> dict[str, Any]:
        """The OpenAI error body."""
        return {"error": {"message": self.message, "type": self.type, "param": self.param, "code": self.code}}
