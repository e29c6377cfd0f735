"""The reply: newline-delimited JSON, as typed messages and an incremental reader.

Nearly every line is a `Tokens`: it is read and checked in one step, by type. Whatever is no such line, or has rows of
logprobs, takes the long way, which knows what is wrong with it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal

import msgspec
import orjson

from engine.wire.errors import BadReply
from engine.wire.messages import is_natural


@dataclass(frozen=True, slots=True)
class Usage:
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int


LogprobRow = tuple[float, int, list[tuple[float, int]]]
"""(logprob, id, [(logprob, id), ...]); -inf is sent as null by JSON writers and read back as -inf."""


Natural = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]


class Tokens(msgspec.Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """New token ids of choice `index`; `logprobs` rows match `output_ids` one to one.

    cached_tokens   on the first line of a choice, so that usage can be told before the finish; None elsewhere
    """

    index: Natural
    output_ids: list[Natural]
    logprobs: list[LogprobRow] | None = None
    cached_tokens: Natural | None = None


@dataclass(frozen=True, slots=True)
class Finish:
    index: int
    type: Literal["stop", "length", "abort"]
    usage: Usage
    matched: int | None = None


@dataclass(frozen=True, slots=True)
class Done:
    pass


@dataclass(frozen=True, slots=True)
class Failure:
    """The engine failed after its 200."""

    code: str
    message: str
    retryable: bool


Reply = Tokens | Finish | Done | Failure


def encode_reply(reply: Reply) -> bytes:
    """One line, with its newline."""
    match reply:
        case Tokens(index, ids, logprobs, cached_tokens):
            body: dict[str, Any] = {"index": index, "output_ids": ids}
            if logprobs is not None:
                body["logprobs"] = logprobs
            if cached_tokens is not None:
                body["cached_tokens"] = cached_tokens
        case Finish(index, kind, usage, matched):
            body = {
                "index": index,
                "finish": {"type": kind, "matched": matched},
                "usage": {
                    "prompt_tokens": usage.prompt_tokens,
                    "completion_tokens": usage.completion_tokens,
                    "cached_tokens": usage.cached_tokens,
                },
            }
        case Done():
            body = {"done": True}
        case Failure(code, message, retryable):
            body = {"error": {"code": code, "message": message, "retryable": retryable}}
    return orjson.dumps(body) + b"\n"


def _logprob(value: Any) -> float:
    return float("-inf") if value is None else float(value)


def _natural(value: Any, name: str) -> int:
    if not is_natural(value):
        raise BadReply(f"{name} must be an integer >= 0, got {value!r}")
    return int(value)


_decode_tokens: Final = msgspec.json.Decoder(Tokens).decode


def decode_reply(line: bytes) -> Reply | None:
    """One line without its newline; None for a keep-alive. Raises BadReply."""
    return _tokens(line) or decode_any(line)


def _tokens(line: bytes) -> Tokens | None:
    """The short way; None for what it does not know."""
    if b'"output_ids"' not in line:  # an error is dearer than the look
        return None
    try:
        tokens = _decode_tokens(line)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    return tokens if tokens.logprobs is None else None


def decode_any(line: bytes) -> Reply | None:
    """The long way."""
    if not line.strip():
        return None
    try:
        body = orjson.loads(line)
        if body.get("done") is True:
            return Done()
        if "error" in body:
            e = body["error"]
            return Failure(str(e["code"]), str(e["message"]), bool(e.get("retryable", False)))
        index = _natural(body["index"], "index")
        if "finish" in body:
            return _decode_finish(index, body["finish"], body["usage"])
        ids, rows = body["output_ids"], body.get("logprobs")
        if not isinstance(ids, list) or not all(type(v) is int and v >= 0 for v in ids):
            raise BadReply("output_ids must be a list of token ids")
        if rows is not None:
            if len(rows) != len(ids):
                raise BadReply(f"{len(rows)} logprob rows for {len(ids)} ids")
            rows = [_decode_row(row) for row in rows]
        cached = body.get("cached_tokens")
        return Tokens(index, ids, rows, None if cached is None else _natural(cached, "cached_tokens"))
    except BadReply:
        raise
    except (orjson.JSONDecodeError, KeyError, TypeError, ValueError, AttributeError, IndexError) as e:
        raise BadReply(f"reply line is not of the contract: {type(e).__name__}: {e}") from None


def _decode_row(row: Any) -> LogprobRow:
    top = [(_logprob(t[0]), _natural(t[1], "logprobs id")) for t in row[2]]
    return _logprob(row[0]), _natural(row[1], "logprobs id"), top


def _decode_finish(index: int, finish: Any, usage: Any) -> Finish:
    if finish["type"] not in ("stop", "length", "abort"):
        raise BadReply(f"unknown finish type {finish['type']!r}")
    matched = finish.get("matched")
    counts = (_natural(usage[k], f"usage.{k}") for k in ("prompt_tokens", "completion_tokens", "cached_tokens"))
    return Finish(index, finish["type"], Usage(*counts), None if matched is None else _natural(matched, "matched"))


class ReplyReader:
    """Cuts a byte stream into replies. `feed` returns what is complete; `finish` raises BadReply when the stream ended
    without `done` or `error`. The cost is linear in the bytes: a partial line is kept as pieces.

    A broken line never takes the good lines before it along, so that the result does not depend on the cuts: replies
    read before it are returned, and the error is raised by the next `feed` or `finish` (at once when there are none).
    """

    MAX_LINE_BYTES: Final = 16 << 20

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._held = 0
        self._error: BadReply | None = None
        self.ended = False

    def feed(self, data: bytes) -> list[Reply]:
        whole = data.find(b"\n") + 1 == len(data)  # what most reads bring: one line
        if whole and not self._pieces and not self.ended and self._error is None and (tokens := _tokens(data)):
            return [tokens]
        out: list[Reply] = []
        if self._error is None:
            try:
                self._read(data, out)
            except BadReply as e:
                self._error = e
        if self._error is not None and not out:
            raise self._error
        return out

    def _read(self, data: bytes, out: list[Reply]) -> None:
        *complete, rest = data.split(b"\n")
        for line in complete:
            if self._pieces:
                line = b"".join([*self._pieces, line])
                self._pieces, self._held = [], 0
            reply = decode_reply(line)
            if reply is None:
                continue
            if self.ended:
                raise BadReply("a line came after the last one")
            self.ended = isinstance(reply, (Done, Failure))
            out.append(reply)
        if rest:
            self._pieces.append(rest)
            self._held += len(rest)
            if self._held > self.MAX_LINE_BYTES:
                raise BadReply(f"a line is longer than {self.MAX_LINE_BYTES} bytes")

    @property
    def broken(self) -> bool:
        """A broken line was read; nothing more will come out."""
        return self._error is not None

    def finish(self) -> None:
        if self._error is not None:
            raise self._error
        if not self.ended:
            raise BadReply("the stream ended without `done` or `error`")
