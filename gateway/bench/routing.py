"""`catalejo bench routing`: routing policies against traffic, in a simulation with the gateway's own policy code.

Workers are simulated: a prefix cache (LRU over blocks, a real bound, filled when a prompt has been computed), a number of
places, prefill at a fixed token rate that concurrent prompts share one after the other, decode at a fixed time per token.
The ideal is one worker with an infinite cache that sees every request: no policy over N caches can do better.

  hit rate     cached prompt tokens / prompt tokens, by the workers' real caches, not by the policy's guess
  of ideal     hit rate / the ideal's
  imbalance    busiest worker's computed tokens / the mean (1.00 is even)
  ttft         from arrival to the end of prefill, waiting included, seconds of simulated time
"""

from __future__ import annotations

import heapq
import itertools
import json
import random
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from gateway.routing.policies import Policy, RouteRequest, make_policy
from gateway.routing.policies.simple import PowerOfTwo
from gateway.routing.settings import RoutingSettings

POLICIES: Final = ("round_robin", "power_of_two", "least_load", "consistent_hash", "prefix_aware")
BLOCK: Final = 512


@dataclass(frozen=True, slots=True)
class Request:
    """`names`: one per whole block of BLOCK tokens, equal names for equal prefixes."""

    at_s: float
    names: tuple[bytes, ...]
    prompt_tokens: int
    output_tokens: int
    session: str


@dataclass(frozen=True, slots=True)
class Cluster:
    """A worker's speed and size; the defaults are of the order of M3 on 8 GPUs."""

    workers: int = 8
    cache_tokens: int = 4_000_000
    prefill_tokens_per_s: float = 30_000.0
    token_s: float = 0.02
    places: int = 64


@dataclass
class SimulatedWorker:
    name: str
    cluster: Cluster
    cache: OrderedDict[bytes, None] = field(default_factory=OrderedDict)
    in_flight: int = 0
    pending_tokens: int = 0
    resident_tokens: int = 0
    computed: int = 0
    prefill_free_at: float = 0.0

    @property
    def reported_load(self) -> float | None:
        return float(self.in_flight)

    def longest(self, names: Sequence[bytes]) -> int:
        for i, name in enumerate(names):
            if name not in self.cache:
                return i
        return len(names)

    def fill(self, names: Sequence[bytes]) -> None:
        for name in reversed(names):
            self.cache[name] = None
            self.cache.move_to_end(name)
        while len(self.cache) > self.cluster.cache_tokens // BLOCK:
            self.cache.popitem(last=False)


@dataclass(frozen=True, slots=True)
class Result:
    policy: str
    hit_rate: float
    of_ideal: float
    imbalance: float
    ttft_p50_s: float
    ttft_p99_s: float


def ideal_hit_rate(requests: Iterable[Request]) -> float:
    seen: set[bytes] = set()
    cached = total = 0
    for r in requests:
        hit = next((i for i, n in enumerate(r.names) if n not in seen), len(r.names))
        cached += hit * BLOCK
        total += r.prompt_tokens
        seen.update(r.names)
    return cached / total


