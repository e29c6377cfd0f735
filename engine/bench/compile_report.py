"""Compiles the prefill kernels for sm_90 with the installed Triton: `python -m engine.bench.compile_report`.

Needs no GPU and no nvcc: Triton brings its assembler. Says for each launch form whether it compiles, its registers and
shared memory, whether its dots are warpgroup products (wgmma), and how many copies it issues by the asynchronous
instructions. Refusals of the compiler and spills show here and not in paid time."""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from engine.msa.kernels import triton_block_major, triton_prefill_select, triton_union

SHARED_LIMIT = 227 * 1024
M3 = {"GROUPS": 4, "GQA": 16, "HEADS": 16, "SLOTS": 16, "BLOCK": 128, "D": 128, "MATH": tl.bfloat16}
FLOAT = {"query": "*bf16", "keys": "*bf16", "values": "*bf16", "output": "*bf16", "lse": "*fp32", "state": "*fp32",
         "candidates": "*i64", "scale_log2": "fp32", "value_scale": "fp32", "row_stride": "i64"}  # fmt: skip
TABLES = {
    "row_tokens",
    "request_tokens",
    "lists",
    "work",
    "total",
    "table",
    "rows",
    "tiles",
    "unions",
    "counts",
    "items",
}


def forms() -> list[tuple[str, Any, dict[str, Any], int, str]]:
    """Name, kernel, constants, warps, type of `partial`: the defaults and those that the bench's sweep tries."""
    out: list[tuple[str, Any, dict[str, Any], int, str]] = []
    for m, warps, stages in ((128, 8, 2), (128, 8, 3), (64, 4, 2), (64, 4, 3)):
        constants = {**M3, "M": m, "HAS_ROWS": False, "STAGES": stages}
        out.append((f"block_major M={m} stages={stages}", triton_block_major._attend_kernel, constants, warps, "*bf16"))
    for stages in (2, 3, 5):
        constants = {**M3, "SPLITS": 1, "QUERIES": 8, "HAS_LSE": False, "STAGES": stages}
        out.append((f"union stages={stages}", triton_union._attend_kernel, constants, 8, "*fp32"))
    for m, warps, stages in ((256, 8, 5), (256, 8, 3), (256, 16, 5), (128, 8, 3), (128, 8, 5), (128, 4, 3)):
        constants = {**M3, "M": m, "K": 16, "INIT": 0, "LOCAL": 1, "HAS_ROWS": False, "STAGES": stages}
        out.append((f"fused M={m} stages={stages}", triton_prefill_select._score_kernel, constants, warps, "*i32"))
    return out


def compiled(kernel: Any, constants: dict[str, Any], warps: int, partial: str) -> Any:
    names = kernel.arg_names
    constants = {name: value for name, value in constants.items() if name in names}
    types = {**FLOAT, "partial": partial, **dict.fromkeys(TABLES, "*i32")}
    signature = {name: "constexpr" if name in constants else types.get(name, "i32") for name in names}
    aligned = {
        (at,): [["tt.divisibility", 16]]
        for at, name in enumerate(names)
        if name not in constants and (signature[name].startswith("*") or name.endswith("stride"))
    }
    values = {(names.index(name),): value for name, value in constants.items()}
    source = ASTSource(kernel, signature, constexprs=values, attrs=aligned)
    return triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": warps})


def registers(cubin: bytes) -> tuple[int, int]:
    """Registers a thread, and bytes of its stack: spills."""
    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        done = subprocess.run([tool, "-res-usage", file.name], capture_output=True, text=True, check=True)
    found = re.search(r"REG:(\d+) STACK:(\d+)", done.stdout + done.stderr)
    return (int(found[1]), int(found[2])) if found else (0, 0)


def main() -> int:
    bad = 0
    print(f"Triton {triton.__version__}, sm_90")
    for name, kernel, constants, warps, partial in forms():
        made = compiled(kernel, constants, warps, partial)
        count, stack = registers(made.asm["cubin"])
        ptx, shared = made.asm["ptx"], made.metadata.shared
        resident = min(65536 // max(1, count * warps * 32), SHARED_LIMIT // max(1, shared))
        faults = [what for what, wrong in (("no wgmma", "wgmma.mma_async" not in ptx), ("spills", stack > 0),
                                           ("too much shared memory", shared > SHARED_LIMIT)) if wrong]  # fmt: skip
        bad += bool(faults)
        copies = ptx.count("cp.async.c")
        print(f"{name:26} warps {warps:2} registers {count:3} shared {shared / 1024:5.0f} KB programs/SM {resident} "
              f"async copies {copies:3}  {', '.join(faults) or 'ok'}", flush=True)  # fmt: skip
    return min(1, bad)


if __name__ == "__main__":
    sys.exit(main())
