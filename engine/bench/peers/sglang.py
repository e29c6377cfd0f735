"""SGLang 0.5.23: `pip download sglang==0.5.23 --no-deps`, unzip, pass the folder. Its CUDA top-k needs apache-tvm-ffi and
either nvcc or a built `minimax_topk.so` beside the `sglang` folder."""

from __future__ import annotations

import functools
import importlib
import shutil
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from engine.bench.msa_inputs import DecodeInputs
from engine.bench.peers import PeerUnavailableError, stand_in
from engine.msa.layouts import PageTable

if TYPE_CHECKING:
    from engine.bench.msa_prefill import Inputs

TOPK_SOURCE = """#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/dtype.h>
#include <tvm/ffi/error.h>
#include <tvm/ffi/extra/c_env_api.h>
#include <tvm/ffi/function.h>
#include "{kernel}"
namespace sglang {{
TVM_FFI_DLL_EXPORT_TYPED_FUNC(minimax_decode_topk, (minimax_decode_topk<int64_t, true>));
}}
"""


def build_topk(root: Path) -> Path:
    """SGLang's CUDA top-k as a library that tvm_ffi can load."""
    built = root / "minimax_topk.so"
    if built.is_file():
        return built
    if shutil.which("nvcc") is None:
        raise PeerUnavailableError("no minimax_topk.so and no nvcc to build it")
    jit = root / "sglang" / "kernels" / "jit"
    ffi = Path(importlib.import_module("tvm_ffi").__file__ or "").parent
    source = root / "minimax_topk.cu"
    source.write_text(TOPK_SOURCE.format(kernel=jit / "csrc" / "minimax" / "minimax_decode_topk.cuh"))
    flags = "-std=c++20 -O3 --expt-relaxed-constexpr -DSGL_CUDA_ARCH=900 -gencode=arch=compute_90a,code=sm_90a -shared".split()
    command = [
        "nvcc",
        *flags,
        "-Xcompiler",
        "-fPIC",
        f"-I{jit / 'include'}",
        f"-I{ffi / 'include'}",
        f"-L{ffi / 'lib'}",
    ]
    done = subprocess.run(
        [*command, "-ltvm_ffi", str(source), "-o", str(built)], capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise PeerUnavailableError(f"nvcc could not build SGLang's top-k:\n{done.stderr[-2000:]}")
    return built


def load(root: Path) -> SimpleNamespace:
    """The decode and prefill functions of SGLang's MiniMax backend (Triton + its CUDA top-k)."""
    base = root / "sglang"
    if not (base / "kernels/ops/attention/minimax_sparse").is_dir():
        raise PeerUnavailableError(f"{base} has no kernels/ops/attention/minimax_sparse: is this SGLang 0.5.23?")

    def load_jit(*_: object, **__: object) -> object:
        import tvm_ffi  # type: ignore[import-not-found, unused-ignore]

        return tvm_ffi.load_module(str(build_topk(root)))

    def yes() -> SimpleNamespace:
        return SimpleNamespace(get=lambda: True)

    environ = SimpleNamespace(SGLANG_OPT_USE_MINIMAX_DECODE_TOPK_RADIX=yes())
    stand_in("sglang")
    stand_in("sglang.srt")
    stand_in("sglang.srt.environ", envs=environ)
    stand_in("sglang.srt.runtime_context", get_platform=lambda: SimpleNamespace(is_sm90=True))
    stand_in("sglang.srt.utils", is_gfx95_supported=lambda: False, is_xpu=lambda: False, is_hip=lambda: False)
    stand_in("sglang.kernels", base / "kernels")
    stand_in("sglang.kernels.ops", base / "kernels/ops")
    stand_in("sglang.kernels.ops.attention", base / "kernels/ops/attention")
    stand_in("sglang.kernels.jit")
    stand_in(
        "sglang.kernels.jit.utils",
        cache_once=functools.cache,
        is_arch_support_pdl=lambda: True,
        load_jit=load_jit,
        make_cpp_args=lambda *_: "",
    )
    at = "sglang.kernels.ops.attention.minimax_sparse"
    decode_topk = importlib.import_module(f"{at}.decode.flash_with_topk_idx")
    decode_attend = importlib.import_module(f"{at}.decode.topk_sparse")
    prefill_topk = importlib.import_module(f"{at}.prefill.flash_with_topk_idx")
    prefill_attend = importlib.import_module(f"{at}.prefill.topk_sparse")
    return SimpleNamespace(
        select=decode_topk.flash_decode_with_topk_idx,
        attend=decode_attend.flash_decode_with_gqa_share_sparse,
        prefill_select=prefill_topk.flash_prefill_with_topk_index,
        prefill_attend=prefill_attend.flash_prefill_with_gqa_share_sparse,
    )


def token_tables(tables: list[PageTable]) -> list[Tensor]:
    """The slot of every token, int32 [requests, tokens], as its `req_to_token`."""
    columns = torch.arange(128, device=tables[0].table.device, dtype=torch.int32)
    return [(t.table[:, :, None] * 128 + columns).flatten(1).contiguous() for t in tables]


class Decode:
    def __init__(self, inputs: DecodeInputs, functions: SimpleNamespace) -> None:
        i = self.i = inputs
        self.f = functions
        device = i.q.device
        self.token_tables, self.scale = token_tables(i.tables), i.q.shape[-1] ** -0.5
        self.k = i.k.view(-1, i.shape.groups, 128)
        self.v = i.v.view(-1, i.shape.groups, 128)
        self.index_k = i.index_k.view(-1, 1, 128)
        self.lengths, self.rows = i.lengths.long(), torch.arange(i.shape.requests, device=device)
        self.blocks: list[Tensor | None] = [None] * i.sets
        self.out: Tensor | None = None

    def select(self, s: int) -> None:
        i, c = self.i, self.i.shape.config
        _, self.blocks[s], _ = self.f.select(
            q=i.index_q[s], sink=None, k_cache=self.index_k, v_cache=None, req_to_token=self.token_tables[s],
            seq_lens=self.lengths, max_seqlen=i.tokens, slot_ids=self.rows, block_size=128, topk=c.topk_blocks,
            init_blocks=c.init_blocks, local_blocks=c.local_blocks, sm_scale=self.scale, disable_index_value=True, page_size=128,
        )  # fmt: skip

    def attend(self, s: int) -> None:
        self.out = self.f.attend(
            q=self.i.q[s], sink=None, k_cache=self.k, v_cache=self.v, req_to_token=self.token_tables[s],
            seq_lens=self.lengths, slot_ids=self.rows, block_size=128, topk_idx=self.blocks[s], sm_scale=self.scale,
            page_size=128,
        )  # fmt: skip

    def step(self, s: int) -> None:
        self.select(s)
        self.attend(s)


class Prefill:
    """Its autotuning may take minutes the first time."""

    def __init__(self, inputs: Inputs, functions: SimpleNamespace) -> None:
        i = self.i = inputs
        self.f, case, device = functions, i.case, i.q.device
        self.token_tables = token_tables(i.tables)
        self.dim = i.q.shape[-1]
        starts = torch.arange(case.requests + 1, device=device, dtype=torch.int32) * case.new
        ends = torch.full((case.requests,), case.length, device=device, dtype=torch.int64)
        self.common = {
            "slot_ids": torch.arange(case.requests, device=device), "cu_seqlens": starts, "seq_lens": ends,
            "prefix_lens": ends - case.new, "max_seqlen_q": case.new, "block_size_q": 1, "block_size_k": 128,
            "cu_seqblocks_q": starts, "max_seqblock_q": case.new, "sm_scale": self.dim**-0.5, "sink": None,
        }  # fmt: skip
        self.blocks: Tensor | None = None
        self.out: Tensor | None = None

    def select(self, s: int) -> None:
        i = self.i
        self.blocks = self.f.prefill_select(
            q=i.index_q, k_cache=i.index_k.view(-1, 1, self.dim), v_cache=None, req_to_token=self.token_tables[s],
            max_seqlen_k=i.case.length, topk=16, init_blocks=0, local_blocks=1, disable_index_value=True,
            all_seqblock_q=len(i.q), page_size=128, **self.common,
        )[1]  # fmt: skip

    def attend(self, s: int) -> None:
        i = self.i
        k, v = (x.view(-1, i.groups, self.dim) for x in (i.k, i.v))
        self.out = self.f.prefill_attend(
            q=i.q, k_cache=k, v_cache=v, req_to_token=self.token_tables[s], topk_idx=self.blocks, **self.common
        )
