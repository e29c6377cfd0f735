"""Where SGLang's CPU path of M3 differs from its CUDA path, put right for tests. A plugin of its own: not in the product.

MoE: without AMX, SGLang 0.5.23 runs experts through `moe_forward_native`, which splits gate and up as GPT-OSS has them
(interleaved) whenever `gemm1_alpha` is set. M3's halves lie one behind the other, as its CUDA kernels know
(`gate_up_interleaved=False`).

Sparse attention: SGLang's kernels are Triton's. With our plugin its torch reference serves; without (SGLANG_PLUGINS names
others only) the same reference is put in their place here, and nothing else of ours.

HiCache: on a CPU SGLang has the host pools and their bookkeeping, not the copy itself, which is in sgl_kernel, and pins
memory with a driver that is not there. What is copied, when and from which pool stays SGLang's."""

from __future__ import annotations

import os
from typing import Any


def register() -> None:
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    path = "sglang.srt.layers.moe.fused_moe_native.swiglu_gpt_oss_sigmoid_alpha"
    HookRegistry.register(path, gate_and_up_in_halves, HookType.REPLACE)
    if "catalejo" not in os.environ.get("SGLANG_PLUGINS", "catalejo").split(","):
        from engine.sglang import adapter_0_5_23, hooks_model

        HookRegistry.register(
            f"{hooks_model.MSA_OPS}.minimax_sparse_prefill", adapter_0_5_23.sparse_prefill, HookType.AROUND
        )
        HookRegistry.register(
            f"{hooks_model.MSA_OPS}.minimax_sparse_decode", hooks_model.sparse_decode, HookType.AROUND
        )
    from sglang.srt.mem_cache.pool_host import base, common, mha

    for module in (base, common, mha):
        for name in ("_cuda_host_register", "_cuda_host_unregister"):
            if hasattr(module, name):
                setattr(module, name, no_pinning)
    if not hasattr(mha, "transfer_kv_direct"):  # imported from sgl_kernel, on CUDA and XPU only
        mha.transfer_kv_direct = transfer_kv_direct


def no_pinning(*args: Any, **kwargs: Any) -> None:
    """Host memory is registered with the CUDA driver, of which there is none."""


def gate_and_up_in_halves(x: Any, gemm1_alpha: float, gemm1_limit: float) -> Any:
    import torch

    gate, up = x.chunk(2, dim=-1)
    gate = gate.clamp(max=gemm1_limit)
    up = up.clamp(min=-gemm1_limit, max=gemm1_limit)
    return gate * torch.sigmoid(gate * gemm1_alpha) * (up + 1)


def transfer_kv_direct(
    src_layers: list[Any], dst_layers: list[Any], src_indices: Any, dst_indices: Any, page_size: int
) -> None:
    """Slots `src_indices` of every source into slots `dst_indices` of its destination."""
    for source, destination in zip(src_layers, dst_layers, strict=True):
        destination[dst_indices] = source[src_indices]
