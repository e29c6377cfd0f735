"""What other processes of the same command run on each engine: a policy sees the whole load, not this process's part."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gateway.routing.policies.base import Candidate

Load = tuple[int, int, int]
"""Requests in flight, prompt tokens not computed yet, context tokens of what runs: the terms of a Candidate."""


@dataclass(frozen=True, slots=True)
class _Whole:
    """A Candidate with the load of all processes."""

    name: str
    in_flight: int
    pending_tokens: int
    resident_tokens: int
    reported_load: float | None


class Elsewhere:
    def __init__(self) -> None:
        self._processes: dict[int, Mapping[str, Load]] = {}

    def __bool__(self) -> bool:
        return bool(self._processes)

    def tell(self, process: int, loads: Mapping[str, Load]) -> None:
        """engine -> what that process has there now; replaces what it had told."""
        self._processes[process] = loads

    def gone(self, process: int) -> None:
        self._processes.pop(process, None)

    def with_ours(self, workers: Sequence[Candidate]) -> Sequence[Candidate]:
        return [self._whole(w) for w in workers] if self._processes else workers

    def _whole(self, own: Candidate) -> Candidate:
        loads = [own_load(own), *(told[own.name] for told in self._processes.values() if own.name in told)]
        in_flight, pending, resident = map(sum, zip(*loads, strict=True))
        return _Whole(own.name, in_flight, pending, resident, own.reported_load)


def own_load(worker: Candidate) -> Load:
    return worker.in_flight, worker.pending_tokens, worker.resident_tokens
