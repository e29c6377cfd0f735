"""One request of the contract as one or more SGLang generations, and their outputs as the contract's replies."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from typing import Any

from engine import wire
from engine.contract.replies import ReplyQueue

log = logging.getLogger("catalejo.sglang")


class Choice:
    """What one choice has said. SGLang repeats itself in several ways; nothing is said twice here.

    Outputs are cumulative, or with `--incremental-streaming-output` what is new. An aborted request's last output is an
    echo without token counts, which in the incremental form says the last id once more."""

    def __init__(self, index: int, prompt_tokens: int, with_logprobs: bool, top: int, incremental: bool) -> None:
        self.index = index
        self._prompt = prompt_tokens
        self._logprobs = with_logprobs
        self._top = top
        self._incremental = incremental
        self._said = 0
        self._cached = 0
        self._told_cached = False
        self.finished = False

    def take(self, output: dict[str, Any]) -> list[wire.Reply]:
        meta = output["meta_info"]
        echo = "prompt_tokens" not in meta
        ids = list(output["output_ids"]) if self._incremental else list(output["output_ids"][self._said :])
        if self._incremental and echo:
            ids = ids[:-1]
        rows = self._rows(meta, len(ids)) if self._logprobs else None
        self._cached = meta.get("cached_tokens", self._cached)
        self._said += len(ids)
        replies: list[wire.Reply] = []
        if ids:
            replies.append(wire.Tokens(self.index, ids, rows, None if self._told_cached else self._cached))
            self._told_cached = True
        finish = meta.get("finish_reason")
        if finish is not None:
            self.finished = True
            replies.append(self._end(finish))
        return replies

    def never_began(self) -> wire.Reply:
        """The request was aborted before this choice started."""
        self.finished = True
        return wire.Finish(self.index, "abort", wire.Usage(self._prompt, 0, 0))

    def _rows(self, meta: dict[str, Any], count: int) -> list[wire.LogprobRow]:
        chosen = meta.get("output_token_logprobs") or []
        tops = meta.get("output_top_logprobs") or []
        if not self._incremental:
            chosen, tops = chosen[self._said :], tops[self._said :]
        rows: list[wire.LogprobRow] = []
        for i, (logprob, token, *_) in enumerate(chosen[:count]):
            best = [(float(p), int(t)) for p, t, *_ in (tops[i] or [])[: self._top]] if i < len(tops) else []
            rows.append((float(logprob), int(token), best))
        return rows

    def _end(self, finish: dict[str, Any]) -> wire.Reply:
        kind = finish.get("type")
        if kind == "abort" and int(finish.get("status_code") or 0) >= 400:
            status = int(finish["status_code"])
            message = str(finish.get("message") or "aborted by the scheduler")
            return wire.Failure("bad_request" if status < 500 else "engine_failure", message, status >= 500)
        matched = finish.get("matched")
        usage = wire.Usage(self._prompt, self._said, self._cached)
        known = kind if kind in ("stop", "length", "abort") else "abort"
        return wire.Finish(self.index, known, usage, matched if isinstance(matched, int) else None)


class Stream(ReplyQueue):
    """Replies of one request; the choices after the first start when the first has spoken, and find its prefix cached."""

    def __init__(self, rid: str, choices: list[tuple[Choice, Callable[[], AsyncIterator[dict[str, Any]]]]]) -> None:
        super().__init__()
        self.rid = rid
        self.aborted = False
        self._choices = choices
        self._tasks: list[asyncio.Task[None]] = []
        self._first_spoke = asyncio.Event()

    def start(self) -> asyncio.Task[None]:
        """Begins; returns the first choice's task, which ends early when the request is refused."""
        self._tasks = [asyncio.create_task(self._run(*one)) for one in self._choices]
        return self._tasks[0]

    @property
    def rids(self) -> list[str]:
        return [choice_rid(self.rid, c.index, len(self._choices)) for c, _ in self._choices]

    async def _run(self, choice: Choice, begin: Callable[[], AsyncIterator[dict[str, Any]]]) -> None:
        if choice.index:
            await self._first_spoke.wait()
            if self.ended:
                return
            if self.aborted:
                self.push([choice.never_began()])
                self._end_if_over()
                return
        outputs = begin()
        try:
            async for output in outputs:
                self.push(choice.take(output))
                self._first_spoke.set()
        except asyncio.CancelledError:
            raise
        except ValueError as error:
            if not choice.index and not self._first_spoke.is_set():
                raise  # a refusal, answered before the 200
            self.fail("bad_request", str(error), retryable=False)
        except Exception as error:
            log.exception("request %s failed", self.rid)
            self.fail("engine_failure", f"{type(error).__name__}: {error}", retryable=True)
        finally:
            await outputs.aclose()  # type: ignore[attr-defined]
            self._first_spoke.set()
        if not choice.finished and not self.ended:
            self.fail("engine_failure", "the scheduler's stream ended without a finish", retryable=True)
        self._end_if_over()

    def _end_if_over(self) -> None:
        if not self.ended and all(c.finished for c, _ in self._choices):
            self.push([wire.Done()])

    def fail(self, code: str, message: str, *, retryable: bool) -> None:
        self.push([wire.Failure(code, message, retryable)])

    def close(self) -> None:
        """Cancels what still runs; SGLang aborts a generation whose reader goes away."""
        for task in self._tasks:
            task.cancel()


def choice_rid(rid: str, index: int, n: int) -> str:
    """SGLang aborts by prefix, so one request's id must never begin another's: ids end in a mark of their own."""
    return f"{rid}/{index}of{n}."
