"""A stock SGLang server, without our route: text through its own POST /generate, as the same typed replies.

Its events hold everything so far, or only what is new when the server was started so; `completion_tokens` tells which,
since the new ids are always the last ones. It sends no keep-alive lines and takes no prepared media.
Constrained decoding after thinking is SGLang's `require_reasoning`, which needs the server's own reasoning parser."""

from __future__ import annotations

from typing import Any, Final

import orjson

from engine.wire import BadReply, Done, Failure, Finish, GenerateRequest, LogprobRow, Reply, Tokens, Usage

STOCK_ROUTE: Final = "/generate"
MAX_EVENT_BYTES: Final = 256 << 20
"""Events that hold everything so far grow with the answer."""


def encode_stock(request: GenerateRequest) -> bytes:
    """The JSON body. The request has no items."""
    sampling: dict[str, Any] = {**request.sampling, "n": request.n, "skip_special_tokens": False, "no_stop_trim": True}
    body: dict[str, Any] = {
        "rid": request.rid,
        "input_ids": request.input_ids,
        "sampling_params": sampling,
        "stream": True,
    }
    if request.logprobs is not None:
        body |= {"return_logprob": True, "top_logprobs_num": request.logprobs, "logprob_start_len": -1}
    if request.grammar is not None:
        sampling[request.grammar.type] = request.grammar.value
        if request.grammar.after_ids:
            body["require_reasoning"] = True
    if request.cache_salt is not None:
        # Both keep tenants apart; only the second is told in KV events, and only the first is known to older servers.
        body["extra_key"] = body["cache_salt"] = request.cache_salt
    if request.priority:
        body["priority"] = request.priority
    return orjson.dumps(body, option=orjson.OPT_SERIALIZE_NUMPY)


class StockReader:
    """Cuts SSE bytes into replies; the same interface as engine.wire.ReplyReader."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._held = 0
        self._counts: dict[int, int] = {}
        self.ended = False

    def feed(self, data: bytes) -> list[Reply]:
        *complete, rest = data.split(b"\n")
        out: list[Reply] = []
        for line in complete:
            if self._pieces:
                line = b"".join([*self._pieces, line])
                self._pieces, self._held = [], 0
            if line.startswith(b"data:"):
                self._event(line[5:].strip(), out)
        if rest:
            self._pieces.append(rest)
            self._held += len(rest)
            if self._held > MAX_EVENT_BYTES:
                raise BadReply(f"an event is longer than {MAX_EVENT_BYTES} bytes")
        return out

    def finish(self) -> None:
        if not self.ended:
            raise BadReply("the stream ended without [DONE]")

    def _event(self, data: bytes, out: list[Reply]) -> None:
        if self.ended:
            return  # SGLang ends a refusal with [DONE] too; whatever else comes is of no answer
        if data == b"[DONE]":
            self.ended = True
            out.append(Done())
            return
        try:
            body = orjson.loads(data)
            if "error" in body:
                error = body["error"] if isinstance(body["error"], dict) else {"message": body["error"]}
                self._failed(error.get("code"), error.get("message", "no reason given"), out)
                return
            self._tokens(body, out)
        except (orjson.JSONDecodeError, KeyError, TypeError, ValueError, AttributeError, IndexError) as e:
            raise BadReply(f"an event is not of SGLang's form: {type(e).__name__}") from None

    def _failed(self, status: Any, message: Any, out: list[Reply]) -> None:
        """SGLang refuses within the stream, with an HTTP status: 4xx is the request's fault, not the engine's."""
        refused = isinstance(status, int) and 400 <= status < 500
        self.ended = True
        out.append(Failure("bad_request" if refused else "engine_error", str(message), False))

    def _tokens(self, body: dict[str, Any], out: list[Reply]) -> None:
        meta = body["meta_info"]
        ended = meta.get("finish_reason") or {}
        if ended.get("type") == "abort" and int(ended.get("status_code") or 0) >= 400:
            # What it says beside this is no token of the answer.
            self._failed(ended["status_code"], ended.get("message") or "aborted by the scheduler", out)
            return
        index = int(body.get("index", 0))
        done = self._counts.get(index)
        total = int(meta["completion_tokens"])
        new = total - (done or 0)
        self._counts[index] = total
        cached = int(meta.get("cached_tokens") or 0)
        if new > 0:
            ids = [int(i) for i in body["output_ids"][-new:]]
            rows = _rows(meta, new)
            out.append(Tokens(index, ids, rows, cached if done is None else None))
        finish = meta.get("finish_reason")
        if finish is not None:
            kind = finish["type"]
            matched = finish.get("matched")
            usage = Usage(int(meta["prompt_tokens"]), total, cached)
            out.append(
                Finish(
                    index,
                    kind if kind in ("stop", "length") else "abort",
                    usage,
                    matched if isinstance(matched, int) else None,
                )
            )


def _rows(meta: dict[str, Any], new: int) -> list[LogprobRow] | None:
    chosen = meta.get("output_token_logprobs")
    if not chosen:
        return None
    tops = (meta.get("output_top_logprobs") or [])[-new:] or [[]] * new
    return [
        (_number(row[0]), int(row[1]), [(_number(t[0]), int(t[1])) for t in top or ()])
        for row, top in zip(chosen[-new:], tops, strict=True)
    ]


def _number(value: Any) -> float:
    return float("-inf") if value is None else float(value)
