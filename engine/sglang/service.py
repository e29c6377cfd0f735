"""Between our route and SGLang's tokenizer manager: checks, the media store, one stream of replies per request.

Everything here runs on SGLang's event loop. What it needs of SGLang it gets through the adapter's Host."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import numpy as np

from engine import wire
from engine.contract.checks import check_ids, verify_hashes
from engine.contract.errors import BadGrammar, DuplicateRid, QueueFull, Refusal
from engine.contract.media_store import MediaStore
from engine.sglang.streams import Choice, Stream, choice_rid

log = logging.getLogger("catalejo.sglang")
DEFAULT_MAX_NEW_TOKENS = 128


class Host(Protocol):
    """What the adapter gives: the running SGLang server."""

    vocab_size: int
    context_length: int
    image_token_id: int | None
    video_token_id: int | None
    seeds: bool
    incremental: bool
    priorities: bool

    def generate(self, obj: Any) -> AsyncIterator[dict[str, Any]]: ...
    def runs(self, rid: str) -> bool: ...
    def abort(self, rid: str) -> None: ...
    async def model_info(self) -> dict[str, Any]: ...


@dataclass(frozen=True)
class Limits:
    """From the environment, because SGLang owns the command line."""

    media_store_bytes: int = 4 << 30
    max_body_bytes: int = wire.DEFAULT_MAX_BODY_BYTES
    keep_alive_s: float = wire.KEEP_ALIVE_S
    max_choices: int = 4096

    @classmethod
    def of(cls, environment: dict[str, str]) -> Limits:
        """CATALEJO_MEDIA_STORE_BYTES and so on; raises SystemExit naming the one that is no number."""
        values: dict[str, Any] = {}
        for name, default in vars(cls()).items():
            variable = f"CATALEJO_{name.upper()}"
            if variable in environment:
                try:
                    values[name] = type(default)(environment[variable])
                except ValueError:
                    raise SystemExit(f"catalejo: {variable} is {environment[variable]!r}, not a number") from None
        return cls(**values)


class Service:
    def __init__(self, host: Host, adapter: Any, limits: Limits | None = None) -> None:
        self.host = host
        self.limits = limits or Limits.of(dict(os.environ))
        self.store = MediaStore(self.limits.media_store_bytes)
        self._adapter = adapter
        self._streams: dict[str, Stream] = {}
        self._items: dict[str, tuple[wire.Item, ...]] = {}
        self._open_choices = 0

    async def open(self, asked: wire.GenerateRequest) -> Stream:
        """Checks, pins and hands over; returns once the scheduler has the request. Raises wire.WireError or Refusal, and
        then nothing is left behind. The caller reads the stream and calls `finished`, whatever happens."""
        self._check(asked)
        await verify_hashes(asked.items)
        sampling = self._sampling(asked)
        if asked.grammar is not None:
            await asyncio.to_thread(check_grammar, asked.grammar)
        if asked.rid in self._streams or any(self.host.runs(choice_rid(asked.rid, i, asked.n)) for i in range(asked.n)):
            raise DuplicateRid(f"a request with rid {asked.rid!r} is running", param="rid")
        if self._open_choices + asked.n > self.limits.max_choices:
            raise QueueFull(f"{self._open_choices} choices run or wait; the limit is {self.limits.max_choices}")
        rows = self.store.pin(asked.items)
        self._items[asked.rid] = asked.items
        self._open_choices += asked.n
        stream = self._streams[asked.rid] = self._stream(asked, sampling, rows)
        try:
            await self._handed_over(stream)
        except ValueError as error:
            self.finished(stream)
            raise Refusal(str(error)) from None
        except BaseException:
            self.finished(stream)
            raise
        return stream

    def finished(self, stream: Stream) -> None:
        """Gives everything back; aborts what still runs."""
        if self._streams.get(stream.rid) is not stream:
            return
        del self._streams[stream.rid]
        self._open_choices -= len(stream.rids)
        self.store.unpin(self._items.pop(stream.rid))
        stream.close()

    def abort(self, rid: str) -> bool:
        """Whether the request is one of ours; its stream ends with `abort` and usage."""
        stream = self._streams.get(rid)
        if stream is None:
            return False
        stream.aborted = True
        for one in stream.rids:
            if self.host.runs(one):
                self.host.abort(one)
        return True

    # ---------------------------------------------------------------------------------------- into SGLang
    def _stream(self, asked: wire.GenerateRequest, sampling: dict[str, Any], rows: dict[str, bytes]) -> Stream:
        import torch

        ids = asked.input_ids.tolist()
        items = []
        for item in asked.items:
            dtype = {"u8": np.uint8, "f32": np.dtype("<f4"), "bf16": np.dtype("<i2")}[item.rows]
            array = np.frombuffer(rows[item.hash], dtype=dtype).reshape(item.shape)
            # A writable copy per request: SGLang may hand tensors on through shared memory and free them there.
            tensor = torch.from_numpy(array.copy())
            items.append((item, tensor.view(torch.bfloat16) if item.rows == "bf16" else tensor))
        choices: list[tuple[Choice, Callable[[], AsyncIterator[dict[str, Any]]]]] = []
        for index in range(asked.n):
            choice = Choice(index, len(ids), asked.logprobs is not None, asked.logprobs or 0, self.host.incremental)
            choices.append((choice, partial(self._begin, asked, ids, items, sampling, index)))
        return Stream(asked.rid, choices)

    def _begin(
        self, asked: wire.GenerateRequest, ids: list[int], items: list[Any], sampling: dict[str, Any], index: int
    ) -> AsyncIterator[dict[str, Any]]:
        params = dict(sampling)
        if "sampling_seed" in params:
            # Two choices of one seed differ, and repeat.
            params["sampling_seed"] = (params["sampling_seed"] + index * 0x9E3779B97F4A7C15) % (1 << 63)
        media = self._media(ids, items) if items else None
        made = self._adapter.request_input(
            media,
            rid=choice_rid(asked.rid, index, asked.n),
            input_ids=list(ids),
            sampling_params=params,
            return_logprob=asked.logprobs is not None,
            logprob_start_len=-1,
            top_logprobs_num=asked.logprobs or 0,
            stream=True,
            priority=asked.priority if self.host.priorities else None,
            cache_salt=asked.cache_salt,
            external_trace_header=None if asked.traceparent is None else {"traceparent": asked.traceparent},
        )
        return self.host.generate(made)

    def _media(self, ids: list[int], items: list[Any]) -> Any:
        image, video = self.host.image_token_id, self.host.video_token_id
        return self._adapter.media_inputs(ids, items, image, video)

    async def _handed_over(self, stream: Stream) -> None:
        """Until the first choice reached the scheduler, or its refusal."""
        told = asyncio.Event()
        forget = self._adapter.on_dispatch(stream.rids[0], told.set)
        first = stream.start()
        waiting = asyncio.create_task(told.wait())
        try:
            await asyncio.wait((first, waiting), return_when=asyncio.FIRST_COMPLETED)
            if first.done() and first.exception() is not None:
                raise first.exception() or RuntimeError
        finally:
            waiting.cancel()
            forget()

    # ---------------------------------------------------------------------------------------- checks
    def _check(self, asked: wire.GenerateRequest) -> None:
        check_ids(asked, self.host.context_length, self.host.vocab_size)
        image, video = self.host.image_token_id, self.host.video_token_id
        if image is not None and video is not None:
            wire.check_placeholders(asked, image, video)
        elif asked.items:
            raise wire.BadItem("this model takes no pictures", param="items")

    def _sampling(self, asked: wire.GenerateRequest) -> dict[str, Any]:
        """SGLang's sampling parameters. `max_new_tokens` is clipped to what the context holds."""
        params = dict(asked.sampling)
        vocab = self.host.vocab_size
        for name, ids in (("stop_token_ids", params.get("stop_token_ids")), ("logit_bias", params.get("logit_bias"))):
            for i in ids or ():
                if int(i) >= vocab:
                    raise wire.BadSampling(
                        f"{name} has id {i}; the vocabulary has {vocab} entries", param=f"sampling.{name}"
                    )
        room = self.host.context_length - len(asked.input_ids) - 1
        params["max_new_tokens"] = max(1, min(params.get("max_new_tokens", DEFAULT_MAX_NEW_TOKENS), room))
        if not self.host.seeds:
            params.pop("sampling_seed", None)
        params["skip_special_tokens"] = False
        if asked.grammar is not None:
            params[asked.grammar.type] = asked.grammar.value
            if asked.grammar.after_ids:
                params["custom_params"] = {self._adapter.AFTER_IDS: list(asked.grammar.after_ids)}
        return params


def check_grammar(grammar: wire.Grammar) -> None:
    """Refuses before the 200 what xgrammar cannot read; SGLang itself would only abort the request later."""
    import xgrammar

    made = {
        "json_schema": xgrammar.Grammar.from_json_schema,
        "regex": xgrammar.Grammar.from_regex,
        "ebnf": xgrammar.Grammar.from_ebnf,
        "structural_tag": xgrammar.Grammar.from_structural_tag,
    }[grammar.type]
    began = time.monotonic()
    try:
        made(grammar.value)
    except Exception as error:
        raise BadGrammar(f"{grammar.type} does not compile: {error}", param="grammar.value") from None
    if time.monotonic() - began > 1:
        log.warning("a %s grammar of %d characters took over a second to read", grammar.type, len(grammar.value))
