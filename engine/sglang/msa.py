"""Sparse attention of a SGLang layer through engine.msa: which path, plans kept per shape, every fallback counted.

CATALEJO_MSA   auto    the best kernel engine.msa has for the work (default)
               triton  its portable kernels     cuda  its Hopper kernels     (a refusal is a fallback, counted)
               off     SGLang's own kernels: the baseline to measure against
CATALEJO_MSA_EXTEND_ROWS   longest prefill chunk, in new tokens, that a kernel which reads the chosen blocks row by row
               takes on a GPU (default 2048); longer ones are SGLang's. The block-major kernel, Hopper's for chunks, takes any

No synchronisation and no allocation but the output's during decode, so a step may be captured in a CUDA graph; plans
are made in the eager warm-up that SGLang runs before capture. Where SGLang's kernels cannot run (a CPU) the same calls
end in engine.msa's torch reference."""

from __future__ import annotations

import logging
import os
from collections import Counter
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from engine.msa import dispatch
from engine.msa.config import MsaConfig
from engine.msa.extend import ExtendPlan
from engine.msa.layouts import DecodeShape, MsaArgumentError, PageTable, PrefillBatch, pages_of_slots
from engine.msa.ops import DecodePlan

log = logging.getLogger("catalejo.sglang.msa")
KERNELS = {"auto": "auto", "triton": "triton", "cuda": "sm90", "off": None}
MODE_VARIABLE = "CATALEJO_MSA"
ROWS_VARIABLE = "CATALEJO_MSA_EXTEND_ROWS"
MOST_ROWS_BY_ROW = 2048
"""2,000 new tokens behind 60,000 cost the same row by row as with SGLang 0.5.23's kernels (docs/kernels.md)."""
MOST_REASONS = 200
"""Fallback reasons that get a log line; those of one kind (before the colon) share a counter."""


@dataclass(frozen=True)
class Work:
    """One layer's tensors as SGLang holds them.

    q [rows, heads, D], idx_q [rows, groups, D]; k_cache, v_cache [slots, groups, D]; idx_k_cache [slots, 1, D];
    req_to_token int32 [requests, context]: the slot of every token; slot_ids [batch]: rows of it."""

    q: Tensor
    idx_q: Tensor
    k_cache: Tensor
    v_cache: Tensor
    idx_k_cache: Tensor
    req_to_token: Tensor
    slot_ids: Tensor
    block: int
    topk: int
    init_blocks: int
    local_blocks: int
    scale: float | None
    k_scale: float | None
    v_scale: float | None

    @property
    def config(self) -> MsaConfig:
        return MsaConfig(self.block, self.topk, self.init_blocks, self.local_blocks)

    @property
    def groups(self) -> int:
        return int(self.k_cache.shape[1])

    @property
    def heads(self) -> int:
        return int(self.q.shape[1]) // self.groups

    @property
    def table(self) -> PageTable:
        return PageTable.of_tokens(self.req_to_token, self.slot_ids, self.block)

    @property
    def pages(self) -> tuple[Tensor, Tensor, Tensor]:
        k, v, index = (pages_of_slots(t, self.block) for t in (self.k_cache, self.v_cache, self.idx_k_cache))
        return k, v, index[:, :, 0]

    @property
    def scales(self) -> dict[str, Any]:
        one = {"k_scale": self.k_scale, "v_scale": self.v_scale}
        return {"scale": self.scale, **{name: 1.0 if value is None else value for name, value in one.items()}}


