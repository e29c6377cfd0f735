"""A run over several processes: the parent plans and watches, each worker drives its own loop and spool.

Linux's monotonic clock is one for all processes, so stamps of different workers compare."""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import multiprocessing.connection
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from loadtest import reading, spool
from loadtest.executor import Executor
from loadtest.interrupt import Interrupt, interruptible
from loadtest.load import Health, Load
from loadtest.payloads.conversation import Sessions, Turn
from loadtest.payloads.text import Calibration
from loadtest.replay import TraceBodies, read_trace, share
from loadtest.scenario import Scenario
from loadtest.wire_client import Pool

START_DELAY_S = 1.0
STOP_S = 10.0
"""Given to the workers to put down what they hold when a run is interrupted."""


@dataclass(frozen=True, slots=True)
class Job:
    """All that a worker needs; plain data."""

    url: str
    path: str
    headers: dict[str, str]
    model: str
    scenario: Scenario
    load: Load
    calibration: Calibration
    seed: int
    workers: int
    trace: str | None = None
    speed: float = 1.0


@dataclass(frozen=True, slots=True)
class Progress:
    """What can be said while a run goes on. `health` holds each worker's counts so far and its latest lags; `spools` the files
    that the workers write."""

    health: list[Health]
    offset_s: float
    spools: list[Path]


OnProgress = Callable[[Progress], None]


@dataclass
class Outcome:
    """`interrupted_s`: when the run was cut short, from its start, or None; `broken`: why workers ended early."""

    samples: list[reading.Sample]
    health: list[Health]
    interrupted_s: float | None = None
    broken: list[str] = field(default_factory=list)


def run(job: Job, folder: Path, on_progress: OnProgress | None = None) -> Outcome:
    """Runs the load and reads the spools. Raises RuntimeError when a worker cannot start.

    Once the load has begun nothing is lost: SIGINT, SIGTERM or a worker's death end it early, and what came until then is
    the outcome. A second signal ends it at once."""
    context = multiprocessing.get_context("spawn")
    pipes: list[Connection] = []
    processes = []
    spools = [folder / f"worker-{worker}.spool" for worker in range(job.workers)]
    try:
        for worker in range(job.workers):
            ours, theirs = context.Pipe()
            process = context.Process(target=_worker, args=(job, worker, spools[worker], theirs), daemon=True)
            process.start()
            theirs.close()
            pipes.append(ours)
            processes.append(process)
        for pipe in pipes:
            _expect(pipe, "ready")
        with interruptible() as interrupt:
            start = time.monotonic() + START_DELAY_S
            for pipe in pipes:
                pipe.send(start)
            watch = _Watch(pipes, start, spools, on_progress)
            watch.until_done(interrupt)
    except BaseException:
        for process in processes:
            process.kill()
        raise
    finally:
        for process in processes:
            process.join(5)
            if process.is_alive():
                process.kill()
                process.join()
        for pipe in pipes:
            pipe.close()
    samples = []
    for path in spools:
        with path.open("rb") as f:
            samples += [reading.sample(plan, exchange) for plan, exchange in spool.read(f)]
    samples.sort(key=lambda s: s.due)
    return Outcome(samples, watch.healths(), watch.interrupted_s, watch.broken)


def _expect(pipe: Connection, kind: str) -> Any:
    try:
        said, value = pipe.recv()
    except EOFError:
        raise RuntimeError("a load worker died; its last words are above") from None
    if said == "failed":
        raise RuntimeError(value)
    if said != kind:
        raise RuntimeError(f"a load worker said {said!r} where {kind!r} was due")
    return value


