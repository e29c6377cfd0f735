"""Where SGLang's CPU path of M3 differs from its CUDA path, put right for tests. A plugin of its own: not in the product.

MoE: without AMX, SGLang 0.5.23 runs experts through `moe_forward_native`, which splits gate and up as GPT-OSS has them
(interleaved) whenever `gemm1_alpha` is set. M3's halves lie one behind the other, as its CUDA kernels know
(`gate_up_interleaved=False`)."""

from __future__ import annotations

from typing import Any


def register() -> None:
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    path = "sglang.srt.layers.moe.fused_moe_native.swiglu_gpt_oss_sigmoid_alpha"
    HookRegistry.register(path, gate_and_up_in_halves, HookType.REPLACE)


def gate_and_up_in_halves(x: Any, gemm1_alpha: float, gemm1_limit: float) -> Any:
    import torch

    gate, up = x.chunk(2, dim=-1)
    gate = gate.clamp(max=gemm1_limit)
    up = up.clamp(min=-gemm1_limit, max=gemm1_limit)
    return gate * torch.sigmoid(gate * gemm1_alpha) * (up + 1)