class Paths:
    """What ran where: counters for tests and, once SGLang's metrics are on, for Prometheus."""

    def __init__(self) -> None:
        self.mode = "auto"
        self.kernel: str | None = "auto"
        self.extend_rows = MOST_ROWS_BY_ROW
        self.served: Counter[tuple[str, str]] = Counter()
        self.fallbacks: Counter[tuple[str, str]] = Counter()
        self._said: set[tuple[str, str]] = set()
        self._decode_plans: dict[DecodeShape, DecodePlan | str] = {}
        self._extend: tuple[tuple[Any, ...], ExtendPlan | str] | None = None
        self._metrics: tuple[Any, Any] | None = None

    def configure(self, environment: dict[str, str]) -> None:
        """Raises SystemExit for a value that is none of ours."""
        mode = environment.get(MODE_VARIABLE, "auto")
        rows = environment.get(ROWS_VARIABLE, str(MOST_ROWS_BY_ROW))
        if mode not in KERNELS:
            raise SystemExit(f"catalejo: {MODE_VARIABLE} is {mode!r}; it must be one of {', '.join(KERNELS)}")
        if not rows.isdigit():
            raise SystemExit(f"catalejo: {ROWS_VARIABLE} is {rows!r}; it must be a number of tokens")
        self.mode, self.kernel, self.extend_rows = mode, KERNELS[mode], int(rows)

    def ran(self, phase: str, path: str, why: str = "") -> None:
        if not self.served[phase, path] and why:
            log.info("msa %s: %s serves, because of %s", phase, path, why)
        self.served[phase, path] += 1
        self._counter(0).labels(phase, path).inc()

    def fell_back(self, phase: str, reason: str) -> None:
        self.ran(phase, "sglang")
        if self.mode == "off":
            return
        label = reason.split(":", 1)[0]
        self.fallbacks[phase, label] += 1
        self._counter(1).labels(phase, label).inc()
        if (phase, reason) not in self._said and len(self._said) < MOST_REASONS:
            self._said.add((phase, reason))
            log.warning("msa %s: SGLang's own kernels serve this, because of %s", phase, reason)

    def _counter(self, which: int) -> Any:
        if self._metrics is None:
            # Not earlier: SGLang sets prometheus_client's multi-process folder before its first use.
            from prometheus_client import Counter as Metric

            self._metrics = (
                Metric("catalejo_msa_layers", "Sparse layers run eagerly or captured, by path.", ["phase", "path"]),
                Metric("catalejo_msa_fallbacks", "Layers left to SGLang, by reason.", ["phase", "reason"]),
            )
        return self._metrics[which]

    def decode_plan(self, shape: DecodeShape, device: torch.device) -> DecodePlan | str:
        plan = self._decode_plans.get(shape)
        if plan is None:
            try:
                plan = DecodePlan(shape, device, self.kernel or "auto")
            except MsaArgumentError as error:
                plan = f"kernel: {error}"
            self._decode_plans[shape] = plan
        return plan

    def extend_plan(self, work: Work, new: list[int], lengths: list[int]) -> ExtendPlan | str:
        """The plan of this forward pass: all its layers ask for the same."""
        types = (work.q.dtype, work.k_cache.dtype, work.idx_k_cache.dtype)
        key = (new, lengths, work.groups, work.heads, work.q.shape[2], types, work.config)
        if self._extend is None or self._extend[0] != key:
            self._extend = None  # its workspace, up to a gigabyte, serves the next one
            self._extend = (key, self._new_extend_plan(work, new, lengths))
        return self._extend[1]

    def _new_extend_plan(self, work: Work, new: list[int], lengths: list[int]) -> ExtendPlan | str:
        device, kernel = work.q.device, self.kernel or "auto"
        types = (work.q.dtype, work.k_cache.dtype, work.idx_k_cache.dtype)
        batch = PrefillBatch(
            tuple(new), tuple(lengths), work.groups, work.heads, *types, work.q.shape[2], work.config
        )  # fmt: skip
        try:
            row_by_row = dispatch.choose(batch, device, kernel, "prefill").kernel in dispatch.KERNELS
            if device.type == "cuda" and row_by_row and batch.rows > self.extend_rows:
                return "long_chunk"
            return ExtendPlan(
                new, lengths, groups=work.groups, heads=work.heads, device=device, config=work.config, query_dtype=types[0],
                kv_dtype=types[1], index_dtype=types[2], kernel=kernel, head_dim=work.q.shape[2],
            )  # fmt: skip
        except MsaArgumentError as error:
            return f"kernel: {error}"


PATHS = Paths()


def start() -> None:
    PATHS.configure(dict(os.environ))
    # It tells of every plan, of which a server makes one per prefill chunk; `ran` tells of each path once.
    dispatch.log.setLevel(logging.WARNING)
    log.info("catalejo msa: mode %s, row by row up to %d new tokens", PATHS.mode, PATHS.extend_rows)


def fell_back(phase: str, reason: str) -> None:
    PATHS.fell_back(phase, reason)


def decode(work: Work, lengths: Tensor) -> tuple[Tensor | None, str | None]:
    """One query row per request: (output [rows, heads, D], None), or (None, reason)."""
    if PATHS.kernel is None:
        return None, None
    if not work.q.shape[0]:
        return torch.empty_like(work.q), None
    shape = DecodeShape(
        requests=work.q.shape[0], groups=work.groups, heads=work.heads, max_tokens=work.req_to_token.shape[1],
        query_dtype=work.q.dtype, kv_dtype=work.k_cache.dtype, index_dtype=work.idx_k_cache.dtype,
        head_dim=work.q.shape[2], config=work.config,
    )  # fmt: skip
    plan = PATHS.decode_plan(shape, work.q.device)
    if isinstance(plan, str):
        return None, plan
    k, v, index_k = work.pages
    out = torch.empty_like(work.q)
    try:
        plan.decode(work.q, work.idx_q, k, v, index_k, work.table, lengths, out=out, **work.scales)
    except MsaArgumentError as error:  # raised before anything is launched
        return None, f"kernel: {error}"
    PATHS.ran("decode", plan.choice.kernel, plan.choice.reason)
    return out, None


def extend(work: Work, new: list[int], lengths: Tensor | list[int]) -> tuple[Tensor | None, str | None]:
    """New tokens of several requests, packed: (output, None), or (None, reason)."""
    if PATHS.kernel is None:
        return None, None
    if not work.q.shape[0]:
        return torch.empty_like(work.q), None
    on_gpu = work.q.device.type == "cuda"
    if on_gpu and torch.cuda.is_current_stream_capturing():
        return None, "capture"
    if sum(new) != work.q.shape[0] or min(new) < 1:
        return None, "padded_rows"
    host = lengths.tolist() if isinstance(lengths, Tensor) else list(lengths)
    plan = PATHS.extend_plan(work, list(new), host)
    if isinstance(plan, str):
        return None, plan
    k, v, index_k = work.pages
    out = torch.empty_like(work.q)
    try:
        plan.extend(work.q, work.idx_q, k, v, index_k, work.table, out=out, **work.scales)
    except MsaArgumentError as error:
        return None, f"kernel: {error}"
    PATHS.ran("prefill", plan.choice.kernel, plan.choice.reason)
    return out, None
