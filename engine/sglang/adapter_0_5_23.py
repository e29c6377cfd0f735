"""SGLang 0.5.23: its rows, and the few things that are so in this version only. What every version shares is in
hooks_model.py and hooks_server.py; no other file of this folder names an SGLang internal.

A new SGLang version gets a copy of this file; what changed shows as a failing row at start-up."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from engine.sglang import hooks_model, hooks_server
from engine.sglang.hooks_model import AFTER_IDS, MSA_OPS, started
from engine.sglang.hooks_server import BATCH, MANAGER, REQUEST_FIELDS, on_dispatch, request_input
from engine.sglang.rows import Row

__all__ = ["AFTER_IDS", "ROWS", "media_inputs", "on_dispatch", "request_input", "started"]

HERE = "engine.sglang.adapter_0_5_23"
_PREFILL = """q k_cache v_cache sink idx_q idx_k_cache idx_v_cache idx_sink req_to_token slot_ids cu_seqlens seq_lens
prefix_lens max_seqlen_q max_seqlen_k block_size_q block_size_k topk init_blocks local_blocks sm_scale idx_sm_scale
score_type disable_index_value use_msa cu_seqblocks_q max_seqblock_q all_seqblock_q seqlens_cpu q_scale k_scale v_scale
idx_q_scale idx_k_scale idx_v_scale cached_topk_idx return_topk_idx loc_mapping page_size seq_lens_cpu"""
_DECODE = """q sink k_cache v_cache idx_q idx_sink idx_k_cache idx_v_cache req_to_token slot_ids seq_lens max_seqlen
block_size_q block_size_k topk init_blocks local_blocks sm_scale idx_sm_scale score_type disable_index_value
dense_main_attn_fn page_size use_msa msa_kv_indices msa_plan q_scale k_scale v_scale idx_q_scale idx_k_scale idx_v_scale
cached_topk_idx topk_out hisparse_swap_in_fn indexer_cp packed_queries"""

ROWS = (
    Row(f"{MSA_OPS}.minimax_sparse_prefill", "around", "model", tuple(_PREFILL.split()),
        "sparse prefill runs SGLang's own kernels", f"{HERE}.sparse_prefill"),
    Row(f"{MSA_OPS}.minimax_sparse_decode", "around", "model", tuple(_DECODE.split()),
        "sparse decode runs SGLang's own kernels", f"{hooks_model.HERE}.sparse_decode"),
    Row("sglang.srt.constrained.grammar_manager.GrammarManager._apply_request_reasoning_config", "after", "model",
        ("self", "req"), "a grammar binds the thinking as well", f"{hooks_model.HERE}.grammar_after"),
    *hooks_model.ROWS,
    Row(f"{BATCH}.MultimodalDataItem.set_identity", "use", "server", ("self", "identity"),
        "pictures are not told apart in the prefix cache"),
    Row(f"{MANAGER}._mark_state_dispatched", "after", "server", ("self", "rid"),
        "the answer's headers cannot be sent before the first token", f"{HERE}.dispatched"),
    Row("sglang.srt.managers.io_struct.GenerateReqInput", "use", "server", (*REQUEST_FIELDS, "cache_salt"),
        "no request can be made", some=True),
    *hooks_server.ROWS,
)  # fmt: skip


def sparse_prefill(original: Callable[..., Any], *arguments: Any, **options: Any) -> tuple[Any, ...]:
    """AROUND minimax_sparse_prefill."""
    lengths, page_size = options.get("seq_lens_cpu"), options.get("page_size", 1)
    return hooks_model.sparse_prefill(original, lengths, page_size, *arguments, **options)


def media_inputs(input_ids: list[int], items: Any, image_id: int, video_id: int) -> Any:
    """SGLang's multimodal inputs; a picture is known by its own 32-byte hash."""
    return hooks_server.media_inputs(_identify, input_ids, items, image_id, video_id)


def _identify(item: Any, digest: str) -> None:
    item.set_identity(bytes.fromhex(digest))


def dispatched(result: Any, manager: Any, rid: str) -> None:
    """AFTER TokenizerManager._mark_state_dispatched."""
    hooks_server.tell_dispatched(rid)
