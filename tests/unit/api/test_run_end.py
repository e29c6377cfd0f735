"""The end of a run: the engine is told to abort only what it would go on with."""

from __future__ import annotations

import pytest

from engine.wire import Done, Failure, Finish, Reply, Tokens, Usage
from gateway.api.generation.run import MOVABLE, Run, Update
from gateway.errors import ApiError
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


@pytest.mark.parametrize(
    ("reads", "choices"),
    [([[Done()]], 1), ([[Tokens(0, IDS)], [Done()]], 1), ([[Tokens(0, IDS), FINISH], [Tokens(1, IDS), Done()]], 2)],
    ids=["nothing", "tokens", "one of two"],
)
async def test_an_end_before_every_choice_has_finished_is_a_failure(reads: list[list[Reply]], choices: int) -> None:
    """Symptom: a stream ended in [DONE] without a finish_reason, and a plain answer said null."""
    with pytest.raises(ApiError) as refused:
        await run_of(reads, (), False, choices).deliver(lambda updates: True)
    assert refused.value.code == "engine_error"


@pytest.mark.parametrize(("code", "ours"), [("internal_error", "engine_error"), ("shutting_down", "shutting_down")])
async def test_an_engine_s_failure_is_the_engine_s_and_may_move(code: str, ours: str) -> None:
    with pytest.raises(ApiError) as refused:
        await run_of([[Failure(code, "no", True)]], (), False, 1).deliver(lambda updates: True)
    assert refused.value.code == ours and ours in MOVABLE and refused.value.status != 500
