"""The end of a run: the engine is told to abort only what it would go on with."""

from __future__ import annotations

import pytest

from engine.wire import Done, Finish, Reply, Tokens, Usage
from gateway.api.generation.run import Run, Update
from tests.property.api.test_stream_equals_plain import CHECKPOINT, Stream, run_of

FINISH = Finish(0, "stop", Usage(9, 3, 7))
IDS = CHECKPOINT.encode_plain("one STOP two")


async def aborts_of(run: Run, monkeypatch: pytest.MonkeyPatch) -> tuple[list[str], list[Update]]:
    aborts: list[str] = []
    got: list[Update] = []

    async def abort(rid: str, reason: str) -> None:
        aborts.append(reason)

    def take(updates: list[Update]) -> bool:
        got.extend(updates)
        return True

    monkeypatch.setattr(Stream.client, "abort", abort)
    await run.deliver(take)
    return aborts, got


async def test_an_answer_whose_last_line_comes_late_is_not_aborted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Symptom: engines that send the finish and the end separately got an abort for every request."""
    reads: list[list[Reply]] = [[Tokens(0, IDS)], [FINISH], [Done()]]
    run = run_of(reads, (), False, 1)
    aborts, got = await aborts_of(run, monkeypatch)
    assert (aborts, got[-1].finish, run.cached_tokens) == ([], "stop", 7)


async def test_a_stop_string_aborts_and_the_last_lines_still_count(monkeypatch: pytest.MonkeyPatch) -> None:
    reads: list[list[Reply]] = [[Tokens(0, IDS)], [FINISH, Done()]]
    run = run_of(reads, ("STOP",), False, 1)
    aborts, got = await aborts_of(run, monkeypatch)
    assert (aborts, got[-1].finish, got[-1].matched, run.cached_tokens) == (["stop_string"], "stop", "STOP", 7)
