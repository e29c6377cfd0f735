"""One way to time GPU work: a CUDA graph over several input sets, replayed, median of device events.

Sets together are several times the L2, so no replay finds its inputs in the cache; launch cost is that of a graph node."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Timing:
    """Microseconds per call: median over replays, and the spread between the 10th and 90th percentile."""

    us: float
    spread_us: float


def time_graph(call: Callable[[int], object], sets: int, *, replays: int = 15, repeats: int = 1) -> Timing:
    """Times call(0), call(1) .. call(sets - 1), `repeats` rounds of them in one graph."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for i in range(min(2, sets)):
            call(i)
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(repeats):
            for i in range(sets):
                call(i)
    graph.replay()
    torch.cuda.synchronize()
    times = []
    for _ in range(replays):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) * 1000 / (sets * repeats))
    return Timing(statistics.median(times), percentile(times, 90) - percentile(times, 10))


def percentile(values: Sequence[float], percent: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))]
