"""vLLM 0.33.0: `pip download vllm==0.33.0 --no-deps`, unzip `vllm/models/minimax_m3/common/ops/*`, pass the folder that holds
`vllm` (site-packages, where it is installed). All it runs on Hopper is Triton, in two files; nothing compiled is needed.

Called as its MiniMax-M3 backend does. Same pages, tables and index keys as ours. Its cache holds K and V of a token side by
side, so they are copied into one pool once, by token or by head as ours are (by token is its own default there). Outputs
and choices go to tensors made before, as in its server; what its functions allocate themselves is within the measured
graph. fp8 keys and values come without scales, as in every other measurement."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from engine.bench.msa_inputs import DecodeInputs
from engine.bench.peers import PeerUnavailableError, stand_in
from engine.msa.config import MsaConfig

if TYPE_CHECKING:
    from engine.bench.msa_prefill import Inputs


def load(root: Path, *, pdl: bool = True) -> SimpleNamespace:
    """The decode and prefill functions of vLLM's MiniMax-M3 backend, as it runs them where there is no SM100.

    pdl: what vLLM's platform answers on compute capability 9.0, True; Triton's interpreter knows no such instruction.
    `retune()` forgets what its top-k kernels were tuned to: vLLM tunes them once, to the first size a process meets."""
    ops = root / "vllm/models/minimax_m3/common/ops"
    absent = [name for name in ("index_topk.py", "sparse_attn.py") if not (ops / name).is_file()]
    if absent:
        raise PeerUnavailableError(f"{ops} has no {' and no '.join(absent)}: is this vLLM 0.33.0?")
    import triton
    import triton.language

    platform = SimpleNamespace(
        is_cuda=lambda: True, is_device_capability=lambda capability: capability == (9, 0), is_arch_support_pdl=lambda: pdl
    )  # fmt: skip
    for name in ("vllm", "vllm.models", "vllm.models.minimax_m3", "vllm.models.minimax_m3.common", "vllm.utils"):
        stand_in(name)
    stand_in("vllm.platforms", current_platform=platform)
    stand_in("vllm.triton_utils", triton=triton, tl=triton.language)
    stand_in("vllm.utils.math_utils", round_up=lambda value, to: -(-value // to) * to)
    at = "vllm.models.minimax_m3.common.ops"
    stand_in(at, ops)
    index, attention = importlib.import_module(f"{at}.index_topk"), importlib.import_module(f"{at}.sparse_attn")
    names = {
        "select": (index, "minimax_m3_index_decode"), "attend": (attention, "minimax_m3_sparse_attn_decode"),
        "prefill_score": (index, "minimax_m3_index_score"), "prefill_topk": (index, "minimax_m3_index_topk"),
        "prefill_attend": (attention, "minimax_m3_sparse_attn"),
    }  # fmt: skip
    gone = [name for module, name in names.values() if not hasattr(module, name)]
    if gone:
        raise PeerUnavailableError(f"vLLM's {at} has no {', '.join(gone)}: is this vLLM 0.33.0?")
    # A heuristic around an autotuner around a kernel.
    inside: list[Any] = [getattr(value, "fn", None) for value in vars(index).values()]
    tuners = [tuner for tuner in inside if hasattr(tuner, "configs") and hasattr(tuner, "cache")]

    def retune() -> None:
        for tuner in tuners:
            tuner.cache.clear()

    found = {short: getattr(module, name) for short, (module, name) in names.items()}
    return SimpleNamespace(**found, tuners=tuners, retune=retune)


def cache_of(k: Tensor, v: Tensor) -> Tensor:
    """k, v [P, 128, G, D] -> vLLM's [P, G, 128, 2 D]: a copy whose memory order is that of k, by token or by head."""
    pages, size, groups, dim = k.shape
    if k.is_contiguous():
        cache = torch.empty(pages, size, groups, 2 * dim, dtype=k.dtype, device=k.device).transpose(1, 2)
    else:
        cache = torch.empty(pages, groups, size, 2 * dim, dtype=k.dtype, device=k.device)
    cache[..., :dim].copy_(k.transpose(1, 2))
    cache[..., dim:].copy_(v.transpose(1, 2))
    return cache


