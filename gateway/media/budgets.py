"""What one request has used of its budget, and how much one tenant has under way.

A request is charged with facts about the parts, never with how they were obtained: a cached picture counts like a
fetched one, so the same request always gets the same answer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from gateway.errors import ApiError
from gateway.media.problems import MediaProblem, mib
from gateway.media.settings import MediaBudget
from gateway.media.types import MediaPart


def _over(message: str) -> MediaProblem:
    return MediaProblem("media_limit_exceeded", message, reason="request_budget")


class RequestBudget:
    def __init__(self, limits: MediaBudget) -> None:
        self._limits = limits
        self._bytes = 0
        self._pixels = 0
        self._tokens = 0

    def check_counts(self, parts: Sequence[MediaPart]) -> None:
        """Raises ApiError at the first part over the number of images or videos."""
        for modality, limit in (("image", self._limits.max_images), ("video", self._limits.max_videos)):
            same = [part for part in parts if part.modality == modality]
            if len(same) > limit:
                problem = _over(f"the request holds {len(same)} {modality}s; the limit is {limit}")
                raise problem.at(same[limit].param)

    def charge_bytes(self, size: int) -> None:
        self._bytes += size
        if self._bytes > self._limits.max_total_bytes:
            raise _over(
                f"the request's media is larger than {mib(self._limits.max_total_bytes)} together, "
                "the limit for one request"
            )

    def charge_pixels(self, pixels: int) -> None:
        self._pixels += pixels
        if self._pixels > self._limits.max_total_pixels:
            raise _over(
                f"the request's media holds more than {self._limits.max_total_pixels} pixels together, "
                "the limit for one request"
            )

    def charge_tokens(self, tokens: int) -> None:
        self._tokens += tokens
        if self._tokens > self._limits.max_total_tokens:
            raise _over(
                f"the request's media needs more than {self._limits.max_total_tokens} vision tokens together, "
                "the limit for one request; send fewer or smaller pictures"
            )


class Shares:
    """Requests being prepared, and their parts by tenant."""

    def __init__(self, max_requests: int, max_parts_per_tenant: int) -> None:
        self._max_requests = max_requests
        self._max_parts = max_parts_per_tenant
        self._requests = 0
        self._parts: dict[str, int] = {}

    @contextmanager
    def take(self, tenant: str, parts: Sequence[MediaPart]) -> Iterator[None]:
        """Raises ApiError: `overloaded`; `rate_limit_exceeded`, but never for a tenant's only request."""
        if self._requests >= self._max_requests:
            message = f"the media of {self._requests} requests is being prepared, the most allowed. Try again"
            raise ApiError("overloaded", message, param=parts[0].param)
        held = self._parts.get(tenant, 0)
        if held and held + len(parts) > self._max_parts:
            message = (
                f"{held} pictures and videos of yours are being prepared; the limit is {self._max_parts}. Try again"
            )
            raise ApiError("rate_limit_exceeded", message, param=parts[0].param)
        self._requests += 1
        self._parts[tenant] = held + len(parts)
        try:
            yield
        finally:
            self._requests -= 1
            self._parts[tenant] -= len(parts)
            if not self._parts[tenant]:
                del self._parts[tenant]
