"""Between HTTP and the engine's thread: checks, pins, queue limit, and one stream of replies per request.

Everything here runs on the event loop; replies cross over from the engine's thread once per step."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

from engine import wire
from engine.contract.checks import check_ids, verify_hashes
from engine.contract.errors import DuplicateRid, QueueFull, ShuttingDown
from engine.contract.media_store import MediaStore
from engine.contract.replies import ReplyQueue
from engine.local.core import Core, Output
from engine.local.grammar import GrammarCompiler
from engine.local.metrics import EngineMetrics
from engine.local.model import Model
from engine.local.options import EngineOptions
from engine.local.runner import Runner
from engine.local.sampling import DEFAULT_MAX_NEW_TOKENS, Sampling
from engine.local.sequence import Request

log = logging.getLogger("catalejo.engine")


class Stream(ReplyQueue):
    """Replies of one request, filled by the engine, read by one response."""

    def __init__(self, request: Request) -> None:
        super().__init__()
        self.request = request


class Service:
    def __init__(self, model: Model, folder: Path, options: EngineOptions) -> None:
        self.model = model
        self.folder = folder
        self.options = options
        self.core = Core(model, options)
        self.store = MediaStore(options.media_store_bytes)
        self.metrics = EngineMetrics(self.core, self.store)
        self.grammars = GrammarCompiler(folder, model.text_config.vocab_size, model.eos_ids)
        self.draining = False
        self._streams: dict[str, Stream] = {}
        self._open_choices = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._runner = Runner(self.core, self._hand_over, self._after_step)

    def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._runner.start()

    async def close(self) -> None:
        await asyncio.to_thread(self._runner.stop)

    @property
    def idle(self) -> bool:
        return not self._streams

    # ---------------------------------------------------------------------------------------- requests
    async def open(self, asked: wire.GenerateRequest) -> Stream:
        """Checks and queues a request. Raises `wire.WireError` or `Refusal`; after that nothing is left behind.

        The caller reads the stream and calls `finished` with it, whatever happens."""
        if self.draining:
            raise ShuttingDown("the engine is shutting down")
        check_ids(asked, self.core.max_context, self.model.text_config.vocab_size)
        wire.check_placeholders(asked, self.model.config.image_token_id, self.model.config.video_token_id)
        await verify_hashes(asked.items)
        sampling = self._sampling(asked)
        constraint = None
        if asked.grammar is not None:
            constraint = await asyncio.to_thread(self.grammars.compile, asked.grammar, sampling.stop_ids)
        # No await from here on: what is checked now still holds when the request is queued.
        if asked.rid in self._streams:
            raise DuplicateRid(f"a request with rid {asked.rid!r} is running", param="rid")
        places = self.options.max_running + self.options.max_queue
        if self._open_choices + asked.n > places:
            raise QueueFull(f"{self._open_choices} choices run or wait; the limit is {places}")
        rows = self.store.pin(asked.items)
        request = Request(
            rid=asked.rid,
            prompt=asked.input_ids.copy(),  # a view would keep the whole body
            sampling=sampling,
            n=asked.n,
            logprobs=asked.logprobs,
            constraint=constraint,
            salt=asked.cache_salt or "",
            priority=asked.priority,
            items=tuple(_without_rows(i) for i in asked.items),
        )
        stream = request.context = self._streams[asked.rid] = Stream(request)
        self._open_choices += asked.n
        self._runner.submit(request, rows)
        return stream

    def finished(self, stream: Stream) -> None:
        """Gives everything back; aborts the request if it has not ended."""
        request = stream.request
        if self._streams.pop(request.rid, None) is None:
            return
        self._open_choices -= request.n
        self.store.unpin(request.items)
        if not stream.ended:
            self._runner.abort(request)

    def abort(self, rid: str | None) -> None:
        """Ends one request, or all of them; their streams say so."""
        for key, stream in self._streams.items():
            if rid is None or key == rid:
                self._runner.abort(stream.request)

    def fail_all(self) -> None:
        """Ends every request with a retryable failure: the engine is about to stop."""
        for stream in self._streams.values():
            self._runner.fail(stream.request, "shutting_down", "the engine is shutting down", retryable=True)

    def flush_cache(self) -> None:
        self._runner.clear_cache()

    # ---------------------------------------------------------------------------------------- checks
    def _sampling(self, asked: wire.GenerateRequest) -> Sampling:
        """`max_new_tokens` is clipped to what the context still holds; the answer then ends with `length`."""
        room = self.core.max_context - len(asked.input_ids)
        fields = dict(asked.sampling)
        fields["max_new_tokens"] = min(fields.get("max_new_tokens", DEFAULT_MAX_NEW_TOKENS), room)
        try:
            return Sampling.of(fields, self.model.eos_ids, self.model.text_config.vocab_size)
        except ValueError as error:
            raise wire.BadSampling(str(error), param="sampling") from None

    # ---------------------------------------------------------------------------------------- from the engine's thread
    def _hand_over(self, outputs: list[Output]) -> None:
        assert self._loop is not None
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._deliver, outputs)

    def _deliver(self, outputs: list[Output]) -> None:
        for request, replies in outputs:
            for reply in replies:
                if isinstance(reply, wire.Finish):
                    self.metrics.finished.labels(reply.type).inc()
                elif isinstance(reply, wire.Failure):
                    self.metrics.finished.labels("error").inc(request.n)
            request.context.push(replies)

    def _after_step(self) -> None:
        self.metrics.step_s.observe(self.core.totals.last_step_s)


def _without_rows(item: wire.Item) -> wire.Item:
    """Rows live in the media store; keeping the body they came in would keep all of it."""
    return wire.Item(item.modality, item.hash, item.rows, item.t_dup, item.grid, item.ranges)
