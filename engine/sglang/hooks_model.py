"""What the plugin does inside a model (scheduler) process, for every SGLang it supports; what differs between versions is
in the adapter of each. SGLang is imported inside functions only."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from engine.sglang.rows import Row

HERE = "engine.sglang.hooks_model"
MODEL = "sglang.srt.models.minimax_m3_vl.MiniMaxM3SparseForConditionalGeneration"
MSA_OPS = "sglang.srt.layers.attention.minimax_sparse_ops.minimax_sparse"
AFTER_IDS = "catalejo_after_ids"

ROWS = (
    Row(f"{MODEL}.get_image_feature", "around", "model", ("self", "items"),
        "uint8 picture rows reach the vision tower unnormalised", f"{HERE}.image_feature"),
    Row(f"{MODEL}.get_video_feature", "around", "model", ("self", "items"),
        "video rows reach the vision tower in the sender's dtype", f"{HERE}.video_feature"),
    Row("sglang.srt.mem_cache.registry.create_tree_cache", "after", "model", ("ctx",),
        "a cache outside the GPU could lose the index keys of the sparse attention", f"{HERE}.tree_cache"),
    Row("sglang.srt.sampling.sampling_batch_info.SamplingBatchInfo.from_schedule_batch", "after", "model",
        ("batch", "vocab_size"), "seeds have no effect without --enable-deterministic-inference", f"{HERE}.seeds"),
    Row("sglang.srt.constrained.reasoner_grammar_backend.ReasonerGrammarObject", "use", "model",
        ("grammar", "think_end_ids"), "a grammar binds the thinking as well", some=True),
)  # fmt: skip


def started(process: str) -> None:
    """After the rows of a process were checked and hooked."""
    if process == "model":
        from engine.sglang import msa

        msa.start()


# ------------------------------------------------------------------------------------------------ sparse attention
def sparse_decode(
    original: Callable[..., Any], q: Any, sink: Any, k_cache: Any, v_cache: Any, idx_q: Any, idx_sink: Any,
    idx_k_cache: Any, idx_v_cache: Any, req_to_token: Any, slot_ids: Any, seq_lens: Any, max_seqlen: int,
    block_size_q: int, block_size_k: int, topk: int, init_blocks: int, local_blocks: int, **options: Any,
) -> tuple[Any, Any]:  # fmt: skip
    """AROUND minimax_sparse_decode: (None, o), or what SGLang's own returns."""
    from engine.sglang import msa

    reason = _unusual(
        q, sink, idx_q, idx_sink, idx_v_cache, k_cache, options, options.get("page_size", 1), block_size_k) or next(
        (name for name in ("topk_out", "hisparse_swap_in_fn", "dense_main_attn_fn", "indexer_cp")
         if options.get(name) is not None), None)  # fmt: skip
    if reason is None and options.get("packed_queries", 1) != 1:
        reason = "packed_queries"
    done = None
    if reason is None:
        work = _work(options, q, idx_q, k_cache, v_cache, idx_k_cache, req_to_token, slot_ids, block_size_k, topk,
                     init_blocks, local_blocks)  # fmt: skip
        done, reason = msa.decode(work, seq_lens)
    if done is not None:
        return None, done
    msa.fell_back("decode", reason or "off")
    return original(q, sink, k_cache, v_cache, idx_q, idx_sink, idx_k_cache, idx_v_cache, req_to_token, slot_ids,
                    seq_lens, max_seqlen, block_size_q, block_size_k, topk, init_blocks, local_blocks, **options)  # fmt: skip


