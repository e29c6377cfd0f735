"""What one request used, and how it ended: what the access log, the metrics and the ledger say about it, from one place."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

from gateway.errors import ERRORS

if TYPE_CHECKING:
    from gateway.media.types import PreparedMedia

Outcome = Literal["ok", "refused", "failed", "aborted"]
OUTCOMES: Final[tuple[Outcome, ...]] = ("ok", "refused", "failed", "aborted")


@dataclass(slots=True)
class RequestUsage:
    """Sums over the engine requests of one client request. Counted from the moment an engine has accepted: a request that
    is refused before has used nothing. `prompt_tokens` include `cached_tokens`, `completion_tokens` include `reasoning_tokens`;
    `media_bytes` are the encoded files, as the client sent or named them."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    reasoning_tokens: int = 0
    images: int = 0
    videos: int = 0
    media_bytes: int = 0

    def fields(self) -> dict[str, int]:
        return {name: getattr(self, name) for name in self.__slots__}

    def add_media(self, media: Sequence[PreparedMedia]) -> None:
        for part in media:
            if part.modality == "image":
                self.images += 1
            else:
                self.videos += 1
            self.media_bytes += part.source_bytes


@dataclass(frozen=True, slots=True)
class UsageRecord:
    """One finished request. `at`: its end, seconds since 1970; `seconds`: arrival to end; `model` is "" when the request was
    refused before its model was known."""

    at: float
    request_id: str
    tenant: str
    model: str
    outcome: Outcome
    seconds: float
    usage: RequestUsage


def outcome_of(status: int, error_code: str | None, client_gone: bool) -> Outcome:
    """`status` 0: nothing was answered. A stream that breaks off after its 200 has an `error_code`, and has failed."""
    if client_gone or error_code == "client_closed_request":
        return "aborted"
    if error_code is not None:
        return "failed" if ERRORS[error_code][0] >= 500 else "refused"
    if status == 0:
        return "aborted"
    if status >= 400:
        return "failed" if status >= 500 else "refused"
    return "ok"
