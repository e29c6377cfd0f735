"""Compiles the CUDA sources that SGLang 0.5.17 would compile one after another at its first start, all at once.

Worth minutes on a machine of many cores that is lent by the minute. A name that does not fit is said and costs nothing:
SGLang then compiles it when it needs it."""

from __future__ import annotations

import multiprocessing
import time
from importlib import import_module
from typing import Any

import torch

BF16 = torch.bfloat16
MODULES: tuple[tuple[str, str, tuple[Any, ...]], ...] = (
    ("attention.minimax_decode_topk", "_jit_module", (torch.int32,)),
    ("attention.minimax_decode_topk", "_jit_module", (torch.int64,)),
    ("attention.minimax_qknorm_rope", "_jit_module", (torch.int64, 128, 64)),
    ("kvcache.minimax_store_kv_index", "_jit_module", (256,)),
    ("kvcache.kvcache", "_jit_kvcache_module", (1024, 1024)),
    ("attention.clamp_position", "_jit_clamp_position_module", (torch.int64,)),
    ("moe.moe_topk_sigmoid", "_jit_moe_topk_sigmoid_module", (torch.float32,)),
    ("moe.moe_topk_sigmoid", "_jit_moe_topk_sigmoid_module", (BF16,)),
    ("moe.moe_fused_gate", "_jit_moe_fused_gate_module", ()),
    ("activation.activation", "activation_module", (BF16,)),
    ("attention.rope", "_jit_rotary_embedding_module", ()),
)


def compile_one(entry: tuple[str, str, tuple[Any, ...]]) -> str:
    module, maker, arguments = entry
    began = time.monotonic()
    try:
        getattr(import_module(f"sglang.kernels.ops.{module}"), maker)(*arguments)
    except Exception as error:
        return f"{module} {arguments}: {str(error)[-300:]}"
    return f"{module} {arguments}: {time.monotonic() - began:.0f} s"


if __name__ == "__main__":
    with multiprocessing.get_context("spawn").Pool(
        len(MODULES)
    ) as pool:  # forked processes could not ask the GPU its name
        for line in pool.imap_unordered(compile_one, MODULES):
            print("compiled ahead:", line, flush=True)