def _choice(rows: int, groups: int, slots: int, device: torch.device) -> Tensor:
    """[G, T, K] over a buffer with the rows outermost, as vLLM's own; poisoned."""
    return torch.full((rows, groups, slots), -7, dtype=torch.int32, device=device).transpose(0, 1)


class Decode:
    def __init__(self, inputs: DecodeInputs, functions: SimpleNamespace) -> None:
        i = self.i = inputs
        self.f = functions
        self.f.retune()
        shape, device = i.shape, i.q.device
        self.cache = cache_of(i.k, i.v)
        self.blocks = [_choice(shape.rows, shape.groups, shape.config.topk_blocks, device) for _ in range(i.sets)]
        self.out = torch.full_like(i.q[0], float("nan"))
        self.more: tuple[str, ...] = ()
        if i.index_k.dtype == torch.float8_e4m3fn:
            self.index_q8, self.more = i.index_q.to(i.index_k.dtype), ("select_q8",)

    def select(self, s: int) -> None:
        self._select(s, self.i.index_q[s])

    def select_q8(self, s: int) -> None:
        """fp8 index queries too, as its server makes them for fp8 index keys: other rounding, so another choice."""
        self._select(s, self.index_q8[s])

    def _select(self, s: int, index_q: Tensor) -> None:
        i, c = self.i, self.i.shape.config
        self.f.select(
            idx_q=index_q, index_kv_cache=i.index_k, block_table=i.tables[s].table, seq_lens=i.lengths, max_seq_len=i.tokens,
            topk=c.topk_blocks, init_blocks=c.init_blocks, local_blocks=c.local_blocks, num_kv_heads=i.shape.groups,
            decode_query_len=i.shape.queries, max_decode_query_len=i.shape.queries, out=self.blocks[s],
        )  # fmt: skip

    def attend(self, s: int) -> None:
        i = self.i
        self.f.attend(
            q=i.q[s], kv_cache=self.cache, topk_idx=self.blocks[s], block_table=i.tables[s].table, seq_lens=i.lengths,
            num_kv_heads=i.shape.groups, sm_scale=i.q.shape[-1] ** -0.5, output=self.out, decode_query_len=i.shape.queries,
        )  # fmt: skip

    def step(self, s: int) -> None:
        self.select(s)
        self.attend(s)


class Prefill:
    more = ("score",)

    def __init__(self, inputs: Inputs, functions: SimpleNamespace, config: MsaConfig | None = None) -> None:
        i = self.i = inputs
        self.f, self.config = functions, config or MsaConfig()
        self.f.retune()
        case, device = i.case, i.q.device
        self.cache = cache_of(i.k, i.v)
        self.starts = torch.arange(case.requests + 1, device=device, dtype=torch.int32) * case.new
        self.lengths = torch.full((case.requests,), case.length, device=device, dtype=torch.int32)
        self.prefixes = self.lengths - case.new
        self.blocks = _choice(len(i.q), i.groups, self.config.topk_blocks, device)
        self.out = torch.full_like(i.q, float("nan"))
        self.scores: Tensor | None = None

    def score(self, s: int) -> None:
        i = self.i
        self.scores = self.f.prefill_score(
            idx_q=i.index_q, index_kv_cache=i.index_k, block_table=i.tables[s].table, cu_seqlens_q=self.starts,
            seq_lens=self.lengths, prefix_lens=self.prefixes, max_query_len=i.case.new, max_seq_len=i.case.length,
            num_kv_heads=i.groups,
        )  # fmt: skip

    def select(self, s: int) -> None:
        self.score(s)
        c = self.config
        self.f.prefill_topk(
            score=self.scores, cu_seqlens_q=self.starts, prefix_lens=self.prefixes, max_query_len=self.i.case.new,
            topk=c.topk_blocks, init_blocks=c.init_blocks, local_blocks=c.local_blocks, out=self.blocks,
        )  # fmt: skip

    def attend(self, s: int) -> None:
        i = self.i
        self.f.prefill_attend(
            q=i.q, kv_cache=self.cache, topk_idx=self.blocks, block_table=i.tables[s].table, cu_seqlens_q=self.starts,
            seq_lens=self.lengths, prefix_lens=self.prefixes, max_query_len=i.case.new, num_kv_heads=i.groups,
            sm_scale=i.q.shape[-1] ** -0.5, output=self.out,
        )  # fmt: skip
