"""Runs one worker's share of the load on one event loop: sends when due, stamps, spools. An answer is parsed
here only when the session's next turn repeats it.

Open loop: sessions start at drawn times whatever the server does. Closed loop: `concurrency` users, each starting its
next request when the last one ended and its gap has passed. In both, a later turn of a session is due `gap_s` after the
answer before it. Latency counts from `due`; how late we were in sending is kept beside it (send lag).
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Iterator
from typing import Any

import numpy as np

from loadtest.arrival import due_times
from loadtest.load import Health, Load
from loadtest.payloads.conversation import Session, Sessions, Turn
from loadtest.reading import sample
from loadtest.spool import Plan, Spool
from loadtest.wire_client import Exchange, Pool

LAG_PERIOD_S = 0.02
REPORT_PERIOD_S = 0.5
AHEAD = 128
AHEAD_IDLE_S = 0.03
ERROR_PAUSE_S = 0.25
"""A closed loop's user waits this long after a failure: a server that refuses at once must not be hammered."""


def failed(exchange: Exchange) -> bool:
    """As far as can be told without reading the answer."""
    return bool(exchange.error) or exchange.raw[9:12] != b"200"


async def _until(due: float) -> None:
    """Sleeps until `due`, never less: some loops wake up to a millisecond early, and an early request flatters itself."""
    while (left := due - time.monotonic()) > 0:  # noqa: ASYNC110 - it is a clock that is waited for
        await asyncio.sleep(left if left > 0.002 else 0)


