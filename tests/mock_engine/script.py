"""The script of a mock engine: a JSON list of answers, and the rule that picks one.

Picking. Answers form groups: those with the same `match`, and those without. A request belongs to the first group (in
the order of the list) whose `match` is a substring of its decoded prompt, else to the group without `match`. Within a
group answers are used in turn; the last one repeats for ever. No group: the built-in echo (answering.py).

A 409 for `missing_hashes` uses up its answer only when the answer has nothing to say (no pieces): otherwise the same
answer waits for the resend.

Keys of an answer, all optional:
  match           substring of the decoded prompt
  pieces          list of [ids] or "text"; one piece is one engine event. Text is encoded with added tokens recognised
  choices         list of {pieces, finish} for n > 1; choice i takes entry i, or `pieces` when there is none
  delay_ms        before every piece;  first_delay_ms  before the first one instead (prefill)
  finish          "stop" (default) | "length" | "abort".  A stop id or max_new_tokens met earlier wins
  status          not 200: answered with an error body instead.  body  replaces that body
  code            `error.code` of that body, and of a failure after the 200.  retryable  of such a failure
  headers         extra response headers
  cached_tokens   replaces what the mock's own prefix cache says, as is
  logprobs        true, a number or absent: rows are made up when the request asks; false: never; a list: one row per output id,
                  row = [logprob, id, [[logprob, id], ...]]
  missing_hashes  hashes (or "*") answered with 409 when the request sends them by hash alone.
                  With "status": 409 the refusal comes even if rows are there
  garbage         true: a line that is not of the contract, after `fail_after` pieces (0 when absent)
  fail_after      failure after so many pieces; -1: before the response's headers
  fault           what the failure is: "error" (default) | "hang" | "reset" | "half_close" | "eof" | "garbage"
  trailing        text that comes with the last line, in the same write: the contract has nothing there
  split_bytes     every line goes out in writes of at most so many bytes
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

FAULTS = ("error", "hang", "reset", "half_close", "eof", "garbage")
FINISHES = ("stop", "length", "abort")
Piece = str | list[int]


class ScriptError(ValueError):
    """The script breaks the format; the message says which answer and key."""


@dataclass(frozen=True)
class Answer:
    match: str | None = None
    pieces: list[Piece] | None = None
    choices: list[dict[str, Any]] = field(default_factory=list)
    delay_ms: float = 0
    first_delay_ms: float | None = None
    finish: str = "stop"
    status: int = 200
    body: Any = None
    code: str | None = None
    retryable: bool = False
    headers: dict[str, str] = field(default_factory=dict)
    cached_tokens: int | None = None
    logprobs: bool | int | list[Any] | None = None
    missing_hashes: list[str] = field(default_factory=list)
    garbage: bool = False
    fail_after: int | None = None
    fault: str | None = None
    trailing: str = ""
    split_bytes: int | None = None

    @property
    def failure(self) -> tuple[int, str] | None:
        """(pieces before it, kind), or None. -1: before the headers."""
        kind = self.fault or ("garbage" if self.garbage else None)
        if kind is None and self.fail_after is None:
            return None
        return self.fail_after or 0, kind or "error"


def _check_pieces(where: str, pieces: Any) -> None:
    if not isinstance(pieces, list):
        raise ScriptError(f"{where} must be a list")
    for piece in pieces:
        ids = isinstance(piece, list) and all(isinstance(v, int) and v >= 0 for v in piece)
        if not isinstance(piece, str) and not ids:
            raise ScriptError(f"{where}: a piece is a string or a list of token ids, got {piece!r}")


def parse_answer(value: Any, where: str) -> Answer:
    if not isinstance(value, dict):
        raise ScriptError(f"{where} must be an object")
    known = {f.name for f in fields(Answer)}
    if unknown := sorted(set(value) - known):
        raise ScriptError(f"{where}: unknown keys {unknown}; known are {sorted(known)}")
    answer = Answer(**value)
    if answer.pieces is not None:
        _check_pieces(f"{where}.pieces", answer.pieces)
    for i, choice in enumerate(answer.choices):
        _check_pieces(f"{where}.choices[{i}].pieces", choice.get("pieces"))
    if answer.finish not in FINISHES:
        raise ScriptError(f"{where}.finish must be one of {FINISHES}")
    if answer.fault is not None and answer.fault not in FAULTS:
        raise ScriptError(f"{where}.fault must be one of {FAULTS}")
    if not isinstance(answer.status, int) or not 200 <= answer.status < 600:
        raise ScriptError(f"{where}.status must be an HTTP status")
    return answer


def parse_script(value: Any) -> list[Answer]:
    if not isinstance(value, list):
        raise ScriptError("a script is a JSON list of answers")
    return [parse_answer(v, f"script[{i}]") for i, v in enumerate(value)]


def load_script(path: str | Path | None) -> list[Answer]:
    if path is None:
        return []
    text = Path(path).read_text(encoding="utf-8")
    try:
        return parse_script(json.loads(text) if text.strip() else [])
    except json.JSONDecodeError as e:
        raise ScriptError(f"{path}: {e}") from None


class Script:
    """Answers and how often each group was asked."""

    def __init__(self, answers: Sequence[Answer] = ()) -> None:
        self._groups: dict[str | None, list[Answer]] = {}
        self._used: dict[str | None, int] = {}
        for answer in answers:
            self._groups.setdefault(answer.match, []).append(answer)
        self.needs_text = any(match is not None for match in self._groups)

    def pick(self, prompt: str) -> Answer | None:
        for match in self._groups:
            if match is not None and match in prompt:
                return self._next(match)
        return self._next(None) if None in self._groups else None

    def _next(self, match: str | None) -> Answer:
        group, used = self._groups[match], self._used.get(match, 0)
        self._used[match] = used + 1
        return group[min(used, len(group) - 1)]

    def put_back(self, answer: Answer) -> None:
        """The answer was not given after all; the next request of its group gets it."""
        self._used[answer.match] = max(0, self._used.get(answer.match, 0) - 1)