class _Watch:
    """Listens to the workers until each is done, dead, or told to stop and out of time."""

    def __init__(
        self, pipes: list[Connection], start: float, spools: list[Path], on_progress: OnProgress | None
    ) -> None:
        self._open = dict(enumerate(pipes))
        self._start, self._spools, self._on_progress = start, spools, on_progress
        self._latest: dict[int, Health] = {}
        self._lags: dict[int, list[float]] = {i: [] for i in self._open}
        self.interrupted_s: float | None = None
        self.broken: list[str] = []

    def until_done(self, interrupt: Interrupt) -> None:
        stop_by: float | None = None
        while self._open and (stop_by is None or time.monotonic() < stop_by):
            for ready in multiprocessing.connection.wait(list(self._open.values()), timeout=0.25):
                worker = next(i for i, pipe in self._open.items() if pipe is ready)
                self._hear(worker)
            if self._on_progress is not None and self._latest:
                self._on_progress(Progress(list(self._latest.values()), self._offset, self._spools))
            if stop_by is None and (interrupt.wanted or self.broken):
                self.interrupted_s = max(0.0, self._offset)
                stop_by = time.monotonic() + STOP_S
                for pipe in self._open.values():
                    with contextlib.suppress(OSError):  # it ended meanwhile
                        pipe.send("stop")

    @property
    def _offset(self) -> float:
        return time.monotonic() - self._start

    def _hear(self, worker: int) -> None:
        try:
            said, value = self._open[worker].recv()
        except (EOFError, OSError):
            self.broken.append(f"load worker {worker} died after {self._offset:.1f} s")
            del self._open[worker]
            return
        if said == "failed":
            self.broken.append(value)
        else:
            self._latest[worker] = value
            self._lags[worker] += value.lags
        if said != "progress":
            del self._open[worker]

    def healths(self) -> list[Health]:
        """Of every worker that was heard of, with all its lags."""
        return [replace(health, lags=self._lags[worker]) for worker, health in sorted(self._latest.items())]


def _worker(job: Job, worker: int, path: Path, pipe: Connection) -> None:
    # A terminal's Ctrl-C reaches the whole group; the parent decides and says so through the pipe.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        import uvloop
    except ImportError:
        runner = asyncio.run
    else:
        runner = uvloop.run
    try:
        runner(_work(job, worker, path, pipe))
    except Exception as e:  # the parent must hear of anything that ends a worker
        with contextlib.suppress(OSError):  # unless it is gone itself
            pipe.send(("failed", f"load worker {worker}: {type(e).__name__}: {e}"))


def _trace(job: Job, worker: int) -> Iterator[tuple[float, Turn]] | None:
    if job.trace is None:
        return None
    bodies = TraceBodies(job.model, job.seed, job.calibration)
    entries = [e for e in read_trace(Path(job.trace)) if e.at_s / job.speed < job.load.total_s]
    return (
        (offset, Turn(index, 0, bodies.body(index, entry), 0.0, entry.output_tokens, 0, 0))
        for index, offset, entry in share(entries, worker, job.workers, job.speed)
    )


async def _work(job: Job, worker: int, path: Path, pipe: Connection) -> None:
    pool = Pool(job.url, job.headers)
    sessions = Sessions(job.scenario, job.model, job.seed, job.calibration)
    sessions.prepare()
    out = spool.Spool(path)
    executor = Executor(
        pool,
        job.path,
        sessions,
        job.load,
        out,
        worker=worker,
        workers=job.workers,
        seed=job.seed,
        trace=_trace(job, worker),
    )
    if job.load.mode == "closed" and job.trace is None:
        await pool.open(len(range(worker, job.load.concurrency, job.workers)))
    pipe.send(("ready", None))
    start: float = await asyncio.to_thread(pipe.recv)
    loop = asyncio.get_running_loop()

    def stop() -> None:
        """The word came through the pipe, or the parent is gone."""
        loop.remove_reader(pipe.fileno())
        executor.stop()

    loop.add_reader(pipe.fileno(), stop)
    told = 0

    def fresh(health: Health) -> Health:
        """With the lags since last time only: a day of them must not be sent again and again."""
        nonlocal told
        part, told = health.lags[told:], len(health.lags)
        return replace(health, lags=part)

    def report(health: Health) -> None:
        out.flush()
        pipe.send(("progress", fresh(health)))

    try:
        health = await executor.run(start, report)
    finally:
        loop.remove_reader(pipe.fileno())
        pool.close()
        out.close()
    pipe.send(("done", fresh(health)))
