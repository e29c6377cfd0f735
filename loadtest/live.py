"""A live line while a run goes on: what was planned, sent and finished, and how late the client is."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from loadtest.executor import Health, Load
from loadtest.statistics import percentile


class Live:
    def __init__(self, load: Load, *, enabled: bool = True) -> None:
        self._load = load
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.fields[words]}"),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            disable=not enabled,
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

    def update(self, health: list[Health], offset_s: float) -> None:
        assert self._task is not None
        planned, finished, errors = (sum(getattr(h, k) for h in health) for k in ("planned", "finished", "errors"))
        lag = percentile([lag for h in health for lag in h.lags[-200:]], 99)
        phase = "draining" if offset_s > self._load.total_s else self._load.phase(max(0.0, offset_s))
        words = f"{planned} sent, {finished} finished, {errors} failed, loop lag p99 {(lag or 0) * 1e3:.1f} ms"
        self._progress.update(self._task, completed=min(offset_s, self._load.total_s), description=phase, words=words)