class Executor:
    def __init__(
        self,
        pool: Pool,
        path: str,
        sessions: Sessions,
        load: Load,
        spool: Spool,
        *,
        worker: int,
        workers: int,
        seed: int,
        trace: Iterable[tuple[float, Turn]] | None = None,
    ) -> None:
        """`trace`: (offset, turn) pairs instead of drawn sessions; made lazily, each just before it is due."""
        self._trace = trace
        self._pool, self._path, self._sessions, self._load, self._spool = pool, path, sessions, load, spool
        self._worker, self._workers = worker, workers
        self._rng = np.random.default_rng([seed, worker, 0xA1])
        self._numbers = iter(range(worker, 1 << 60, workers))
        self._tasks: set[asyncio.Task[Any]] = set()
        self._fault: BaseException | None = None
        self._start = 0.0
        self._stopping = asyncio.Event()
        self.health = Health()

    def stop(self) -> None:
        """Sends nothing more; what is under way is given up as "cancelled" and kept. `run` returns soon after."""
        self._stopping.set()

    async def run(self, start: float, report: Callable[[Health], None] | None = None) -> Health:
        """`start`: time.monotonic() of offset zero, the same in all workers. Raises what ended a task, such as a full disk."""
        self._start = start
        wall, cpu = time.monotonic(), time.process_time()
        watch = asyncio.create_task(self._watch(report))
        driving = asyncio.create_task(self._drive())
        stopped = asyncio.create_task(self._stopping.wait())
        await asyncio.wait((driving, stopped), return_when=asyncio.FIRST_COMPLETED)
        if not driving.done():
            driving.cancel()
            for task in self._tasks:
                task.cancel()
        stopped.cancel()
        watch.cancel()
        await asyncio.gather(stopped, watch, *self._tasks, return_exceptions=True)
        self.health.cpu_s += time.process_time() - cpu
        self.health.wall_s += time.monotonic() - wall
        with contextlib.suppress(asyncio.CancelledError):
            await driving
        if self._fault is not None:
            raise self._fault
        return self.health

    async def _drive(self) -> None:
        if self._trace is not None:
            await self._replay(self._trace)
        elif self._load.mode == "open":
            await self._open_loop()
        else:
            await self._closed_loop()
        await self._drain()

    # ------------------------------------------------------------------------------------------ driving
    def _schedule(self) -> Iterator[float]:
        load = self._load
        rate = load.rate / max(1.0, self._sessions.mean_turns) / self._workers
        return due_times(load.arrival, rate, load.total_s, self._rng, burstiness=load.burstiness, ramp_s=load.ramp_s)

    async def _open_loop(self) -> None:
        limit = self._load.max_requests
        for offset in self._schedule():
            if limit is not None and self.health.planned >= limit // self._workers:
                break
            session = self._sessions.open(next(self._numbers))  # made before it is due
            turn = session.next()
            assert turn is not None, "a session has at least one turn"
            request = self._pool.request(self._path, turn.body)
            due = self._start + offset
            await _until(due)
            self._launch(self._session(session, turn, request, due))

    async def _replay(self, trace: Iterable[tuple[float, Turn]]) -> None:
        """Bodies are made ahead, while nothing is due: a burst in the trace must not find us writing prose."""
        coming = iter(trace)
        ready: deque[tuple[float, Turn, bytes]] = deque()
        more = True
        while more or ready:
            while more and len(ready) < AHEAD and not (ready and ready[0][0] - time.monotonic() < AHEAD_IDLE_S):
                entry = next(coming, None)
                more = entry is not None
                if entry is not None:
                    offset, turn = entry
                    ready.append((self._start + offset, turn, self._pool.request(self._path, turn.body)))
                await asyncio.sleep(0)
            if ready:
                due, turn, request = ready.popleft()
                await _until(due)
                self._launch(self._exchange(turn, request, due))

    async def _closed_loop(self) -> None:
        mine = len(range(self._worker, self._load.concurrency, self._workers))
        for user in range(mine):
            offset = self._load.ramp_s * user / max(1, mine)
            self._launch(self._user(self._start + offset))
        await asyncio.sleep(max(0.0, self._start + self._load.total_s - time.monotonic()))

    async def _user(self, due: float) -> None:
        limit = self._load.max_requests
        while due < self._start + self._load.total_s:
            if limit is not None and self.health.planned >= max(1, limit // self._workers):
                return
            session = self._sessions.open(next(self._numbers))
            turn = session.next()
            assert turn is not None
            await _until(due)
            due, whole = await self._session(session, turn, self._pool.request(self._path, turn.body), due)
            if not whole:
                due += ERROR_PAUSE_S

    def _launch(self, work: Coroutine[Any, Any, Any]) -> None:
        task: asyncio.Task[Any] = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (fault := task.exception()) is not None:
            self._fault = self._fault or fault
            self.stop()

    async def _session(self, session: Session, first: Turn, request: bytes, due: float) -> tuple[float, bool]:
        """Runs a session to its end or the run's; returns when its last answer ended and whether none of them failed."""
        turn: Turn | None = first
        ended, whole = due, True
        while turn is not None:
            exchange = await self._exchange(turn, request, due)
            ended, whole = exchange.end / 1e9, not failed(exchange)
            if not whole or session.over or ended > self._start + self._load.total_s:
                break
            plan = self._plan(turn, due)
            session.answered(sample(plan, exchange, keep_text=True).text)
            turn = session.next()
            if turn is not None:
                request = self._pool.request(self._path, turn.body)
                due = ended + turn.gap_s
                if due >= self._start + self._load.total_s:
                    break
                await _until(due)
        return (max(ended, time.monotonic()) if self._load.mode == "closed" else ended), whole

    def _plan(self, turn: Turn, due: float) -> Plan:
        phase = self._load.phase(due - self._start)
        return Plan(
            self._worker,
            turn.session,
            turn.turn,
            turn.asked_output_tokens,
            turn.images,
            turn.videos,
            len(turn.body),
            phase,
        )

    async def _exchange(self, turn: Turn, request: bytes, due: float) -> Exchange:
        done: asyncio.Future[Exchange] = asyncio.get_running_loop().create_future()
        exchange = Exchange(due=int(due * 1e9))
        self.health.planned += 1

        def finished(e: Exchange) -> None:
            self.health.finished += 1
            self.health.errors += failed(e)
            if not done.done():
                done.set_result(e)

        give_up = self._pool.send(request, exchange, finished)
        self.health.sent += 1
        timer = asyncio.get_running_loop().call_later(self._load.timeout_s, give_up, "timeout")
        try:
            await done
        except asyncio.CancelledError:
            give_up("cancelled")
            exchange.error = exchange.error or "cancelled"
            exchange.end = exchange.end or time.monotonic_ns()
            exchange.sent = exchange.sent or exchange.end
            raise
        finally:
            timer.cancel()
            self._spool.add(self._plan(turn, due), exchange)
        return exchange

    async def _drain(self) -> None:
        """Waits for what was sent; what is not back after the request timeout is given up and counted."""
        pending = set(self._tasks)
        if pending:
            _, late = await asyncio.wait(pending, timeout=self._load.timeout_s)
            for task in late:
                task.cancel()
            if late:
                await asyncio.gather(*late, return_exceptions=True)

    async def _watch(self, report: Callable[[Health], None] | None) -> None:
        """Lateness of this loop, all through the run, and a word to the display twice a second."""
        said = 0.0
        while True:
            due = time.monotonic() + LAG_PERIOD_S
            await asyncio.sleep(LAG_PERIOD_S)
            now = time.monotonic()
            self.health.lags.append(now - due)
            if report is not None and now - said > REPORT_PERIOD_S:
                said = now
                report(self.health)
