"""The Hopper kernels (cuda/*.cuh) as a runner: workspace and launch numbers at plan time, launches only at run time.

decode = two launches: `score` leaves the best 16 blocks of each CTA's share, `attend` ranks those, attends and merges;
the second is set up while the first runs (programmatic dependent launch). select = score + a ranking kernel.
The emulated form runs the same sources on CPU tensors; it is for tests."""

from __future__ import annotations

import ctypes
import math
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.msa.kernels import native
from engine.msa.layouts import DecodeShape, PageTable

LOG2_E = math.log2(math.e)
CANDIDATES = 16
MAX_COLUMNS = 32
MAX_SCORE_CTAS = 288


@dataclass(frozen=True)
class Tuning:
    """Launch numbers. `choose` knows good ones; any may be set by hand for a measurement."""

    score_ctas: int
    depth: int  # steps in the ring of an attending warp: 2 (three CTAs fit a multiprocessor) or 3 (two)
    cluster: int
    pdl: bool = True
    early: int = 1
    """What `score` may read before the kernel before it has finished: 0 nothing, 1 page table and lengths, 2 also the
    keys of complete blocks. 1 asks that the kernel just before writes neither; 2 that it writes only the current token's
    keys (with several query rows 2 is taken as 1, since a row's token can complete a block that a later row scores)."""


def choose(shape: DecodeShape, multiprocessors: int) -> Tuning:
    """One scoring CTA per multiprocessor. Attention: clusters as large as fill the chip twice (16 CTAs: once). Rings of two
    steps, since three CTAs then fit a multiprocessor, or one beside a scoring CTA; rings of three with clusters of two, where
    three on one multiprocessor and one on the next would be the longer wait, and without clusters. Measured: docs/kernels.md."""
    units = shape.rows * shape.groups
    cluster = 16 if units * 16 <= multiprocessors else 8
    while cluster > 1 and units * cluster > 2 * multiprocessors:
        cluster //= 2
    return Tuning(multiprocessors, 3 if cluster <= 2 else 2, cluster)


