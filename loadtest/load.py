"""How hard a run pushes, and how the client itself fared meanwhile."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from loadtest.arrival import Kind


@dataclass(frozen=True, slots=True)
class Load:
    """How hard to push. `rate` is in requests per second (open loop), `concurrency` in users (closed loop)."""

    mode: Literal["open", "closed"] = "open"
    arrival: Kind = "poisson"
    rate: float = 1.0
    burstiness: float = 1.0
    concurrency: int = 1
    ramp_s: float = 0.0
    warmup_s: float = 5.0
    duration_s: float = 30.0
    cooldown_s: float = 0.0
    timeout_s: float = 600.0
    max_requests: int | None = None

    @property
    def total_s(self) -> float:
        return self.warmup_s + self.duration_s + self.cooldown_s

    def phase(self, offset_s: float) -> str:
        if offset_s < self.warmup_s:
            return "warmup"
        return "measure" if offset_s < self.warmup_s + self.duration_s else "cooldown"


@dataclass
class Health:
    """How the client itself did: lateness of a 20 ms timer (seconds), CPU seconds, planned and sent requests."""

    lags: list[float] = field(default_factory=list)
    cpu_s: float = 0.0
    wall_s: float = 0.0
    planned: int = 0
    sent: int = 0
    finished: int = 0
    errors: int = 0
    """Lost connections, timeouts and answers other than 200; what stands in a stream is read later."""
