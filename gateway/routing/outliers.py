"""Engines far from their peers: one that fails much more often, or whose first tokens come much later, is left alone a while.

The breaker sees failures in a row and health checks see death; this sees the sick engine that answers checks and every
other request. Judged is a window of the last answers, against the other engines' in the same window, so an overloaded
cluster or long prompts for all make nobody an outlier. First tokens are compared as seconds / (prompt tokens to compute +
`TOKENS_AT_ONCE`), since policies send long prompts and short ones to different engines."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from statistics import fmean, median
from time import monotonic
from typing import Final, Literal, Protocol, TypeVar

from gateway.routing.settings import OutlierSettings

TOKENS_AT_ONCE: Final = 2048
"""Prompts shorter than this take about one step of an engine whatever their length."""
REMEMBERED: Final = 512
LEAST_S: Final = 1.0
"""A median first token within a second is late for nobody."""
Reason = Literal["errors", "latency"]


class Recent:
    """One engine's last answers."""

    def __init__(self, window_s: float, clock: Callable[[], float] = monotonic) -> None:
        self._window_s = window_s
        self._clock = clock
        self._outcomes: deque[tuple[float, bool]] = deque(maxlen=REMEMBERED)
        self._first: deque[tuple[float, float, float]] = deque(maxlen=REMEMBERED)

    def outcome(self, ok: bool) -> None:
        self._outcomes.append((self._clock(), ok))

    def first_token(self, seconds: float, new_tokens: int) -> None:
        self._first.append((self._clock(), seconds, seconds / (max(0, new_tokens) + TOKENS_AT_ONCE)))

    def errors(self, least: int) -> float | None:
        """The share that failed; None with fewer than `least` answers."""
        seen = [ok for t, ok in self._outcomes if t >= self._clock() - self._window_s]
        return seen.count(False) / len(seen) if len(seen) >= least else None

    def latency(self, least: int) -> tuple[float, float] | None:
        """(median seconds, median seconds per token of work); None with fewer than `least` first tokens."""
        seen = [(s, c) for t, s, c in self._first if t >= self._clock() - self._window_s]
        return (median(s for s, _ in seen), median(c for _, c in seen)) if len(seen) >= least else None

    def clear(self) -> None:
        self._outcomes.clear()
        self._first.clear()


class Judged(Protocol):
    @property
    def recent(self) -> Recent: ...
    @property
    def ejected(self) -> bool: ...


W = TypeVar("W", bound=Judged)


def outliers(workers: Sequence[W], settings: OutlierSettings) -> list[tuple[W, Reason]]:
    """Those to eject now, the worst first; never so many that more than `max_share` of the workers are ejected."""
    room = int(settings.max_share * len(workers)) - sum(w.ejected for w in workers)
    here = [w for w in workers if not w.ejected]
    if room < 1 or len(here) < 3:  # of two that differ nobody can say which is the sick one
        return []
    found: list[tuple[float, W, Reason]] = []
    errors = {i: e for i, w in enumerate(here) if (e := w.recent.errors(settings.min_requests)) is not None}
    latency = {i: v for i, w in enumerate(here) if (v := w.recent.latency(settings.min_requests)) is not None}
    for i, worker in enumerate(here):
        peers = [e for k, e in errors.items() if k != i]
        if i in errors and len(peers) >= 2 and errors[i] - fmean(peers) >= settings.error_excess:
            found.append((1 + errors[i], worker, "errors"))
            continue
        costs = [c for k, (_, c) in latency.items() if k != i]
        if i in latency and len(costs) >= 2:
            seconds, cost = latency[i]
            if seconds >= LEAST_S and cost >= settings.latency_factor * median(costs):
                found.append((cost, worker, "latency"))
    found.sort(key=lambda f: f[0], reverse=True)
    return [(worker, reason) for _, worker, reason in found[:room]]
