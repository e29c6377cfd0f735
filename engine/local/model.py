"""One packed forward pass per step: transformers' M3 modules for everything but attention and expert grouping.

Norms, projections, rotary embedding, router, shared expert, vision tower and projector are transformers' own; attention
runs over our pages (attention.py) and experts are grouped (experts.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers.models.minimax_m3_vl.modeling_minimax_m3_vl import apply_rotary_pos_emb

from engine.local import checkpoint
from engine.local.attention import Batch, dense_attention, sparse_attention
from engine.local.experts import moe
from engine.local.kv_storage import KvShape, LayerPages
from engine.msa.config import MsaConfig

STEP_ROWS = 16
"""A step is padded to this many rows, so that matrix products sum the same way however few tokens there are."""
SPARSE = "minimax_m3_sparse"


@dataclass(frozen=True, slots=True)
class Step:
    """Input of a forward pass over T tokens.

    ids        int64 [T]
    pages, offsets  int64 [T]: where each token's keys and values go
    features   (rows int64 [n], values [n, H]): media embeddings that replace those of the ids
    wanted     int64 [R]: rows whose logits are needed
    """

    ids: Tensor
    pages: Tensor
    offsets: Tensor
    batch: Batch
    features: list[tuple[Tensor, Tensor]]
    wanted: Tensor


class Model:
    def __init__(self, folder: Path, dtype: str = "auto", device: torch.device | None = None) -> None:
        self.device = device or torch.device("cpu")
        self.net = checkpoint.load(folder, dtype, self.device)
        self.config = self.net.config
        text = self.text_config = self.config.text_config
        self.dtype: torch.dtype = self.net.lm_head.weight.dtype
        self.msa = MsaConfig(text.index_block_size, text.index_topk_blocks, 0, text.index_local_blocks)
        self.kv_shape = KvShape(
            text.num_key_value_heads,
            text.head_dim,
            tuple(text.index_head_dim if kind == SPARSE else 0 for kind in text.layer_types),
            text.index_block_size,
        )
        if text.index_n_heads != text.num_key_value_heads and SPARSE in text.layer_types:
            raise checkpoint.CheckpointError(
                f"{text.index_n_heads} index heads for {text.num_key_value_heads} KV heads; the model has one for each"
            )
        self.parameters = sum(p.numel() for p in self.net.parameters())
        self.eos_ids = self._eos_ids()

    def _eos_ids(self) -> tuple[int, ...]:
        ids: list[int] = []
        for source in (self.text_config, self.net.generation_config):
            value = source.eos_token_id
            ids.extend([] if value is None else [value] if isinstance(value, int) else value)
        return tuple(dict.fromkeys(ids))

    def forward(self, step: Step, cache: list[LayerPages]) -> Tensor:
        """fp32 logits [R, V] of the wanted rows; keys and values of all T tokens are written to their pages."""
        net = self.net.model.language_model
        count = len(step.ids)
        spare = max(0, STEP_ROWS - count)
        x = net.embed_tokens(F.pad(step.ids, (0, spare)))
        for rows, values in step.features:
            x[rows] = values.to(x.dtype)
        positions = F.pad(step.batch.positions, (0, spare))
        cos, sin = (part[0] for part in net.rotary_emb(x, position_ids=positions[None]))
        for layer, pages in zip(net.layers, cache, strict=True):
            h = layer.input_layernorm(x)
            x = x + self._attention(layer.self_attn, h, (cos, sin), pages, step)
            h = layer.post_attention_layernorm(x)
            x = x + (moe(layer.mlp, h) if hasattr(layer.mlp, "experts") else layer.mlp(h))
        n_wanted = len(step.wanted)
        last = net.norm(x[F.pad(step.wanted, (0, max(0, STEP_ROWS - n_wanted)))])
        return self.net.lm_head(last)[:n_wanted].float()

    def _attention(
        self, attn: torch.nn.Module, x: Tensor, rotary: tuple[Tensor, Tensor], pages: LayerPages, step: Step
    ) -> Tensor:
        """x [T + spare, H] -> [T + spare, H]; spare rows are projected along and left zero."""
        count = len(step.ids)

        def heads(y: Tensor, dim: int) -> Tensor:
            return y.view(len(x), -1, dim)

        q = attn.q_norm(heads(attn.q_proj(x), attn.head_dim))
        k = attn.k_norm(heads(attn.k_proj(x), attn.head_dim))
        v = heads(attn.v_proj(x), attn.head_dim)[:count]
        q, k = (y[:count] for y in apply_rotary_pos_emb(q, k, *rotary))
        if attn.indexer is None:
            pages.write(step.pages, step.offsets, k, v, None)
            out = dense_attention(q, pages, step.batch)
        else:
            index = attn.indexer
            iq = index.q_norm(heads(index.q_proj(x), index.head_dim))
            ik = index.k_norm(heads(index.k_proj(x), index.head_dim))
            iq, ik = (y[:count] for y in apply_rotary_pos_emb(iq, ik, *rotary))
            pages.write(step.pages, step.offsets, k, v, ik[:, 0])
            out = sparse_attention(q, iq, pages, step.batch, self.msa)
        return attn.o_proj(F.pad(out.flatten(1), (0, 0, 0, len(x) - count)))
