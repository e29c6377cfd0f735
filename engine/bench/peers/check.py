"""What is true of a peer without a GPU: `python -m engine.bench.peers.check --vllm FOLDER [--compile]`.

Triton's interpreter runs vLLM's functions by the very calls that the benchmark times, on small shapes in fp16; the choice and
the output are compared with the fp32 reference. --compile: the same calls compile for sm_90, with the benchmark's types,
heads and numbers of requests, and every form that vLLM's autotuners would try."""

from __future__ import annotations

import argparse
import dataclasses
import os
import sys
from pathlib import Path
from types import SimpleNamespace

import torch

from engine.bench.msa_inputs import make_inputs
from engine.bench.msa_prefill import Inputs, PrefillCase, fault_of
from engine.bench.peers import PeerUnavailableError, in_our_order, vllm
from engine.msa.layouts import DecodeShape
from engine.msa.oracle_decode import attend_blocks, choice_fault, paged_block_scores, row_lengths
from engine.msa.tolerances import TOLERANCE

CPU = torch.device("cpu")
BF16, F16, E4M3 = torch.bfloat16, torch.float16, torch.float8_e4m3fn
# Lengths, query rows per request, layout: fewer blocks than are chosen, the first real choice, partial pages, two rows.
DECODE = (((300, 2049), 1, "nhd"), ((2600, 2177), 2, "hnd"))
# And groups: two requests, then more rows than one tile of the scores.
PREFILL = ((PrefillCase(2, 3, 2180), 2), (PrefillCase(1, 66, 2100), 1))
COMPILED_DECODE = ((1, 32 * 1024, 0), (8, 4096, 0), (32, 4096, 0), (128, 2048, 0), (1, 32 * 1024, 1), (8, 4096, 1))
COMPILED_PREFILL = (PrefillCase(1, 8192, 8192), PrefillCase(1, 100, 60_100), PrefillCase(2, 100, 60_100))


def decode_fault(functions: SimpleNamespace, lengths: tuple[int, ...], queries: int, layout: str) -> str | None:
    groups, heads = 2, 16
    shape = DecodeShape(len(lengths), groups, heads, queries, max(lengths), F16, F16, F16)
    i = make_inputs(shape, max(lengths), CPU, sets=2, seed=7, layout=layout)
    i.lengths = torch.tensor(lengths, dtype=torch.int32)
    theirs, s = vllm.Decode(i, functions), 1
    theirs.step(s)
    chosen, tokens = in_our_order(theirs.blocks[s]), row_lengths(i.lengths, queries)
    scores = paged_block_scores(i.index_q[s], i.index_k, i.tables[s], i.lengths, queries)
    fault = choice_fault(chosen, scores, tokens, shape.config, TOLERANCE[F16].score)
    want, _ = attend_blocks(i.q[s], i.k, i.v, chosen, i.tables[s], tokens, queries, i.q.shape[-1] ** -0.5)
    error = ((theirs.out.float() - want).norm() / want.norm()).item()
    return fault or (None if error <= TOLERANCE[F16].output else f"output error {error:.3g}")


def prefill_fault(functions: SimpleNamespace, case: PrefillCase, groups: int) -> str | None:
    i = Inputs.of(case, CPU, 7, groups, heads=16)
    half = {name: getattr(i, name).to(F16) for name in ("q", "index_q", "k", "v", "index_k")}
    i = dataclasses.replace(i, **half)
    theirs, s = vllm.Prefill(i, functions), 0
    theirs.select(s)
    theirs.attend(s)
    return fault_of(i, in_our_order(theirs.blocks), theirs.out, i.index_q)


def interpret(folder: Path) -> int:
    functions = vllm.load(folder, pdl=False)
    for tuner in functions.tuners:
        tuner.configs = tuner.configs[-1:]  # an autotuner times, and here is nothing to time: its smallest form
    bad = 0
    for lengths, queries, layout in DECODE:
        fault = decode_fault(functions, lengths, queries, layout)
        bad += fault is not None
        print(f"decode {lengths} tokens, {queries} rows, {layout}: {fault or 'ok'}", flush=True)
    for case, groups in PREFILL:
        fault = prefill_fault(functions, case, groups)
        bad += fault is not None
        print(f"prefill {case}: {fault or 'ok'}", flush=True)
    return bad


def compile_all(folder: Path) -> int:
    from triton.runtime.autotuner import Autotuner

    from engine.bench.compile_launches import only_compiling, print_forms

    functions, bad = vllm.load(folder), 0

    def launch_all(tuner: Autotuner) -> None:
        tuner.run = lambda *a, **k: [tuner.fn.run(*a, **k, **c.all_kwargs()) for c in tuner.configs]

    for tuner in functions.tuners:
        launch_all(tuner)
    with only_compiling() as made:
        for requests, tokens, fp8 in COMPILED_DECODE:
            keys = E4M3 if fp8 else BF16
            i = make_inputs(DecodeShape(requests, 4, 16, 1, tokens, BF16, keys, keys), tokens, CPU, sets=1)
            bad += not attempt(f"decode {requests}x{tokens}", vllm.Decode(i, functions))
        for case in COMPILED_PREFILL:
            bad += not attempt(f"prefill {case}", vllm.Prefill(Inputs.of(case, CPU, 0), functions))
    print_forms(made)
    return bad


def attempt(what: str, calls: vllm.Decode | vllm.Prefill) -> bool:
    try:
        for name in ("select", "attend", *calls.more):
            getattr(calls, name)(0)
    except Exception as error:
        print(f"{what}: {type(error).__name__}: {str(error)[-600:]}", flush=True)
        return False
    print(f"{what}: compiled", flush=True)
    return True


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--vllm", type=Path, required=True, help="folder that holds `vllm`: its unpacked wheel")
    parser.add_argument("--compile", action="store_true", help="compile for sm_90 instead of interpreting")
    args = parser.parse_args(arguments)
    if not args.compile:
        os.environ["TRITON_INTERPRET"] = "1"  # read when the kernels are imported
    try:
        return min(1, compile_all(args.vllm) if args.compile else interpret(args.vllm))
    except PeerUnavailableError as error:
        print(error, file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
