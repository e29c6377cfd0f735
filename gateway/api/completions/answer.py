"""Updates -> text_completion choices, whole or in chunks. Reasoning and tools do not exist here: all is text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from engine.wire import LogprobRow
from gateway.api.generation.logprobs import finite
from gateway.api.generation.run import Run, Update
from gateway.parsing.events import ContentDelta, ReasoningDelta, TokenLogprobs


@dataclass(frozen=True, slots=True)
class Style:
    """logprobs None: not asked for. With echo the prompt comes first; its tokens have no logprobs (null)."""

    logprobs: int | None
    echo: bool


class ChoiceWriter:
    """One choice's pieces. `take` gives what is new: (text, logprobs object or None). Prompt and token texts are the
    run's, which may change model before its first update."""

    def __init__(self, style: Style, run: Run) -> None:
        self._style = style
        self._run = run
        self._offset = 0
        self._begun = False
        self._rows: list[LogprobRow] = []

    def take(self, update: Update) -> tuple[str, dict[str, Any] | None]:
        text = ""
        for event in update.events:
            if isinstance(event, (ContentDelta, ReasoningDelta)):
                text += event.text
            elif isinstance(event, TokenLogprobs):
                self._rows.extend(event.rows)
        echoed: Sequence[int] = ()
        if not self._begun:
            self._begun = True
            echoed = self._run.opened.prompt.tolist() if self._style.echo else ()
        before = self._run.opened.texts.text_of(echoed)
        if self._style.logprobs is None or not (text or before or update.finish):
            return before + text, None
        return before + text, self._logprobs(echoed)

    def _logprobs(self, echoed: Sequence[int]) -> dict[str, Any]:
        texts, top = self._run.opened.texts, self._style.logprobs or 0
        out: dict[str, list[Any]] = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
        rows: list[tuple[int, float | None, dict[str, float] | None]] = [(i, None, None) for i in echoed]
        for logprob, token, alternatives in self._rows:
            best = {texts.of(t)[0]: finite(p) for p, t in alternatives[:top]}
            if token not in {t for _, t in alternatives[:top]}:
                best.setdefault(texts.of(token)[0], finite(logprob))
            rows.append((token, finite(logprob), best if top else None))
        self._rows.clear()
        for token, logprob_or_none, best_or_none in rows:
            piece = texts.of(token)[0]
            out["tokens"].append(piece)
            out["token_logprobs"].append(logprob_or_none)
            out["top_logprobs"].append(best_or_none)
            out["text_offset"].append(self._offset)
            self._offset += len(piece)
        return out


def join_logprobs(pieces: Sequence[dict[str, Any] | None]) -> dict[str, Any] | None:
    given = [p for p in pieces if p is not None]
    return {k: [v for p in given for v in p[k]] for k in given[0]} if given else None


def usage_of_all(runs: Sequence[Run]) -> dict[str, Any]:
    prompt, completion = sum(r.prompt_tokens for r in runs), sum(r.completion_tokens for r in runs)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": sum(r.cached_tokens for r in runs)},
        "completion_tokens_details": {"reasoning_tokens": sum(r.reasoning_tokens for r in runs)},
    }