def sparse_prefill(
    original: Callable[..., Any], lengths: Any, page: int, q: Any, k_cache: Any, v_cache: Any, sink: Any, idx_q: Any,
    idx_k_cache: Any, idx_v_cache: Any, idx_sink: Any, req_to_token: Any, slot_ids: Any, cu_seqlens: Any, seq_lens: Any,
    prefix_lens: Any, max_seqlen_q: int, max_seqlen_k: int, block_size_q: int, block_size_k: int, topk: int,
    init_blocks: int, local_blocks: int, **options: Any,
) -> tuple[Any, ...]:  # fmt: skip
    """AROUND minimax_sparse_prefill: (None, o), or what SGLang's own returns. `lengths`: each
    request's, on the host, or None."""
    from engine.sglang import msa

    reason = _unusual(q, sink, idx_q, idx_sink, idx_v_cache, k_cache, options, page, block_size_k)
    if reason is None and options.get("return_topk_idx"):
        reason = "return_topk_idx"
    if reason is None and options.get("loc_mapping") is not None:
        reason = "loc_mapping"
    new = options.get("seqlens_cpu")
    if reason is None and (new is None or lengths is None):
        reason = "lengths_not_on_host"
    done = None
    if reason is None:
        work = _work(options, q, idx_q, k_cache, v_cache, idx_k_cache, req_to_token, slot_ids, block_size_k, topk,
                     init_blocks, local_blocks)  # fmt: skip
        done, reason = msa.extend(work, new, lengths)
    if done is not None:
        return None, done
    msa.fell_back("prefill", reason or "off")
    return original(q, k_cache, v_cache, sink, idx_q, idx_k_cache, idx_v_cache, idx_sink, req_to_token, slot_ids,
                    cu_seqlens, seq_lens, prefix_lens, max_seqlen_q, max_seqlen_k, block_size_q, block_size_k, topk,
                    init_blocks, local_blocks, **options)  # fmt: skip


def _work(options: dict[str, Any], *layer: Any) -> Any:
    """A msa.Work of one layer; its scales are among SGLang's named arguments."""
    from engine.sglang import msa

    return msa.Work(*layer, options.get("sm_scale"), options.get("k_scale"), options.get("v_scale"))


def _unusual(
    q: Any, sink: Any, idx_q: Any, idx_sink: Any, idx_v_cache: Any, k_cache: Any, options: dict[str, Any],
    page_size: int, block: int,
) -> str | None:  # fmt: skip
    """What both steps leave to SGLang's own kernels."""
    if sink is not None or idx_sink is not None:
        return "sink"
    if idx_v_cache is not None or not options.get("disable_index_value", False):
        return "index_value"
    if options.get("score_type", "max") != "max":
        return "score_type"
    if options.get("cached_topk_idx") is not None:
        return "cached_topk_idx"
    if options.get("use_msa"):
        return "sm100_msa"
    if idx_q.shape[1] != k_cache.shape[1]:
        return "index_heads"
    if page_size % block:
        return "page_size"
    if q.element_size() == 1:
        return "query_dtype"
    return None


# ------------------------------------------------------------------------------------------------ the prefix cache
POOLS = ("main_pool", "dense_pool", "index_k_pool", "index_kv_pool")
GPU_ONLY_CACHES = frozenset({"UnifiedRadixCache", "RadixCache", "ChunkCache"})
"""SGLang's caches that keep nothing outside the GPU, unless they have a cache controller or a linker."""
CACHE_FLAGS = (
    "--enable-lmcache", "--enable-flexkv", "--enable-unified-cache-external-linker", "--radix-cache-backend"
)  # fmt: skip
"""Flags that choose a cache which is not known to carry index keys."""


def tree_cache(cache: Any, ctx: Any) -> None:
    """AFTER create_tree_cache: ends the process when the cache would bring K and V back without their index keys."""
    lost = index_keys_lost(cache, ctx.params.token_to_kv_pool_allocator.get_kvcache())
    if lost is not None:
        raise SystemExit(f"catalejo: {lost}; refusing to serve, since answers would be wrong without a sign of it")


