"""The engine without threads or sockets: add requests, abort them, take steps. One step = one packed forward pass.

`step` returns what each request has to say, as `engine.wire` replies. Everything here runs in one thread (runner.py).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch

from engine.local import kv_storage
from engine.local.attention import Batch, Segment
from engine.local.kernel_rows import KernelRows, pick_kernel
from engine.local.model import Model, Step
from engine.local.options import EngineOptions
from engine.local.prefix_cache import PrefixCache
from engine.local.sampling import sample
from engine.local.scheduler import Scheduler, Work
from engine.local.sequence import Request, Sequence
from engine.local.vision import FeatureCache
from engine.wire import Done, Failure, Finish, Reply, Tokens

log = logging.getLogger("catalejo.engine")
Output = tuple[Request, list[Reply]]
CPU_STEP_PAIRS = 512 * 8192


@dataclass(slots=True)
class Totals:
    """Counters since the start."""

    prefill_tokens: int = 0
    decode_tokens: int = 0
    steps: int = 0
    last_step_s: float = 0.0


class _RequestFailed(Exception):
    """Something that concerns one request alone went wrong; the others of the step go on."""

    def __init__(self, request: Request) -> None:
        self.request = request


class Core:
    def __init__(self, model: Model, options: EngineOptions) -> None:
        self.model = model
        self.page_size = model.msa.block_size
        self.n_pages = options.kv_pages or max(2, options.kv_bytes // model.kv_shape.page_bytes(model.dtype))
        positions = model.text_config.max_position_embeddings
        self.n_pages = min(self.n_pages, 16 * -(-positions // self.page_size))
        self.max_context = min(positions, self.n_pages * self.page_size, options.context_length or positions)
        self.storage = kv_storage.allocate(model.kv_shape, self.n_pages, model.dtype, model.device)
        self.cache = PrefixCache(self.n_pages, keep=options.prefix_cache)
        pairs = options.step_pairs or (CPU_STEP_PAIRS if model.device.type == "cpu" else None)
        self.scheduler = Scheduler(
            self.cache,
            self.page_size,
            max_running=options.max_running,
            chunk_tokens=options.chunk_tokens,
            step_pairs=pairs,
        )
        heads = model.text_config.num_attention_heads // model.kv_shape.kv_heads
        self.kernel = pick_kernel(options.msa_kernel, model.kv_shape, heads, model.msa, model.dtype, model.device)
        self.features = FeatureCache(model, options.feature_cache_bytes)
        self.rows: dict[str, Mapping[str, bytes]] = {}
        self.totals = Totals()
        self._table = np.zeros((options.max_running, -(-self.max_context // self.page_size)), dtype=np.int64)

    # ---------------------------------------------------------------------------------------- requests
    def add(self, request: Request, rows: Mapping[str, bytes] | None = None) -> None:
        """`rows`: patch rows by item hash, for every item of the request."""
        self.rows[request.rid] = rows or {}
        self.scheduler.add(request)

    def abort(self, request: Request) -> list[Reply]:
        """Ends what is left of a request; the replies say so, choice by choice."""
        replies: list[Reply] = []
        for s in request.sequences:
            if s.finish is None:
                self._finish(s, "abort")
                replies.append(Finish(s.index, "abort", s.usage()))
        self.rows.pop(request.rid, None)
        return [*replies, Done()]

    def fail(self, request: Request, code: str, message: str, *, retryable: bool) -> list[Reply]:
        self.abort(request)
        return [Failure(code, message, retryable)]

    @property
    def busy(self) -> bool:
        return bool(self.scheduler.running or self.scheduler.waiting)

    # ---------------------------------------------------------------------------------------- a step
    @torch.inference_mode()
    def step(self) -> list[Output]:
        """Plans, computes, samples. Raises whatever the model raises; the books still balance then."""
        began = time.perf_counter()
        plan = self.scheduler.plan()
        if not plan:
            return []
        plan.sort(key=lambda w: w.count > 1)  # single tokens first, as the batch wants them
        try:
            packed = self._pack(plan)
        except _RequestFailed as failed:
            log.exception("media of request %s failed", failed.request.rid)
            message = f"{type(failed.__cause__).__name__} while computing an image or video"
            return [(failed.request, self.fail(failed.request, "media_error", message, retryable=False))]
        logits = self.model.forward(packed, self.storage)
        for w in plan:
            if w.count == 1 and w.sequence.generated:
                self.totals.decode_tokens += 1
            else:
                self.totals.prefill_tokens += w.count
        sampling = [w.sequence for w in plan if w.samples]
        for w in plan:
            self.scheduler.computed(w)
        outputs = self._advance(logits, sampling)
        self.totals.steps += 1
        self.totals.last_step_s = time.perf_counter() - began
        return outputs

    def _pack(self, plan: list[Work]) -> Step:
        size = self.page_size
        ids: list[int] = []
        positions = []
        pages = []
        features = []
        segments: list[tuple[slice, int, Sequence]] = []
        wanted = []
        singles = 0
        for w in plan:
            s, start, row = w.sequence, w.sequence.computed, len(ids)
            stop = start + w.count
            ids.extend(s.tokens[start:stop])
            span = np.arange(start, stop)
            positions.append(span)
            table = self._table[s.slot]
            table[s.tabled : len(s.pages)] = s.pages[s.tabled :]
            s.tabled = len(s.pages)
            pages.append(table[span // size])
            if w.count == 1:
                singles += 1
            else:
                segments.append((slice(row, row + w.count), start, s))
            if start < s.prompt_tokens:
                features.extend(self._features(s, start, stop, row))
            if w.samples:
                wanted.append(len(ids) - 1)
        position = np.concatenate(positions)
        longest = int(position[:singles].max()) + 1 if singles else 0
        slots = [w.sequence.slot for w in plan[:singles]]
        device = self.model.device

        def tensor(values: np.ndarray) -> torch.Tensor:
            return torch.from_numpy(np.ascontiguousarray(values)).to(device)

        tables = tensor(self._table[slots, : -(-longest // size)])
        where = tensor(position)
        kernel = KernelRows.of(self.kernel, tables, where[:singles]) if self.kernel and singles else None
        batch = Batch(
            where,
            tables,
            singles,
            longest,
            [Segment(rows, start, tensor(self._table[s.slot, : len(s.pages)])) for rows, start, s in segments],
            kernel,
        )
        return Step(
            tensor(np.array(ids, dtype=np.int64)),
            tensor(np.concatenate(pages)),
            tensor(position % size),
            batch,
            features,
            tensor(np.array(wanted, dtype=np.int64)),
        )

    def _features(self, s: Sequence, start: int, stop: int, row: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
        found = []
        request = s.request
        for item in request.items:
            try:
                runs = self.features.rows(item, self.rows[request.rid][item.hash], start, stop, request.salt)
            except Exception as error:
                raise _RequestFailed(request) from error
            for position, values in runs:
                at = row + position - start
                found.append((torch.arange(at, at + len(values), device=values.device), values))
        return found

    def _advance(self, logits: torch.Tensor, sequences: list[Sequence]) -> list[Output]:
        if not sequences:
            return []
        outputs: dict[int, Output] = {}
        ids, logprobs = sample(logits, sequences)
        for s, token, row in zip(sequences, ids, logprobs, strict=True):
            request = s.request
            if request.sampling.max_new_tokens == 0:
                replies = outputs.setdefault(id(request), (request, []))[1]
                replies.extend(self._close(s, Finish(s.index, "length", s.usage())))
                continue
            s.tokens.append(token)
            if s.constraint is not None:
                s.constraint.accept(token)
            cached = request.cached_tokens if s.generated == 1 else None
            replies = outputs.setdefault(id(request), (request, []))[1]
            replies.append(Tokens(s.index, [token], None if row is None else [row], cached))
            done = self._end(s, token)
            if done is not None:
                replies.extend(self._close(s, done))
        return list(outputs.values())

    def _close(self, s: Sequence, finish: Finish) -> list[Reply]:
        """Ends a choice, and the request with its last one."""
        self._finish(s, finish.type)
        if s.request.open:
            return [finish]
        self.rows.pop(s.request.rid, None)
        return [finish, Done()]

    def _end(self, s: Sequence, token: int) -> Finish | None:
        sampling = s.request.sampling
        if token in sampling.stop_ids and s.generated > sampling.min_new_tokens:
            return Finish(s.index, "stop", s.usage(), token)
        if s.constraint is not None and s.constraint.finished:
            return Finish(s.index, "stop", s.usage(), token)
        if s.generated >= sampling.max_new_tokens:
            return Finish(s.index, "length", s.usage())
        return None

    def _finish(self, s: Sequence, kind: str) -> None:
        s.finish = kind
        self.scheduler.remove(s)
