"""Current figures of a run in progress, read from the workers' spools with the reader that the report uses.

The parent does this, within `BUDGET_S` of CPU a time; when there is more to read than that, the rest of what came is passed
over, and the figures are those of a sample. Memory: two histograms and one sum per call over the last `WINDOW_S`."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable
from pathlib import Path
from typing import BinaryIO

from loadtest import reading, spool
from loadtest.metrics import latency
from loadtest.statistics import Histogram

BUDGET_S = 0.05
WINDOW_S = 10.0


class Figures:
    """`ttft` and `itl` (per token) in seconds. Once requests of the measured phase come back, those alone count."""

    def __init__(self) -> None:
        self.ttft, self.itl = Histogram(), Histogram()
        self.errors = 0
        self._measuring = False
        self._files: dict[Path, BinaryIO] = {}
        self._tokens: deque[tuple[float, float]] = deque()

    def read(self, spools: Iterable[Path], now: float) -> None:
        """Takes in what the workers wrote since the last call; `now` in seconds on any clock that only goes forward."""
        until = time.perf_counter() + BUDGET_S
        tokens, taken, passed = 0, 0, 0
        for path in spools:
            if path not in self._files:
                self._files[path] = path.open("rb")
            file = self._files[path]
            for plan, exchange in spool.read(file):
                sample = reading.sample(plan, exchange)
                self._add(sample)
                tokens, taken = tokens + (sample.output_tokens or 0), taken + 1
                if time.perf_counter() > until:
                    passed += spool.skip(file)
                    break
        self._tokens.append((now, tokens * (taken + passed) / taken if taken else 0.0))
        while len(self._tokens) > 2 and self._tokens[1][0] <= now - WINDOW_S:
            self._tokens.popleft()

    def tokens_per_s(self) -> float | None:
        """Tokens of the answers that ended in the last `WINDOW_S`."""
        if len(self._tokens) < 2:
            return None
        (first, _), (last, _) = self._tokens[0], self._tokens[-1]
        return sum(tokens for _, tokens in list(self._tokens)[1:]) / (last - first) if last > first else None

    def close(self) -> None:
        for file in self._files.values():
            file.close()
        self._files.clear()

    def _add(self, sample: reading.Sample) -> None:
        measured = sample.plan.phase == "measure"
        if measured and not self._measuring:
            self._measuring, self.errors = True, 0
            self.ttft, self.itl = Histogram(), Histogram()
        if self._measuring and not measured:
            return
        self.errors += not sample.ok
        first = latency.ttft(sample)
        if first is not None:
            self.ttft.add(first)
        for gap, count in latency.itl(sample):
            self.itl.add(gap, max(1, round(count)))
