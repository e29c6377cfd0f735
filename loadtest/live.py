"""What is known while a run goes on: one live line in a terminal, plain lines now and then elsewhere. All on stderr."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from loadtest import workers
from loadtest.figures import Figures
from loadtest.load import Load
from loadtest.statistics import Histogram, percentile

REFRESH_S = 0.5


class Live:
    """`every_s`: seconds between plain lines where stderr is no terminal."""

    def __init__(
        self, load: Load, *, enabled: bool = True, every_s: float = 10.0, console: Console | None = None
    ) -> None:
        self._load, self._enabled = load, enabled
        self._console = console or Console(stderr=True)
        self._terminal = self._console.is_terminal
        self._period = REFRESH_S if self._terminal else every_s
        self._next = 0.0
        self._figures = Figures()
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=20),
            TextColumn("{task.fields[words]}"),
            TimeRemainingColumn(),
            console=self._console,
            disable=not (enabled and self._terminal),
            transient=True,
        )
        self._task: TaskID | None = None

    def __enter__(self) -> Self:
        self._progress.start()
        self._task = self._progress.add_task("calibrating", total=self._load.total_s, words="")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()
        self._figures.close()

    def update(self, progress: workers.Progress) -> None:
        if not self._enabled or progress.offset_s < 0 or time.monotonic() < self._next:
            return
        self._next = time.monotonic() + self._period
        self._figures.read(progress.spools, progress.offset_s)
        offset = max(0.0, progress.offset_s)
        phase = "draining" if offset > self._load.total_s else self._load.phase(offset)
        if not self._terminal:
            self._console.print(f"{offset:.0f} s, {phase}: {self._words(progress)}", soft_wrap=True, highlight=False)
        elif self._task is not None:
            completed = min(offset, self._load.total_s)
            self._progress.update(self._task, completed=completed, description=phase, words=self._words(progress))

    def _words(self, progress: workers.Progress) -> str:
        sent, finished, failed = (sum(getattr(h, k) for h in progress.health) for k in ("sent", "finished", "errors"))
        lag = percentile([lag for h in progress.health for lag in h.lags], 99)
        tokens = self._figures.tokens_per_s()
        return (
            f"{sent} sent, {sent - finished} in flight, {max(failed, self._figures.errors)} failed; "
            f"TTFT ms p50 {_ms(self._figures.ttft, 50)} p99 {_ms(self._figures.ttft, 99)}, "
            f"ITL p50 {_ms(self._figures.itl, 50)}; {'-' if tokens is None else f'{tokens:,.0f}'} tokens/s; "
            f"loop lag p99 {(lag or 0) * 1e3:.1f}"
        )


def _ms(histogram: Histogram, p: float) -> str:
    value = histogram.percentile(p)
    return "-" if value is None else f"{value * 1e3:,.1f}" if value < 1 else f"{value * 1e3:,.0f}"
