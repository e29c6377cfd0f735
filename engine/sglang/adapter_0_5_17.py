"""SGLang 0.5.17, the last with torch 2.11: for machines that have no later torch, to measure there.

What differs from 0.5.23: the sparse prefill is not told the lengths on the host, so they are taken where the backend
prepares a forward pass; cache salts are called `extra_key`; and a picture is known in the prefix cache by 30 bits of
its hash, so that of two pictures in a billion pairs one could be taken for the other by callers who share a salt."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from engine.sglang import hooks_model, hooks_server
from engine.sglang.hooks_model import AFTER_IDS, MSA_OPS, started
from engine.sglang.hooks_server import BATCH, MANAGER, REQUEST_FIELDS, on_dispatch
from engine.sglang.rows import Row

__all__ = ["AFTER_IDS", "ROWS", "media_inputs", "on_dispatch", "request_input", "started"]

HERE = "engine.sglang.adapter_0_5_17"
BACKEND = "sglang.srt.layers.attention.minimax_sparse_backend.MiniMaxSparseAttnBackend"
_PREFILL = """q k_cache v_cache sink idx_q idx_k_cache idx_v_cache idx_sink req_to_token slot_ids cu_seqlens seq_lens
prefix_lens max_seqlen_q max_seqlen_k block_size_q block_size_k topk init_blocks local_blocks sm_scale idx_sm_scale
score_type disable_index_value use_msa cu_seqblocks_q max_seqblock_q all_seqblock_q seqlens_cpu q_scale k_scale v_scale
idx_q_scale idx_k_scale idx_v_scale"""
_DECODE = """q sink k_cache v_cache idx_q idx_sink idx_k_cache idx_v_cache req_to_token slot_ids seq_lens max_seqlen
block_size_q block_size_k topk init_blocks local_blocks sm_scale idx_sm_scale score_type disable_index_value
dense_main_attn_fn page_size use_msa msa_kv_indices msa_plan q_scale k_scale v_scale idx_q_scale idx_k_scale
idx_v_scale"""

ROWS = (
    Row(f"{MSA_OPS}.minimax_sparse_prefill", "around", "model", tuple(_PREFILL.split()),
        "sparse prefill runs SGLang's own kernels", f"{HERE}.sparse_prefill"),
    Row(f"{MSA_OPS}.minimax_sparse_decode", "around", "model", tuple(_DECODE.split()),
        "sparse decode runs SGLang's own kernels", f"{hooks_model.HERE}.sparse_decode"),
    Row(f"{BACKEND}.init_forward_metadata_out_graph", "after", "model", ("self", "forward_batch", "in_capture"),
        "lengths are not known on the host: sparse prefill runs SGLang's own kernels", f"{HERE}.forward_begins"),
    Row("sglang.srt.constrained.grammar_manager.GrammarManager._apply_request_reasoning_budget", "after", "model",
        ("self", "req"), "a grammar binds the thinking as well", f"{hooks_model.HERE}.grammar_after"),
    *hooks_model.ROWS,
    Row(f"{BATCH}.MultimodalDataItem.set_hash", "use", "server", ("self", "hash_value"),
        "pictures are not told apart in the prefix cache"),
    Row(f"{MANAGER}._send_one_request", "after", "server", ("self", "tokenized_obj"),
        "the answer's headers cannot be sent before the first token", f"{HERE}.dispatched"),
    Row("sglang.srt.managers.io_struct.GenerateReqInput", "use", "server", (*REQUEST_FIELDS, "extra_key"),
        "no request can be made", some=True),
    *hooks_server.ROWS,
)  # fmt: skip


class Forward:
    """What the forward pass under way has on the host: new tokens and lengths of its requests."""

    new: Any = None
    lengths: Any = None
    page_size = 1


def forward_begins(result: Any, backend: Any, forward_batch: Any, in_capture: bool = False) -> None:
    """AFTER MiniMaxSparseAttnBackend.init_forward_metadata_out_graph."""
    Forward.new = getattr(forward_batch, "extend_seq_lens_cpu", None)
    Forward.lengths = getattr(forward_batch, "seq_lens_cpu", None)
    Forward.page_size = backend.page_size


def sparse_prefill(original: Callable[..., Any], *arguments: Any, **options: Any) -> tuple[Any, ...]:
    """AROUND minimax_sparse_prefill. Lengths count only when they came with the very list of new tokens given here."""
    new = options.get("seqlens_cpu")
    lengths = Forward.lengths if new is not None and new is Forward.new else None
    return hooks_model.sparse_prefill(original, lengths, Forward.page_size, *arguments, **options)


def request_input(prepared: Any, *, cache_salt: str | None, **fields: Any) -> Any:
    return hooks_server.request_input(prepared, extra_key=cache_salt, **fields)


def media_inputs(input_ids: list[int], items: Any, image_id: int, video_id: int) -> Any:
    """SGLang's multimodal inputs; a picture is known by its hash, of which the prefix cache keeps 30 bits."""
    return hooks_server.media_inputs(_identify, input_ids, items, image_id, video_id)


def _identify(item: Any, digest: str) -> None:
    item.set_hash(int(digest, 16))


def dispatched(result: Any, manager: Any, tokenized_obj: Any) -> None:
    """AFTER TokenizerManager._send_one_request."""
    hooks_server.tell_dispatched(tokenized_obj.rid)
