"""When requests are due: offsets in seconds from the run's start, drawn before the run from its seed.

constant   every 1/rate
poisson    exponential gaps
gamma      gaps with the same mean and shape `burstiness` (1 is Poisson, below 1 burstier, above 1 smoother)
`ramp_s` stretches the first part linearly from rate 0 to the full rate.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Literal

import numpy as np

Kind = Literal["constant", "poisson", "gamma"]


def due_times(
    kind: Kind,
    rate: float,
    duration_s: float,
    rng: np.random.Generator,
    *,
    burstiness: float = 1.0,
    ramp_s: float = 0.0,
) -> Iterator[float]:
    """Offsets below `duration_s`. `rate` in requests per second."""
    if not rate > 0 or not math.isfinite(rate):
        raise ValueError(f"rate is {rate}; it must be a positive number of requests per second")
    shape = {"constant": math.inf, "poisson": 1.0, "gamma": burstiness}[kind]
    if not shape > 0:
        raise ValueError(f"burstiness is {burstiness}; it must be positive")
    work = 0.0  # requests' worth of unramped time
    while True:
        gap = 1.0 / rate if math.isinf(shape) else float(rng.gamma(shape, 1.0 / (rate * shape)))
        work += gap
        due = _unramp(work, ramp_s)
        if due >= duration_s:
            return
        yield due


def _unramp(work: float, ramp_s: float) -> float:
    """The time by which a rate that rises linearly over `ramp_s` has done what the full rate does in `work` seconds.

    Integral of min(1, t / ramp): t^2 / (2 ramp) up to the ramp's end, then ramp / 2 + (t - ramp)."""
    if work < ramp_s / 2:
        return math.sqrt(2 * ramp_s * work)
    return work + ramp_s / 2


def expected_count(rate: float, duration_s: float, ramp_s: float) -> float:
    """Mean number of requests of `due_times`."""
    inside = min(ramp_s, duration_s)
    ramped = inside * inside / (2 * ramp_s) if ramp_s else 0.0
    return rate * (ramped + max(0.0, duration_s - ramp_s))
