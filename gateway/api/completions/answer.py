"""Updates -> text_completion choices, whole or in chunks. Reasoning and tools do not exist here: all is text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from engine.wire import LogprobRow
from gateway.api.completions.echo import Echo, echo_of
from gateway.api.completions.rows import Rows, joined
from gateway.api.generation.logprobs import finite
from gateway.api.generation.run import Run, Update
from gateway.parsing.events import ContentDelta, ReasoningDelta, TokenLogprobs


@dataclass(frozen=True, slots=True)
class Style:
    """logprobs None: not asked for. With echo the prompt comes first; its tokens have no logprobs (null)."""

    logprobs: int | None
    echo: bool


class ChoiceWriter:
    """One choice's pieces. `take` gives what is new: (text, rows of logprobs or None). Prompt and token texts are the
    run's, which may change model before its first update."""

    def __init__(self, style: Style, run: Run, echo: Echo | None = None) -> None:
        """`echo`: of the run's prompt as it is now, shared by its choices."""
        self._style = style
        self._run = run
        self._echo = echo
        self._offset = 0
        self._begun = False
        self._rows: list[LogprobRow] = []

    def take(self, update: Update) -> tuple[str, Rows | None]:
        text = ""
        for event in update.events:
            if isinstance(event, (ContentDelta, ReasoningDelta)):
                text += event.text
            elif isinstance(event, TokenLogprobs):
                self._rows.extend(event.rows)
        echo = self._echo_now() if not self._begun else None
        self._begun = True
        if echo is not None:
            text = echo.text + text
        if self._style.logprobs is None or not (text or update.finish):
            return text, None
        rows = self._new_rows(echo.characters if echo is not None else 0)
        return text, rows if echo is None else joined([echo.rows, rows])

    def _echo_now(self) -> Echo | None:
        if not self._style.echo:
            return None
        opened = self._run.opened
        if self._echo is None or self._echo.prompt is not opened.prompt:  # another model took it
            return echo_of(opened.texts, opened.prompt)
        return self._echo

    def _new_rows(self, echoed_characters: int) -> Rows:
        texts, top = self._run.opened.texts, self._style.logprobs or 0
        self._offset += echoed_characters
        tokens: list[str] = []
        logprobs: list[float] = []
        best: list[dict[str, float] | None] = []
        offsets: list[int] = []
        for logprob, token, alternatives in self._rows:
            piece = texts.of(token)[0]
            tokens.append(piece)
            logprobs.append(finite(logprob))
            offsets.append(self._offset)
            self._offset += len(piece)
            if not top:
                best.append(None)
                continue
            chosen = {texts.of(t)[0]: finite(p) for p, t in alternatives[:top]}
            if token not in {t for _, t in alternatives[:top]}:
                chosen.setdefault(piece, finite(logprob))
            best.append(chosen)
        self._rows.clear()
        return tuple(orjson.dumps(values)[1:-1] for values in (tokens, logprobs, best, offsets))


def usage_of_all(runs: Sequence[Run]) -> dict[str, Any]:
    prompt, completion = sum(r.prompt_tokens for r in runs), sum(r.completion_tokens for r in runs)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": sum(r.cached_tokens for r in runs)},
        "completion_tokens_details": {"reasoning_tokens": sum(r.reasoning_tokens for r in runs)},
    }
