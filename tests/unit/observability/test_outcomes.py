"""One outcome for every way in which a request can end."""

from __future__ import annotations

import pytest

from gateway.errors import ERRORS
from gateway.observability.usage import outcome_of


@pytest.mark.parametrize(
    ("status", "code", "gone", "outcome"),
    [
        (200, None, False, "ok"),
        (400, "invalid_json", False, "refused"),
        (429, "queue_full", False, "refused"),
        (503, "overloaded", False, "failed"),
        (502, "engine_error", False, "failed"),
        (200, "engine_timeout", False, "failed"),  # a stream that broke off
        (200, "shutting_down", False, "failed"),
        (200, None, True, "aborted"),
        (200, "engine_error", True, "aborted"),
        (499, "client_closed_request", False, "aborted"),
        (0, None, False, "aborted"),
        (500, None, False, "failed"),
        (405, None, False, "refused"),
    ],
)
def test_outcomes(status: int, code: str | None, gone: bool, outcome: str) -> None:
    assert outcome_of(status, code, gone) == outcome


def test_every_code_has_one() -> None:
    assert {outcome_of(status, code, False) for code, (status, _) in ERRORS.items()} == {"refused", "failed", "aborted"}
