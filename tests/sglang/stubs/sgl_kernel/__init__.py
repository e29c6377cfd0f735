"""Stand-in for `sgl_kernel` (the wheel `sglang-kernel` is CUDA only) so that SGLang imports on a CPU.

Two things are asked of it at import: names, from it and from its submodules, and operators under `torch.ops.sgl_kernel`
(a model or processor module that misses one is silently not registered). Both exist here; what is called says that it
cannot compute, but for the hash that seeded sampling needs. SGLang takes its plain torch paths on a CPU without AMX."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
import types
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

__version__ = "0.4.10"

OPERATORS = """
apply_multidimensional_rope_cpu apply_rotary_pos_emb_cpu biased_grouped_topk_cpu bmm_cpu causal_conv1d_weight_pack
conv3d_embed_cpu conv3d_embed_weight_pack convert_scale_packed convert_weight_packed convert_weight_packed_scale_zp
decode_attention_cpu extend_attention_cpu flash_attn_varlen_func fp8_per_tensor_scaled_mm_cpu fp8_scaled_mm_cpu
fused_add_rmsnorm_cpu fused_dual_residual_rmsnorm_cpu fused_experts_cpu fused_gdn_gating_cpu fused_input_proj_cpu
fused_linear_sigmoid_mul fused_moe_router_cpu fused_qk_gemma_rmsnorm_cpu fused_qk_gemma_rmsnorm_with_gate_cpu
fused_qk_norm_cpu fused_qk_norm_rope_cpu fused_qk_rmsnorm_apply_from_stats_cpu fused_qk_rmsnorm_cpu
fused_qk_rmsnorm_sumsq_cpu fused_qkvzba_split_reshape_cat_contiguous_cpu fused_qkvzba_split_reshape_cat_cpu
fused_rmsnorm_gated_cpu fused_scale_residual_norm_scale_shift fused_scale_shift_cpu
fused_sigmoid_gating_delta_rule_update_cpu fused_sigmoid_mul_cpu gdn_attention gelu_and_mul_cpu gelu_tanh_and_mul_cpu
gemma3_rmsnorm_cpu gemma4_rmsnorm_cpu gemma_fused_add_rmsnorm_cpu gemma_rmsnorm_cpu grouped_topk_cpu
image_preprocess_cpu int4_scaled_mm_cpu int8_scaled_mm_with_quant l2norm_cpu layernorm_cpu
multimodal_rotary_embedding_cpu qkv_proj_with_rope_fused_weight rmsnorm_cpu rotary_embedding_cpu
shared_expert_cpu shm_allgather shm_allreduce silu_and_mul_cpu store_cache_cpu topk_sigmoid_cpu topk_softmax_cpu
weight_packed_linear
""".split()

_library = torch.library.Library("sgl_kernel", "FRAGMENT")
for _name in OPERATORS:
    _library.define(f"{_name}(Tensor x) -> Tensor")


_library.define("murmur_hash32_cpu(Tensor seed, Tensor positions, Tensor columns) -> Tensor")


def _murmur_hash32(seed: torch.Tensor, positions: torch.Tensor, columns: torch.Tensor) -> torch.Tensor:
    """uint32 [n, m]: murmur3 over the 16 bytes (seed as two words, position, column). The one operator that computes:
    seeded sampling has no other path on a CPU."""
    low = 0xFFFFFFFF
    seeds = seed.view(torch.int64).numpy().view(np.uint64)
    words = [
        (seeds & low)[:, None],
        (seeds >> 32)[:, None],
        positions.numpy().astype(np.uint64)[:, None] & low,
        columns.numpy().astype(np.uint64)[None, :] & low,
    ]
    h = np.zeros((len(seeds), len(columns)), dtype=np.uint64)
    for word in words:
        k = word * 0xCC9E2D51 & low
        k = ((k << 15 | k >> 17) & low) * 0x1B873593 & low
        h = h ^ k
        h = ((h << 13 | h >> 19) & low) * 5 + 0xE6546B64 & low
    h = h ^ 16
    h = (h ^ h >> 16) * 0x85EBCA6B & low
    h = (h ^ h >> 13) * 0xC2B2AE35 & low
    return torch.from_numpy((h ^ h >> 16).astype(np.uint32))


_library.impl("murmur_hash32_cpu", _murmur_hash32, "CPU")


_aten = torch.library.Library("aten", "IMPL")


def _mm_dtype(a: torch.Tensor, b: torch.Tensor, out_dtype: torch.dtype) -> torch.Tensor:
    """torch.mm(..., out_dtype=...), the router's product, which PyTorch has on CUDA only."""
    return torch.mm(a.to(out_dtype), b.to(out_dtype))


_aten.impl("mm.dtype", _mm_dtype, "CPU")


class _Name:
    """A name of the real module: may be imported, read from and compared; calling it is the error."""

    def __init__(self, name: str) -> None:
        self.__name__ = name

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Name(f"{self.__name__}.{name}")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise RuntimeError(f"{self.__name__} is a CUDA kernel; this sgl_kernel is a stand-in for tests on a CPU")


class _Module(types.ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Name(f"{self.__name__}.{name}")


class _Submodules(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Any `sgl_kernel.x.y` is a module of absent names."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if not name.startswith("sgl_kernel."):
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return _Module(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        pass


sys.meta_path.append(_Submodules())


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    return _Name(f"sgl_kernel.{name}")
