"""From an answer and a request to what each choice will say: pure, no clock.

An engine's rules are kept whatever the script says: output ends at the first stop id (the request's `stop_token_ids`,
else the checkpoint's end of turn; not with `ignore_eos`) and at `max_new_tokens`; stop ids are part of the output.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from engine.wire import IntArray, LogprobRow
from tests.mock_engine.checkpoint import THINK_END, MockCheckpoint
from tests.mock_engine.script import Answer, Piece

ECHO_TOKENS = 32


@dataclass(frozen=True)
class Plan:
    """What one choice says: `pieces` of ids, one per event, then its end."""

    pieces: list[list[int]]
    rows: list[list[LogprobRow]] | None
    finish: str
    matched: int | None

    @property
    def tokens(self) -> int:
        return sum(map(len, self.pieces))


def echo(ids: Sequence[int] | IntArray | IntArray, checkpoint: MockCheckpoint) -> list[Piece]:
    """The last turn's text, a token per event, then end of turn; what a script-less engine answers (with `ignore_eos`
    over and over, until `max_new_tokens`).

    The last turn is the run of ordinary ids before the prompt's last end of turn, without its line for the role."""
    prompt = [int(i) for i in ids]
    end = max((i for i, v in enumerate(prompt) if v in checkpoint.eos_ids), default=len(prompt))
    start = end
    while start > 0 and prompt[start - 1] not in checkpoint.added_ids:
        start -= 1
    text = checkpoint.decode(prompt[start:end])
    if end < len(prompt):
        text = text.split("\n", 1)[-1]
    words = checkpoint.encode(text)[-ECHO_TOKENS:] or checkpoint.encode("ok")
    opening = [THINK_END] if prompt and prompt[-1] == checkpoint.think_start_id else []
    return [*opening, *([w] for w in words), [checkpoint.eos_ids[0]]]


def plan(
    answer: Answer | None,
    index: int,
    ids: Sequence[int] | IntArray,
    sampling: Mapping[str, Any],
    logprobs: int | None,
    checkpoint: MockCheckpoint,
) -> Plan:
    pieces, finish = _said(answer, index, ids, bool(sampling.get("ignore_eos")), checkpoint)
    stop = set(sampling.get("stop_token_ids") or ()) or set(checkpoint.eos_ids)
    if sampling.get("ignore_eos"):
        stop = set()
    limit = sampling.get("max_new_tokens")
    out: list[list[int]] = []
    count, matched = 0, None
    for piece in pieces:
        kept: list[int] = []
        for token in piece:
            if limit is not None and count == limit:
                finish, matched = "length", None
                break
            kept.append(token)
            count += 1
            if token in stop:
                finish, matched = "stop", token
                break
        if kept or not piece:
            out.append(kept)
        if len(kept) < len(piece) or matched is not None:
            break
    if matched is None and limit is not None and count >= limit:
        finish = "length"
    return Plan(out, _rows(answer, out, logprobs, checkpoint), finish, matched)


def _said(
    answer: Answer | None, index: int, ids: Sequence[int] | IntArray, ignore_eos: bool, checkpoint: MockCheckpoint
) -> tuple[list[list[int]], str]:
    pieces = answer.pieces if answer else None
    finish = answer.finish if answer else "stop"
    if answer and index < len(answer.choices):
        pieces = answer.choices[index]["pieces"]
        finish = answer.choices[index].get("finish", finish)
    endless = pieces is None and ignore_eos
    if pieces is None:
        pieces = echo(ids, checkpoint)
    said = [checkpoint.encode(p) if isinstance(p, str) else list(p) for p in pieces]
    if endless and said:
        said = list(itertools.islice(itertools.cycle(said), checkpoint.max_positions - len(ids)))
    return said, finish


def _rows(
    answer: Answer | None, pieces: list[list[int]], logprobs: int | None, checkpoint: MockCheckpoint
) -> list[list[LogprobRow]] | None:
    given = answer.logprobs if answer else None
    if logprobs is None or given is False:
        return None
    if isinstance(given, list):
        rows = iter(given)
        return [[(r[0], r[1], [tuple(t) for t in r[2]]) for _, r in zip(piece, rows, strict=False)] for piece in pieces]
    return [[made_up_row(token, logprobs, checkpoint.vocab_size) for token in piece] for piece in pieces]


def made_up_row(token: int, top: int, vocab_size: int) -> LogprobRow:
    """A row that depends on the token alone: the chosen token leads, alternatives follow in falling order."""
    chosen = -0.01 - (token * 2654435761 % 997) / 1994
    others = [(round(chosen - 1.0 - j / 4, 6), (token + j) % vocab_size) for j in range(1, top)]
    return (round(chosen, 6), token, [(round(chosen, 6), token), *others][:top])
