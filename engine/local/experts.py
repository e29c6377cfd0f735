"""Mixture of experts, grouped: every expert's rows lie together, so that an expert is one matrix product.

Groups are padded to ROWS rows, which also keeps a token's result independent of its neighbours (see attention.py)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

ROWS = 16


def moe(block: nn.Module, x: Tensor) -> Tensor:
    """transformers' sparse MoE block on packed tokens. x [T, H] -> [T, H]."""
    _, weights, chosen = block.gate(x)
    routed = grouped_experts(block.experts, x, chosen, weights)
    return routed * block.routed_scaling_factor + block.shared_experts(x)


def grouped_experts(experts: nn.Module, x: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
    """x [T, H], chosen [T, k] expert ids, weights [T, k] -> sum over k of weight * expert(x)."""
    n_tokens, k = chosen.shape
    flat = chosen.flatten()
    counts = torch.bincount(flat, minlength=experts.num_experts)
    sizes = (counts + ROWS - 1) // ROWS * ROWS
    starts = sizes.cumsum(0) - sizes
    order = flat.argsort(stable=True)
    of_expert = flat[order]
    rank = torch.arange(len(flat), device=x.device) - (counts.cumsum(0) - counts)[of_expert]
    place = torch.empty_like(order)
    place[order] = starts[of_expert] + rank  # where assignment (t, j) = t * k + j goes
    bounds = [
        (e, start, size) for e, (start, size) in enumerate(zip(starts.tolist(), sizes.tolist(), strict=True)) if size
    ]
    total = bounds[-1][1] + bounds[-1][2]
    packed = x.new_zeros(total, x.shape[1])
    packed[place] = x.repeat_interleave(k, 0)
    gate_up = x.new_empty(total, experts.gate_up_proj.shape[1])
    for e, start, size in bounds:
        torch.mm(packed[start : start + size], experts.gate_up_proj[e].T, out=gate_up[start : start + size])
    hidden = _activate(gate_up, experts.swiglu_alpha, experts.swiglu_limit)
    for e, start, size in bounds:
        torch.mm(hidden[start : start + size], experts.down_proj[e].T, out=packed[start : start + size])
    out = packed[place].unflatten(0, (n_tokens, k))
    return (out * weights[..., None]).sum(1).to(x.dtype)


def _activate(gate_up: Tensor, alpha: float, limit: float) -> Tensor:
    gate, up = gate_up.chunk(2, dim=-1)
    gate = gate.clamp(max=limit)
    up = up.clamp(-limit, limit)
    return (up + 1) * (gate * torch.sigmoid(gate * alpha))
