"""What the server delivered over the measured window. Pure functions of samples.

The window runs from the first measured request's due time to the last one's end. Tokens are the server's count.
goodput: requests per second that met every objective given (ttft_s, tpot_s, e2e_s); failed requests meet none.
cost:    price of a GPU hour * GPUs * window / tokens, per million output tokens and per million tokens of both kinds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from loadtest.metrics import latency
from loadtest.reading import Sample


@dataclass(frozen=True, slots=True)
class Objectives:
    ttft_s: float | None = None
    tpot_s: float | None = None
    e2e_s: float | None = None

    def __bool__(self) -> bool:
        return any(v is not None for v in (self.ttft_s, self.tpot_s, self.e2e_s))


def window_s(samples: Sequence[Sample]) -> float:
    if not samples:
        return 0.0
    return max(s.due + s.end for s in samples) - min(s.due for s in samples)


def rate(total: float, seconds: float) -> float | None:
    return total / seconds if seconds > 0 else None


def meets(s: Sample, objectives: Objectives) -> bool:
    checks = (
        (objectives.ttft_s, latency.ttft(s)),
        (objectives.tpot_s, latency.tpot(s)),
        (objectives.e2e_s, latency.e2e(s)),
    )
    if not s.ok:
        return False
    # An answer of one token has no tpot and cannot break that objective.
    return all(limit is None or value is None or value <= limit for limit, value in checks)


def errors(samples: Sequence[Sample]) -> dict[str, int]:
    return dict(sorted(Counter(s.error for s in samples if s.error).items()))


def cost_per_million(gpu_hour_price: float, gpus: int, seconds: float, tokens: float) -> float | None:
    if tokens <= 0:
        return None
    return gpu_hour_price * gpus * seconds / 3600 / tokens * 1e6


def most_concurrent(samples: Sequence[Sample]) -> int:
    """Largest number of requests running at once, failed ones included."""
    edges = sorted([(s.due + s.send_lag, 1) for s in samples] + [(s.due + s.end, -1) for s in samples])
    running = most = 0
    for _, change in edges:
        running += change
        most = max(most, running)
    return most