class SimulatedClock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def simulate(
    policy_name: str, policy: Policy, requests: Sequence[Request], cluster: Cluster, ideal: float, clock: SimulatedClock
) -> Result:
    workers = [SimulatedWorker(f"worker-{i}", cluster) for i in range(cluster.workers)]
    by_name = {w.name: w for w in workers}
    ends: list[tuple[float, int, str, SimulatedWorker, Request, int]] = []
    order = itertools.count()
    cached_tokens = 0
    ttfts: list[float] = []

    def settle(until: float) -> None:
        while ends and ends[0][0] <= until:
            _, _, what, w, r, new = heapq.heappop(ends)
            if what == "prefilled":
                w.pending_tokens -= new
                w.fill(r.names)
            else:
                w.in_flight -= 1
                w.resident_tokens -= r.prompt_tokens

    for r in requests:
        clock.now = r.at_s
        settle(r.at_s)
        route = RouteRequest(r.prompt_tokens, r.names, BLOCK, r.session)
        choice = policy.choose(workers, route)
        policy.sent(choice.name, route)
        w = by_name[choice.name]
        guessed_new = r.prompt_tokens - choice.cached_tokens
        # What the cache really holds when this prompt's turn comes: earlier prompts there are computed by then.
        begins = max(r.at_s, w.prefill_free_at)
        queued = [e for e in ends if e[3] is w and e[2] == "prefilled"]
        hit = max([w.longest(r.names)] + [_common(r.names, e[4].names) for e in queued]) * BLOCK
        new = max(1, r.prompt_tokens - hit)
        cached_tokens += min(hit, r.prompt_tokens - 1)
        prefilled = begins + new / cluster.prefill_tokens_per_s
        w.prefill_free_at = prefilled
        w.computed += new
        w.in_flight += 1
        w.pending_tokens += guessed_new
        w.resident_tokens += r.prompt_tokens
        ttfts.append(prefilled - r.at_s)
        heapq.heappush(ends, (prefilled, next(order), "prefilled", w, r, guessed_new))
        over = prefilled + r.output_tokens * cluster.token_s * max(1.0, w.in_flight / cluster.places)
        heapq.heappush(ends, (over, next(order), "over", w, r, 0))
    total = sum(r.prompt_tokens for r in requests)
    work = [w.computed + 1 for w in workers]
    ttfts.sort()
    rate = cached_tokens / total
    return Result(
        policy_name,
        rate,
        rate / ideal if ideal else 1.0,
        max(work) / (sum(work) / len(work)),
        ttfts[len(ttfts) // 2],
        ttfts[int(len(ttfts) * 0.99)],
    )


def _common(a: Sequence[bytes], b: Sequence[bytes]) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def mooncake(path: Path, speed: float = 1.0) -> list[Request]:
    """The Mooncake conversation trace: hash_ids name 512-token blocks by their whole prefix."""
    out = []
    for line in path.read_text().splitlines():
        row = json.loads(line)
        whole = row["input_length"] // BLOCK
        names = tuple(int(h).to_bytes(8, "big") for h in row["hash_ids"][:whole])
        session = str(row["hash_ids"][:2])
        out.append(Request(row["timestamp"] / 1e3 / speed, names, row["input_length"], row["output_length"], session))
    return sorted(out, key=lambda r: r.at_s)


def agentic(seed: int, sessions: int = 400, seconds: float = 1800.0) -> list[Request]:
    """Coding agents: a tools prefix all share, one of 100 group prefixes (Zipf), a session's own opening, turns that append."""
    rng = random.Random(seed)
    fresh = itertools.count(1)

    def blocks(tokens: float) -> list[bytes]:
        return [next(fresh).to_bytes(8, "big") for _ in range(max(0, round(tokens / BLOCK)))]

    shared = blocks(32_000)
    groups = [blocks(10_000) for _ in range(100)]
    weights = [1 / (i + 1) ** 0.6 for i in range(100)]
    out: list[Request] = []
    for number in range(sessions):
        at = rng.uniform(0, seconds)
        names = [*shared, *rng.choices(groups, weights)[0], *blocks(rng.lognormvariate(8.5, 1.48))]
        for _ in range(max(1, min(200, round(rng.lognormvariate(2.7, 1.0))))):
            names = names + blocks(rng.lognormvariate(8.3, 0.9))
            if len(names) * BLOCK > 200_000:
                break
            output = max(16, min(10_000, round(rng.lognormvariate(6.68, 0.67))))
            out.append(Request(at, tuple(names), len(names) * BLOCK + 100, output, str(number)))
            gap = rng.lognormvariate(0.7, 1.35) if rng.random() < 0.7 else rng.lognormvariate(2.7, 1.18)
            at += output * 0.02 + gap
    return sorted(out, key=lambda r: r.at_s)


def compare(requests: Sequence[Request], cluster: Cluster, policies: Sequence[str] = POLICIES) -> list[Result]:
    ideal = ideal_hit_rate(requests)
    out = []
    for name in policies:
        settings = RoutingSettings(policy=name, block_tokens=BLOCK, index_tokens_per_worker=cluster.cache_tokens)  # type: ignore[arg-type]
        clock = SimulatedClock()
        policy = PowerOfTwo(random.Random(0)) if name == "power_of_two" else make_policy(settings, clock)
        out.append(simulate(name, policy, requests, cluster, ideal, clock))
    return out


def run(trace: Path | None, workers: int, seed: int, as_json: bool) -> int:
    from rich.console import Console
    from rich.table import Table

    traffic: dict[str, tuple[list[Request], Cluster]] = {
        "agentic (synthetic)": (agentic(seed), Cluster(workers=workers)),
    }
    if trace is not None:
        for speed in (1, 4):
            traffic[f"{trace.name} x{speed}"] = (mooncake(trace, speed), Cluster(workers=workers))
    document: dict[str, Any] = {}
    console = Console(width=110)
    for name, (requests, cluster) in traffic.items():
        ideal = ideal_hit_rate(requests)
        results = compare(requests, cluster)
        document[name] = {
            "requests": len(requests),
            "ideal_hit_rate": ideal,
            "policies": {r.policy: {k: getattr(r, k) for k in Result.__slots__ if k != "policy"} for r in results},
        }
        table = Table(title=f"{name}: {len(requests)} requests, {workers} workers, ideal hit rate {ideal:.1%}")
        for column in ("policy", "hit rate", "of ideal", "imbalance", "ttft p50, s", "ttft p99, s"):
            table.add_column(column, justify="left" if column == "policy" else "right")
        for r in results:
            table.add_row(
                r.policy,
                f"{r.hit_rate:.1%}",
                f"{r.of_ideal:.1%}",
                f"{r.imbalance:.2f}",
                f"{r.ttft_p50_s:.2f}",
                f"{r.ttft_p99_s:.2f}",
            )
        if not as_json:
            console.print(table)
    if as_json:
        print(json.dumps(document, indent=2))
    return 0
