"""May these figures be quoted? VALID, or INVALID with reasons; each reason names figure, bound and remedy."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from loadtest.load import Health, Load
from loadtest.reading import Sample
from loadtest.statistics import percentile


@dataclass(frozen=True, slots=True)
class Bounds:
    """send lag, loop lag and the longest standstill of the client in seconds, the rest as shares."""

    send_lag_p99_s: float = 0.05
    send_lag_share_of_ttft: float = 0.05
    loop_lag_p99_s: float = 0.02
    stall_s: float = 0.5
    cpu_share: float = 0.9
    delivered_share: float = 0.95
    error_share: float = 0.01
    least_samples: int = 30


@dataclass(frozen=True, slots=True)
class Verdict:
    valid: bool
    reasons: tuple[str, ...]
    warnings: tuple[str, ...]


def judge(
    measured: Sequence[Sample],
    health: Sequence[Health],
    load: Load,
    ttft_p50_s: float | None,
    bounds: Bounds = Bounds(),
    *,
    interrupted_s: float | None = None,
    broken: Sequence[str] = (),
) -> Verdict:
    reasons: list[str] = list(broken)
    warnings: list[str] = []
    if interrupted_s is not None:
        reasons.append(
            f"the run was cut short after {interrupted_s:.1f} of {load.total_s:g} s: run it again, to its end"
        )
    if len(measured) < bounds.least_samples:
        reasons.append(
            f"{len(measured)} measured requests; at least {bounds.least_samples} are needed: run longer (--duration)"
        )
    if not measured:
        return Verdict(False, tuple(reasons), tuple(warnings))
    lag = percentile([max(0.0, s.send_lag) for s in measured], 99) or 0.0
    allowed = max(bounds.send_lag_p99_s, bounds.send_lag_share_of_ttft * (ttft_p50_s or 0.0))
    if lag > allowed:
        reasons.append(
            f"requests left {lag * 1e3:.1f} ms late (p99; bound {allowed * 1e3:.0f} ms): "
            "use more --workers or another machine"
        )
    lags = np.concatenate([np.asarray(h.lags) for h in health]) if any(h.lags for h in health) else np.zeros(0)
    loop_lag = percentile(lags, 99) or 0.0
    if loop_lag > bounds.loop_lag_p99_s:
        reasons.append(
            f"the client's event loop ran {loop_lag * 1e3:.1f} ms late (p99; "
            f"bound {bounds.loop_lag_p99_s * 1e3:.0f} ms): use more --workers, or less load per machine"
        )
    longest = float(lags.max(initial=0.0))
    if longest > bounds.stall_s:
        reasons.append(
            f"the client stood still for {longest:.1f} s (bound {bounds.stall_s:g} s), and every answer due in it is late: "
            "see what else runs on this machine"
        )
    busiest = max((h.cpu_s / h.wall_s for h in health if h.wall_s), default=0.0)
    if busiest > bounds.cpu_share:
        reasons.append(f"a load worker used {busiest:.0%} of a core (bound {bounds.cpu_share:.0%}): use more --workers")
    planned, sent = sum(h.planned for h in health), sum(h.sent for h in health)
    if load.mode == "open" and sent < bounds.delivered_share * planned:
        reasons.append(f"{sent} of {planned} planned requests were sent (bound {bounds.delivered_share:.0%})")
    asked = load.rate * load.duration_s
    steady = load.mode == "open" and load.max_requests is None and load.ramp_s <= load.warmup_s
    steady = steady and interrupted_s is None
    # Three standard deviations of a Poisson count are chance, not a shortfall.
    if steady and len(measured) < bounds.delivered_share * asked - 3 * math.sqrt(asked):
        reasons.append(
            f"asked for {load.rate:g} requests/s, delivered {len(measured) / load.duration_s:.3g} "
            f"(bound {bounds.delivered_share:.0%}): later turns of a session need a --warmup as long as a session"
        )
    failed = sum(bool(s.error) for s in measured)
    if failed > bounds.error_share * len(measured):
        reasons.append(
            f"{failed} of {len(measured)} measured requests failed (bound {bounds.error_share:.0%}): see error classes"
        )
    elif failed:
        warnings.append(f"{failed} measured requests failed")
    if (os.cpu_count() or 1) < len(health):
        warnings.append(f"{len(health)} workers share {os.cpu_count()} cores")
    if load.warmup_s <= 0:
        warnings.append("no warm-up: the first requests pay for cold caches and connections (--warmup)")
    return Verdict(not reasons, tuple(reasons), tuple(warnings))
