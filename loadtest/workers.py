"""A run over several processes: the parent plans and watches, each worker drives its own loop and spool.

Linux's monotonic clock is one for all processes, so stamps of different workers compare."""

from __future__ import annotations

import asyncio
import multiprocessing
import multiprocessing.connection
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from loadtest import reading, spool
from loadtest.executor import Executor, Health, Load
from loadtest.payloads.conversation import Sessions, Turn
from loadtest.payloads.text import Calibration
from loadtest.replay import TraceBodies, read_trace, share
from loadtest.scenario import Scenario
from loadtest.wire_client import Pool

START_DELAY_S = 1.0


@dataclass(frozen=True, slots=True)
class Job:
    """All that a worker needs; plain data."""

    url: str
    path: str
    headers: dict[str, str]
    model: str
    scenario: dict[str, Any]
    load: Load
    calibration: Calibration
    seed: int
    workers: int
    trace: str | None = None
    speed: float = 1.0


@dataclass
class Outcome:
    samples: list[reading.Sample]
    health: list[Health]


def run(job: Job, folder: Path, on_progress: Callable[[list[Health], float], None] | None = None) -> Outcome:
    """Runs the load and reads the spools. Raises RuntimeError when a worker died."""
    context = multiprocessing.get_context("spawn")
    pipes: list[multiprocessing.connection.Connection] = []
    processes = []
    for worker in range(job.workers):
        ours, theirs = context.Pipe()
        process = context.Process(target=_worker, args=(job, worker, folder, theirs), daemon=True)
        process.start()
        theirs.close()
        pipes.append(ours)
        processes.append(process)
    try:
        for pipe in pipes:
            _expect(pipe, "ready")
        start = time.monotonic() + START_DELAY_S
        for pipe in pipes:
            pipe.send(start)
        health = _watch(pipes, start, on_progress)
    finally:
        for process in processes:
            process.join(5)
            if process.is_alive():
                process.kill()
    samples = [
        reading.sample(plan, exchange)
        for worker in range(job.workers)
        for plan, exchange in spool.read(folder / f"worker-{worker}.spool")
    ]
    samples.sort(key=lambda s: s.due)
    return Outcome(samples, health)


def _expect(pipe: multiprocessing.connection.Connection, kind: str) -> Any:
    try:
        said, value = pipe.recv()
    except EOFError:
        raise RuntimeError("a load worker died; its last words are above") from None
    if said == "failed":
        raise RuntimeError(value)
    if said != kind:
        raise RuntimeError(f"a load worker said {said!r} where {kind!r} was due")
    return value


def _watch(
    pipes: list[multiprocessing.connection.Connection],
    start: float,
    on_progress: Callable[[list[Health], float], None] | None,
) -> list[Health]:
    latest: dict[int, Health] = {}
    finished: dict[int, Health] = {}
    while len(finished) < len(pipes):
        waiting = [p for i, p in enumerate(pipes) if i not in finished]
        for ready in multiprocessing.connection.wait(waiting, timeout=1.0):
            i = pipes.index(ready)  # type: ignore[arg-type]
            try:
                said, value = pipes[i].recv()
            except EOFError:
                raise RuntimeError(f"load worker {i} died in the middle of the run") from None
            if said == "failed":
                raise RuntimeError(value)
            (finished if said == "done" else latest)[i] = value
            latest[i] = value
        if on_progress is not None and latest:
            on_progress(list(latest.values()), time.monotonic() - start)
    return [finished[i] for i in range(len(pipes))]


def _worker(job: Job, worker: int, folder: Path, pipe: multiprocessing.connection.Connection) -> None:
    try:
        import uvloop
    except ImportError:
        runner = asyncio.run
    else:
        runner = uvloop.run
    try:
        runner(_work(job, worker, folder, pipe))
    except Exception as e:  # the parent must hear of anything that ends a worker
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


async def _work(job: Job, worker: int, folder: Path, pipe: multiprocessing.connection.Connection) -> None:
    pool = Pool(job.url, job.headers)
    sessions = Sessions(Scenario.model_validate(job.scenario), job.model, job.seed, job.calibration)
    sessions.prepare()
    out = spool.Spool(folder / f"worker-{worker}.spool")
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
    sent_lags = 0

    def report(health: Health, _: dict[str, float]) -> None:
        nonlocal sent_lags
        fresh = Health(
            health.lags[sent_lags:],
            planned=health.planned,
            sent=health.sent,
            finished=health.finished,
            errors=health.errors,
        )
        sent_lags = len(health.lags)
        pipe.send(("progress", fresh))

    health = await executor.run(start, report)
    pool.close()
    out.close()
    pipe.send(("done", health))