def index_keys_lost(cache: Any, pool: Any) -> str | None:
    """Why a prefix that left the GPU may come back without its index keys, or None. `pool`: SGLang's KV pool; models
    without index keys have none of the index pools."""
    parts = {name: getattr(pool, name, None) for name in POOLS}
    if parts["index_k_pool"] is None and parts["index_kv_pool"] is None:
        return None
    kind = type(cache).__name__
    controller = getattr(cache, "cache_controller", None)
    if controller is None:
        if kind in GPU_ONLY_CACHES and getattr(cache, "linker", None) is None:
            return None
        return (
            f"{kind} is not known to carry the index keys of MiniMax-M3 with K and V (one of {', '.join(CACHE_FLAGS)} "
            "chose it; --enable-hierarchical-cache does)"
        )
    carried = {id(entry.device_pool) for entry in getattr(controller.mem_pool_host, "entries", ())}
    missing = [name for name, part in parts.items() if part is not None and id(part) not in carried]
    return f"--enable-hierarchical-cache ({kind}) does not carry {', '.join(missing)}" if missing else None


# ------------------------------------------------------------------------------------------------ pictures
def image_feature(original: Callable[..., Any], model: Any, items: Sequence[Any]) -> Any:
    return original(model, [_normalised(model, item) for item in items])


def video_feature(original: Callable[..., Any], model: Any, items: Sequence[Any]) -> Any:
    return original(model, [_normalised(model, item) for item in items])


def _normalised(model: Any, item: Any) -> Any:
    """The item with rows as the vision tower takes them; the item itself keeps what was sent (eviction may need it)."""
    import copy

    import torch

    if not isinstance(item.feature, torch.Tensor) or item.feature.dtype != torch.uint8:
        return item
    from engine.sglang.normalise import normalised

    weight = model.vision_tower.vision_model.embeddings.patch_embedding.weight
    changed = copy.copy(item)
    changed.feature = normalised(item.feature.to(weight.device), model.vision_tower.dtype)
    return changed


# ------------------------------------------------------------------------------------------------ sampling and grammars
def grammar_after(result: Any, manager: Any, req: Any) -> None:
    """AFTER GrammarManager._apply_request_reasoning_config: the grammar waits for one of the request's marker ids."""
    params = req.sampling_params.custom_params
    after = params.get(AFTER_IDS) if isinstance(params, dict) else None
    if not after or not hasattr(req.grammar, "fill_vocab_mask") or hasattr(req.grammar, "error_message"):
        return
    from sglang.srt.constrained.reasoner_grammar_backend import ReasonerGrammarObject

    waiting = ReasonerGrammarObject(grammar=req.grammar, think_end_ids=after[:1])
    waiting._think_end_matcher = AnyOf(after)
    waiting.maybe_init_reasoning(True)
    req.grammar = waiting


def seeds(result: Any, cls: type, batch: Any, vocab_size: int) -> None:
    """AFTER SamplingBatchInfo.from_schedule_batch: SGLang keeps seeds for its deterministic mode, yet its PyTorch sampler
    honours them in any. Requests without a seed get one of their own, since batches are merged column by column."""
    if result.sampling_seed is not None or not seeded_sampler():
        return
    import secrets

    import torch

    drawn = []
    for req in batch.reqs:
        if req.sampling_params.sampling_seed is None:
            req.sampling_params.sampling_seed = secrets.randbits(62)
        drawn.append(req.sampling_params.sampling_seed)
    result.sampling_seed = torch.tensor(drawn, dtype=torch.int64).to(result.temperatures.device, non_blocking=True)


def seeded_sampler() -> bool:
    from sglang.srt.runtime_context import get_exec

    execution = get_exec()
    return execution.deterministic.enable_deterministic_inference or execution.kernel.sampling_backend == "pytorch"


class AnyOf:
    """Takes the place of SGLang's matcher of one sequence: any one of several ids ends the thinking."""

    def __init__(self, ids: Sequence[int]) -> None:
        self._ids = frozenset(ids)

    def __len__(self) -> int:
        return 1

    def advance(self, matched: int, token: int) -> int:
        return int(token in self._ids)
