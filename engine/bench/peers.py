"""Other engines' kernels, for comparison only: imported from an unpacked wheel when one is given, never needed otherwise.

SGLang 0.5.23: `pip download sglang==0.5.23 --no-deps`, unzip, pass the folder. Only its MiniMax kernel files are executed:
the packages around them (server, registries, dozens of dependencies) are replaced by the few names those files import.
Its CUDA top-k needs apache-tvm-ffi and either nvcc or a built `minimax_topk.so` beside the `sglang` folder."""

from __future__ import annotations

import functools
import importlib
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

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


class PeerUnavailableError(RuntimeError):
    """The other engine's kernels cannot be used here; the text says why."""


def _module(name: str, path: Path | None = None, **names: Any) -> ModuleType:
    module = ModuleType(name)
    module.__path__ = [] if path is None else [str(path)]  # type: ignore[attr-defined]
    vars(module).update(names)
    sys.modules[name] = module
    return module


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


def load_sglang(root: Path) -> SimpleNamespace:
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
    _module("sglang")
    _module("sglang.srt")
    _module("sglang.srt.environ", envs=environ)
    _module("sglang.srt.runtime_context", get_platform=lambda: SimpleNamespace(is_sm90=True))
    _module("sglang.srt.utils", is_gfx95_supported=lambda: False, is_xpu=lambda: False, is_hip=lambda: False)
    _module("sglang.kernels", base / "kernels")
    _module("sglang.kernels.ops", base / "kernels/ops")
    _module("sglang.kernels.ops.attention", base / "kernels/ops/attention")
    _module("sglang.kernels.jit")
    _module(
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