def unsupported(shape: DecodeShape) -> str | None:
    """Why these kernels cannot do this work, or None."""
    config = shape.config
    if (config.block_size, shape.head_dim) != (128, 128):
        return f"block size {config.block_size} and head dim {shape.head_dim}, built for 128 and 128"
    if config.topk_blocks > CANDIDATES:
        return f"top-k {config.topk_blocks} is over {CANDIDATES}"
    if shape.heads > 16:
        return f"{shape.heads} query heads per group, at most 16"
    if shape.queries * shape.groups > MAX_COLUMNS:
        return f"{shape.queries} queries x {shape.groups} groups are over {MAX_COLUMNS} columns"
    if shape.query_dtype not in (torch.bfloat16, torch.float16):
        return f"query dtype {shape.query_dtype}, must be bfloat16 or float16"
    for name in ("kv_dtype", "index_dtype"):
        if getattr(shape, name) not in (shape.query_dtype, torch.float8_e4m3fn):
            return f"{name} {getattr(shape, name)}, must be {shape.query_dtype} or float8_e4m3fn"
    if shape.requests * (shape.max_tokens // 128) * 512 >= 1 << 32:
        return f"{shape.requests} requests of up to {shape.max_tokens} tokens overflow the 32-bit split of the work"
    return None


class Sm90Runner:
    """One planned shape. Not thread-safe: the workspace and the parameter structs are its own."""

    def __init__(self, shape: DecodeShape, device: torch.device, tuning: Tuning | None = None) -> None:
        self.shape, self.emulated = shape, device.type == "cpu"
        sms = 4 if self.emulated else torch.cuda.get_device_properties(device).multi_processor_count
        self.tuning = tuning or choose(shape, sms)
        self.lib = native.load(self.emulated)
        self.device = device
        entries = self.tuning.score_ctas + shape.requests
        size = entries * shape.queries * shape.groups * CANDIDATES
        self.workspace = torch.zeros(
            3, size, dtype=torch.int32, device=device
        )  # two parts key and page, one part block
        config = shape.config
        self._score, self._attend = native.CScore(), native.CAttend()
        for c in (self._score, self._attend):
            c.candidates.key_page, c.candidates.block = self.workspace.data_ptr(), self.workspace[2].data_ptr()
            c.candidates.entries = entries
            c.groups, c.topk = shape.groups, config.topk_blocks
        self._score.init_blocks, self._score.local_blocks = config.init_blocks, config.local_blocks
        self._score.early = min(self.tuning.early, 1) if shape.queries > 1 else self.tuning.early
        self._attend.heads, self._attend.score_ctas = shape.heads, self.tuning.score_ctas
        self._query_code = native.TYPE_CODES[shape.query_dtype]

    def score(self, index_q: Tensor, index_k: Tensor, table: PageTable, lengths: Tensor) -> None:
        c = self._score
        c.query = index_q.data_ptr()
        c.query_row_stride, c.query_head_stride = index_q.stride(0), index_q.stride(1)
        c.keys, c.page_stride = index_k.data_ptr(), index_k.stride(0) * index_k.element_size()
        native.set_table(c.table, table)
        native.set_lengths(c.lengths, lengths, self.shape)
        t = self.tuning
        code = native.TYPE_CODES[index_k.dtype]
        native.check(
            self.lib.msa_score(
                ctypes.byref(c), code, self._query_code, t.score_ctas, t.pdl, native.stream_of(self.device)
            ),
            "msa_score",
        )

    def read(self, index_k: Tensor, table: PageTable, lengths: Tensor) -> None:
        """The yardstick of cuda/read_sm90.cuh."""
        c = self._score
        c.keys, c.page_stride = index_k.data_ptr(), index_k.stride(0) * index_k.element_size()
        native.set_table(c.table, table)
        native.set_lengths(c.lengths, lengths, self.shape)
        t = self.tuning
        native.check(self.lib.msa_read(ctypes.byref(c), t.score_ctas, t.pdl, native.stream_of(self.device)), "msa_read")

    def select(self, index_q: Tensor, index_k: Tensor, table: PageTable, lengths: Tensor, blocks: Tensor) -> None:
        self.score(index_q, index_k, table, lengths)
        c = self._attend
        self._set_common(table, lengths, blocks)
        native.check(
            self.lib.msa_select(ctypes.byref(c), self.shape.rows, self.tuning.pdl, native.stream_of(self.device)),
            "msa_select",
        )

    def attend(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        blocks: Tensor | None,
        table: PageTable,
        lengths: Tensor,
        out: Tensor,
        *,
        scale: float,
        k_scale: float = 1.0,
        v_scale: float = 1.0,
        lse: Tensor | None = None,
        given: bool = True,
    ) -> None:
        """given: attend to `blocks`. Not given: choose from what `score` left, and write the choice to `blocks` if any."""
        c, t = self._attend, self.tuning
        self._set_common(table, lengths, blocks)
        c.query, c.query_row_stride, c.query_head_stride = q.data_ptr(), q.stride(0), q.stride(1)
        c.keys, c.values = k.data_ptr(), v.data_ptr()
        c.k_page_stride, c.k_token_stride, c.k_head_stride = k.stride()[:3]
        c.v_page_stride, c.v_token_stride, c.v_head_stride = v.stride()[:3]
        c.output, c.output_row_stride, c.output_head_stride = out.data_ptr(), out.stride(0), out.stride(1)
        c.lse = None if lse is None else lse.data_ptr()
        c.scale_log2, c.value_scale = scale * k_scale * LOG2_E, v_scale
        code = native.TYPE_CODES[k.dtype]
        native.check(
            self.lib.msa_attend(
                ctypes.byref(c),
                code,
                self._query_code,
                self.shape.rows,
                given,
                t.depth,
                t.cluster,
                t.pdl,
                native.stream_of(self.device),
            ),
            "msa_attend",
        )

    def decode(
        self,
        q: Tensor,
        index_q: Tensor,
        k: Tensor,
        v: Tensor,
        index_k: Tensor,
        table: PageTable,
        lengths: Tensor,
        out: Tensor,
        *,
        scale: float,
        k_scale: float = 1.0,
        v_scale: float = 1.0,
        lse: Tensor | None = None,
        blocks: Tensor | None = None,
    ) -> None:
        self.score(index_q, index_k, table, lengths)
        self.attend(
            q, k, v, blocks, table, lengths, out, scale=scale, k_scale=k_scale, v_scale=v_scale, lse=lse, given=False
        )

    def _set_common(self, table: PageTable, lengths: Tensor, blocks: Tensor | None) -> None:
        c = self._attend
        c.blocks = None if blocks is None else blocks.data_ptr()
        if blocks is not None:
            c.blocks_row_stride, c.blocks_group_stride = blocks.stride(0), blocks.stride(1)
        native.set_table(c.table, table)
        native.set_lengths(c.lengths, lengths, self.shape)
