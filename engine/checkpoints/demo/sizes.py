"""The demo model's dimensions, in one place. Every mechanism of MiniMax-M3 is kept; only the numbers are small."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Sizes:
    """Text decoder, vision tower and sparse-attention dimensions. Lengths are in tokens, widths in channels."""

    vocab: int = 4096
    hidden: int = 256
    layers: int = 5  # the first is dense attention + dense MLP, the others MSA + MoE
    dense_layers: int = 1
    heads: int = 8
    kv_heads: int = 2  # one index head per KV head
    head_dim: int = 64
    rotary_dim: int = 32
    rope_theta: float = 5_000_000.0
    max_positions: int = 65_536
    eps: float = 1e-6
    dense_mlp: int = 768
    experts: int = 8
    experts_per_token: int = 2
    expert_mlp: int = 96
    shared_mlp: int = 96
    routed_scale: float = 2.0
    alpha: float = 1.702
    limit: float = 7.0
    index_dim: int = 64
    block: int = 32
    topk: int = 16
    # vision
    v_hidden: int = 192
    v_mlp: int = 512
    v_layers: int = 4
    v_heads: int = 3
    v_theta: float = 10_000.0
    v_eps: float = 1e-5
    patch: int = 14
    merge: int = 2
    segment: int = 4  # temporal patches that see each other
    projector: int = 256

    @property
    def group(self) -> int:
        return self.heads // self.kv_heads

    @property
    def v_head_dim(self) -> int:
        return self.v_hidden // self.v_heads


SIZES = Sizes()
