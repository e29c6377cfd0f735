"""Compiles every Triton kernel for sm_90 exactly as the checks launch it: `python -m engine.bench.compile_launches`.

Needs no GPU. The interpreter accepts what the compiler refuses (a name that changes its type in a loop, a bitcast of a
bf16), and what is compiled depends on the arguments: dtypes, alignment, sizes that are 1. So the runners are called with
the CPU tensors of the cases below while a launch only compiles."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.interpreter import InterpretedFunction
from triton.runtime.jit import JITFunction

from engine.bench import msa_check, prefill_check
from engine.msa import dispatch
from engine.msa.kernels import triton_decode

CPU = torch.device("cpu")
TARGET = GPUTarget("cuda", 90, 32)


@contextmanager
def only_compiling() -> Iterator[dict[tuple[str, int], int]]:
    """Launches compile for TARGET and do nothing else; gives (kernel, identity of what was compiled) -> shared memory, bytes."""
    made: dict[tuple[str, int], int] = {}
    run, was_active = JITFunction.run, driver._active  # type: ignore[attr-defined, unused-ignore]

    def compile_only(self: Any, *args: Any, grid: Any, warmup: bool, **options: Any) -> Any:
        kernel = run(self, *args, grid=grid, warmup=True, **options)
        made[f"{Path(self.fn.__code__.co_filename).stem}.{self.fn.__name__}", id(kernel)] = kernel.metadata.shared
        return kernel

    driver.set_active(  # type: ignore[no-untyped-call, unused-ignore]
        SimpleNamespace(get_current_target=lambda: TARGET, get_current_device=lambda: 0, get_current_stream=lambda _: 0)
    )
    JITFunction.run = compile_only  # type: ignore[method-assign]
    try:
        yield made
    finally:
        JITFunction.run = run  # type: ignore[method-assign]
        driver._active = was_active  # type: ignore[attr-defined, unused-ignore]


def launch_prefill(case: prefill_check.PrefillCase, kernel: str, select: str) -> None:
    """The runners directly: the table of kernels refuses a CPU."""
    work, batch = prefill_check.make(case, CPU, 0), case.batch()
    blocks = torch.zeros(batch.rows, batch.groups, batch.config.topk_blocks, dtype=torch.int32)
    dispatch.SELECT[select].make(batch, CPU).run(work.index_q, work.index_k, work.table, blocks)
    attend, out = dispatch.PREFILL[kernel].make(batch, CPU).attend, torch.empty_like(work.q)
    for lse in (None, torch.empty(work.q.shape[:2])):
        attend(work.q, work.k, work.v, blocks, work.table, out, scale=1.0, lse=lse)


def launch_decode(case: msa_check.Case) -> None:
    given = msa_check.make(case, CPU, 0)
    runner, out = dispatch.KERNELS["triton"].make(case.shape(), CPU), torch.empty_like(given.q)
    keys = given.k, given.v, given.index_k, given.table, given.lengths
    for lse in (None, torch.empty(given.q.shape[:2])):
        runner.decode(given.q, given.index_q, *keys, out, scale=1.0, lse=lse)


def print_forms(made: dict[tuple[str, int], int]) -> None:
    """A line per kernel of what only_compiling gave: how many forms of it, the largest shared memory."""
    counts: dict[str, list[int]] = {}
    for (name, _), shared in made.items():
        counts.setdefault(name, []).append(shared)
    for name, sizes in sorted(counts.items()):
        print(f"{name:40} {len(sizes):3} forms, at most {max(sizes) / 1024:4.0f} KB of shared memory")


def main(arguments: list[str] | None = None) -> int:
    """Prints a line per case that fails; 1 if any did."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--cases", default="", help="only these, by name")
    wanted = set(filter(None, parser.parse_args(arguments).cases.split(",")))
    if isinstance(triton_decode._score_kernel, InterpretedFunction):
        raise SystemExit("TRITON_INTERPRET is set: nothing would be compiled")
    calls: list[tuple[Any, tuple[str, ...]]] = [(case, ()) for case in msa_check.SMALL]
    pairs = (*prefill_check.PAIRS, ("triton", "split"))
    calls += [(case, pair) for case in prefill_check.FULL_CASES for pair in pairs]
    bad = 0
    with only_compiling() as made:
        for case, pair in calls:
            if wanted and case.name not in wanted:
                continue
            try:
                if pair:
                    launch_prefill(case, *pair)
                else:
                    launch_decode(case)
            except Exception as error:
                bad += 1
                print(
                    f"{case.name} {' '.join(pair) or 'decode'}: {type(error).__name__}: {str(error)[-600:]}", flush=True
                )
    print_forms(made)
    return min(1, bad)


if __name__ == "__main__":
    sys.exit(main())
