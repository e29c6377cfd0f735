"""`catalejo bench msa`: decode of block-sparse attention, measured beside what it competes with.

Per shape, microseconds per layer from CUDA graphs over inputs rotated past the L2 (timing.py), after a correctness check
on fresh inputs with poisoned outputs:
  floor   bytes / 4.3 TB/s       read   a streaming read of the same index-key pages, same loads, nothing kept
  score, attend, step            ours (step: both in one graph, the second overlapping the first)
  sglang, vllm                   theirs, when `--sglang FOLDER`, `--vllm FOLDER` hold their unpacked wheels (peers/)
  dense                          ordinary attention over all keys: the better of torch's flash and cuDNN
`--check` runs everything that needs no GPU and times nothing. `--sweep` tries the launch numbers."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from engine.bench import msa_prefill
from engine.bench.msa_check import HALF, LARGE, SMALL, check_decode
from engine.bench.msa_inputs import DecodeInputs, make_inputs
from engine.bench.peers.measure import load_peers, measure_decode, measure_prefill
from engine.bench.prefill_check import FULL_CASES, TINY_CASES, check_all
from engine.bench.timing import time_graph
from engine.msa import dispatch
from engine.msa.config import MsaConfig
from engine.msa.kernels.sm90 import Sm90Runner, Tuning, choose
from engine.msa.layouts import DecodeShape
from engine.msa.oracle_decode import attend_blocks, choice_fault, paged_block_scores, row_lengths
from engine.msa.tolerances import TOLERANCE

BANDWIDTH = 4.3e12
SCALE = 128**-0.5
K = 1024
BF16, E4M3 = torch.bfloat16, torch.float8_e4m3fn

# (requests, tokens, fp8): the must-reach table first, then the curve.
TARGETS = ((1, 128 * K, 0), (8, 32 * K, 0), (32, 32 * K, 0), (8, 128 * K, 1), (32, 128 * K, 0), (1, 1024 * K, 0))
CURVE = (
    (1, 32 * K, 0),
    (8, 128 * K, 0),
    (1, 512 * K, 0),
    (1, 128 * K, 1),
    (32, 128 * K, 1),
    (8, 512 * K, 0),
    (128, 32 * K, 0),
)
DENSE = ((1, 32 * K), (1, 128 * K), (1, 512 * K), (1, 1024 * K), (8, 32 * K), (8, 128 * K), (32, 32 * K))
MUST_AIM = {(1, 128 * K, 0): (17, 12), (8, 32 * K, 0): (32, 26), (32, 32 * K, 0): (105, 98), (8, 128 * K, 1): (48, 40),
            (32, 128 * K, 0): (288, 282), (1, 1024 * K, 0): (76, 70)}  # fmt: skip


def shape_of(requests: int, tokens: int, fp8: int, groups: int = 4) -> DecodeShape:
    dtype = E4M3 if fp8 else BF16
    return DecodeShape(requests, groups, 16, 1, tokens, BF16, dtype, dtype)


class Ours:
    """One input set collection bound to a runner: calls by set number, for time_graph."""

    def __init__(self, inputs: DecodeInputs, tuning: Tuning | None = None, kernel: str = "sm90") -> None:
        self.i = inputs
        device = inputs.q.device
        own = kernel == "sm90"
        self.runner: Any = (
            Sm90Runner(inputs.shape, device, tuning) if own else dispatch.make(inputs.shape, device, kernel)[1]
        )
        self.nothing = torch.ones_like(inputs.lengths)
        shape = (inputs.shape.rows, inputs.shape.groups, inputs.shape.config.topk_blocks)
        self.blocks = [torch.full(shape, -7, dtype=torch.int32, device=inputs.q.device) for _ in range(inputs.sets)]
        self.out = torch.full_like(inputs.q[0], float("nan"))
        self.lse = torch.full(self.out.shape[:2], float("nan"), device=inputs.q.device)

    def read(self, s: int) -> None:
        self.runner.read(self.i.index_k, self.i.tables[s], self.i.lengths)

    def empty(self, s: int) -> None:
        """A kernel with nothing to do: what a graph node costs here."""
        self.runner.read(self.i.index_k, self.i.tables[s], self.nothing)

    def one_token(self, s: int) -> None:
        """The attention kernel with one token to attend to: its latency without work."""
        i = self.i
        self.runner.attend(i.q[s], i.k, i.v, self.blocks[s], i.tables[s], self.nothing, self.out, scale=SCALE)

    def score(self, s: int) -> None:
        self.runner.score(self.i.index_q[s], self.i.index_k, self.i.tables[s], self.i.lengths)

    def select(self, s: int) -> None:
        self.runner.select(self.i.index_q[s], self.i.index_k, self.i.tables[s], self.i.lengths, self.blocks[s])

    def attend(self, s: int) -> None:
        i = self.i
        self.runner.attend(i.q[s], i.k, i.v, self.blocks[s], i.tables[s], i.lengths, self.out, scale=SCALE)

    def step(self, s: int, blocks: torch.Tensor | None = None, lse: torch.Tensor | None = None) -> None:
        i = self.i
        self.runner.decode(
            i.q[s],
            i.index_q[s],
            i.k,
            i.v,
            i.index_k,
            i.tables[s],
            i.lengths,
            self.out,
            scale=SCALE,
            blocks=blocks,
            lse=lse,
        )

    def fault(self) -> str | None:
        """Checks the whole step on the last input set."""
        i, s = self.i, self.i.sets - 1
        self.out.fill_(float("nan"))
        self.lse.fill_(float("nan"))
        self.blocks[s].fill_(-7)
        self.step(s, self.blocks[s], self.lse)
        tokens = row_lengths(i.lengths, i.shape.queries)
        scores = paged_block_scores(i.index_q[s], i.index_k, i.tables[s], i.lengths, i.shape.queries)
        fault = choice_fault(self.blocks[s], scores, tokens, i.shape.config, TOLERANCE[i.shape.index_dtype].score)
        want, want_lse = attend_blocks(i.q[s], i.k, i.v, self.blocks[s], i.tables[s], tokens, i.shape.queries, SCALE)
        error = ((self.out.float() - want).norm() / want.norm()).item()
        tolerance = TOLERANCE[i.shape.query_dtype]
        if fault or not error <= tolerance.output or not (self.lse - want_lse).abs().max() <= tolerance.lse:
            return f"{fault or 'choice right'}; output error {error:.3g}; lse {(self.lse - want_lse).abs().max():.3g}"
        return None


def dense_us(requests: int, tokens: int, device: torch.device, groups: int = 4, heads: int = 16) -> dict[str, float]:
    """Dense GQA decode: the 16 heads of a group as 16 query rows against its keys, so that K and V are read once."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    per_set = requests * tokens * groups * 128 * 2 * 2
    sets = max(1, min(4, -(-(240 << 20) // per_set)))
    q = torch.randn(sets, requests, groups, heads, 128, device=device, dtype=BF16)
    k, v = (torch.randn(sets, requests, groups, tokens, 128, device=device, dtype=BF16) for _ in range(2))
    found = {}
    for name, backend in (("flash", SDPBackend.FLASH_ATTENTION), ("cudnn", SDPBackend.CUDNN_ATTENTION)):
        try:
            with sdpa_kernel(backend):
                call = lambda s: torch.nn.functional.scaled_dot_product_attention(q[s], k[s], v[s])  # noqa: E731
                found[name] = time_graph(call, sets, replays=7).us
        except RuntimeError as error:
            sys.stderr.write(f"dense {name}: {str(error)[:200]}\n")
    return found


def tunings(shape: DecodeShape, sms: int) -> tuple[list[Tuning], list[Tuning]]:
    """Launch numbers worth trying: for the scores, for the attention."""
    base = choose(shape, sms)
    score = [dataclasses.replace(base, score_ctas=c * sms) for c in (1,)]
    units = shape.rows * shape.groups
    attend = [
        dataclasses.replace(base, depth=d, cluster=c)
        for d in (2, 3)
        for c in (1, 2, 4, 8, 16)
        if sms // 4 <= units * c <= 4 * sms
    ]
    return score, attend


def measure(
    case: tuple[int, int, int], device: torch.device, args: argparse.Namespace, peers: dict[str, SimpleNamespace]
) -> dict[str, Any]:
    requests, tokens, fp8 = case
    began = time.time()
    inputs = make_inputs(shape_of(*case), tokens, device, seed=int(time.time()) & 0xFFFF, layout=args.layout)
    ours = Ours(inputs)
    row: dict[str, Any] = {"requests": requests, "tokens": tokens, "fp8": bool(fp8), "sets": inputs.sets}
    row["fault"] = ours.fault()
    row["floor"] = (inputs.index_bytes + inputs.attend_bytes) / BANDWIDTH * 1e6
    row["tuning"] = dataclasses.asdict(ours.runner.tuning)
    for s in range(inputs.sets):
        ours.select(s)
    repeats = max(1, 16 // inputs.sets)
    for name in ("empty", "read", "one_token"):
        row[name] = time_graph(getattr(ours, name), inputs.sets, repeats=repeats).us
    for name in ("score", "select", "attend", "step"):
        timing = time_graph(getattr(ours, name), inputs.sets, repeats=repeats)
        row[name], row[f"{name}_spread"] = timing.us, timing.spread_us
    row["score_tbs"] = inputs.index_bytes / row["score"] / 1e6
    row["attend_tbs"] = inputs.attend_bytes / row["attend"] / 1e6
    for early in (0, 2):
        other = Ours(inputs, dataclasses.replace(ours.runner.tuning, early=early))
        row[f"step_early{early}"] = time_graph(other.step, inputs.sets, repeats=repeats).us
    if args.sweep:
        row["sweep"] = sweep(inputs, repeats)
    if args.triton:
        other = Ours(inputs, kernel="triton")
        row["triton_fault"] = other.fault()
        row["triton_step"] = time_graph(other.step, inputs.sets, repeats=repeats).us
    row["peer_fault"] = {}
    for name, functions in peers.items():
        try:
            measure_decode(name, functions, ours, repeats, row)
        except Exception as error:
            row["peer_fault"][name] = f"{type(error).__name__}: {str(error)[:300]}"
    if case in MUST_AIM:
        row["must"], row["aim"] = MUST_AIM[case]
    row["wall_s"] = time.time() - began
    return row


def sweep(inputs: DecodeInputs, repeats: int) -> list[dict[str, Any]]:
    """Every tuning worth trying: scores alone, attention alone, then whole steps of the best of both, PDL on and off."""
    sms = torch.cuda.get_device_properties(inputs.q.device).multi_processor_count
    score_tunings, attend_tunings = tunings(inputs.shape, sms)
    found: list[dict[str, Any]] = []

    def tried(what: str, tuning: Tuning) -> float:
        try:
            ours = Ours(inputs, tuning)
            for s in range(inputs.sets):
                ours.select(s)
            torch.cuda.synchronize()
            us = time_graph(getattr(ours, what), inputs.sets, replays=9, repeats=repeats).us
        except RuntimeError as error:
            sys.stderr.write(f"{what} {tuning}: {str(error)[:150]}\n")
            return float("inf")
        found.append({"what": what, **dataclasses.asdict(tuning), "us": us})
        return us

    scores = sorted(((tried("score", t), i) for i, t in enumerate(score_tunings)))
    attends = sorted(((tried("attend", t), i) for i, t in enumerate(attend_tunings)))
    for _, s in scores:
        for _, a in attends[:3]:
            t, u = score_tunings[s], attend_tunings[a]
            tried("step", dataclasses.replace(t, depth=u.depth, cluster=u.cluster))
    t, u = score_tunings[scores[0][1]], attend_tunings[attends[0][1]]
    tried("step", dataclasses.replace(t, depth=u.depth, cluster=u.cluster, pdl=False))
    return found


def print_row(row: dict[str, Any]) -> None:
    keys = (
        "floor",
        "empty",
        "read",
        "one_token",
        "score",
        "select",
        "attend",
        "step",
        "step_early0",
        "step_early2",
        "triton_step",
        "sglang_select",
        "sglang_attend",
        "sglang_step",
        "sglang_ratio",
        "vllm_select",
        "vllm_select_q8",
        "vllm_attend",
        "vllm_step",
        "vllm_ratio",
        "vllm_same_choice",
        "vllm_gap",
        "must",
        "aim",
    )
    numbers = "  ".join(
        f"{k}={row[k]:{'.1e' if k.endswith('gap') else '.2f'}}" if isinstance(row[k], float) else f"{k}={row[k]}"
        for k in keys
        if k in row
    )
    name = f"B={row['requests']} L={row['tokens'] // K}k {'fp8' if row['fp8'] else 'bf16'}"
    print(f"{name:18s} {numbers}" + (f"  FAULT {row['fault']}" if row["fault"] else "  ok"), flush=True)
    for peer, fault in row.get("peer_fault", {}).items():
        print(f"    FAULT {peer}: {fault}", flush=True)
    for s in row.get("sweep", ()):
        print(f"    {s['what']:7s} ctas={s['score_ctas']:4d} depth={s['depth']} "
              f"cluster={s['cluster']:2d} pdl={int(s['pdl'])}  {s['us']:.2f}", flush=True)  # fmt: skip


def check(device: torch.device, cases: Any, only: str = "") -> int:
    """Correctness of every kernel that takes a case; the number of faults."""
    bad = 0
    for case in cases:
        for name, kernel in dispatch.KERNELS.items():
            if only and name not in only.split(","):
                continue
            refusal = kernel.refuse(case.shape(), device)
            if refusal:
                if only:
                    print(f"check {name:9s} {case.name:24s} skipped: {refusal}", flush=True)
                continue
            try:
                faults = check_decode(
                    case, device, lambda s, k=kernel: k.make(s, device), seed=int(time.time()) & 0xFFFF
                )
            except Exception as error:
                faults = [f"{type(error).__name__}: {str(error)[:300]}"]
            bad += bool(faults)
            print(f"check {name:9s} {case.name:24s} {'; '.join(faults) or 'ok'}", flush=True)
    return bad


def parse_cases(text: str) -> list[tuple[int, int, int]]:
    """`1x131072,8x32768fp8` -> [(1, 131072, 0), (8, 32768, 1)]"""
    cases = []
    for part in text.split(","):
        requests, _, tokens = part.removesuffix("fp8").partition("x")
        cases.append((int(requests), int(tokens), int(part.endswith("fp8"))))
    return cases


def prefill(
    device: torch.device,
    args: argparse.Namespace,
    peers: dict[str, SimpleNamespace],
    rows: list[dict[str, Any]],
    save: Callable[[], None],
) -> int:
    """Ours for every case first, then peers and dense attention; the number of rows with a fault."""
    cases = msa_prefill.parse_cases(args.cases) if args.cases else list(msa_prefill.CASES)
    seed = int(time.time()) & 0xFFFF

    def keep(row: dict[str, Any]) -> None:
        rows[:] = [r for r in rows if r["case"] != row["case"]] + [row]
        save()

    for case in cases:
        attends, selects = args.attend.split(","), args.select.split(",")
        msa_prefill.print_row(msa_prefill.measure(case, device, attends, selects, args.sweep, seed, keep))
        torch.cuda.empty_cache()
    for row, case in zip(rows, cases, strict=True):
        if args.dense and case.length <= 512 * K:
            row["dense"] = msa_prefill.measure_dense(case, device)
        for name, functions in peers.items():
            try:
                found = row[name] = measure_prefill(name, functions, case, device, seed)
                if "fault" in found:
                    row["fault"][name] = found.pop("fault")
                if "best_us" in row:
                    found["ratio"] = (found["select"] + found["attend"]) / row["best_us"]
            except Exception as error:
                row["fault"][name] = f"{type(error).__name__}: {str(error)[:300]}"
            torch.cuda.empty_cache()
        if args.dense or peers:
            msa_prefill.print_row(row)
            save()
        torch.cuda.empty_cache()
    return sum(bool(row["fault"]) for row in rows)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="catalejo bench msa", description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--check", action="store_true", help="correctness only; without a GPU, the emulated kernels")
    parser.add_argument("--sweep", action="store_true", help="try launch numbers")
    parser.add_argument(
        "--cases",
        help="decode: 1x131072,8x32768fp8; prefill, requests x new @ length: 1x8192@131072; with --check: names; default: all",
    )
    parser.add_argument("--no-check", action="store_true", help="skip the ugly cases")
    parser.add_argument("--layout", choices=("nhd", "hnd"), default="nhd", help="keys and values by token or by head")
    parser.add_argument("--kernels", default="", help="check only these, by name")
    parser.add_argument("--phase", choices=("decode", "prefill"), default="decode")
    parser.add_argument("--attend", default="sm90,block_major,union", help="prefill: attention kernels, by name")
    parser.add_argument("--select", default="split,fused", help="prefill: choice kernels, by name")
    parser.add_argument("--triton", action="store_true", help="also our Triton kernels")
    parser.add_argument("--sglang", type=Path, help="folder of the unpacked SGLang wheel")
    parser.add_argument("--vllm", type=Path, help="folder that holds `vllm`: its unpacked wheel, or site-packages")
    parser.add_argument("--dense", action="store_true", help="also time dense attention, 32k to 1M")
    parser.add_argument("--json", type=Path, help="write everything measured here")
    args = parser.parse_args(arguments)
    cuda = torch.cuda.is_available()
    if args.check or not cuda:
        if not cuda:
            os.environ.setdefault("TRITON_INTERPRET", "1")  # read when the kernels are imported
        if not args.check:
            print("no GPU here: use --check", file=sys.stderr)
            return 2
        device = torch.device("cuda" if cuda else "cpu")
        names = args.cases.split(",") if args.cases else None
        if args.phase == "prefill":
            cases = [c for c in (FULL_CASES if cuda else TINY_CASES) if names is None or c.name in names]
            return min(1, check_all(device, cases, int(time.time()) & 0xFFFF))
        ugly = [c for c in (LARGE if cuda else (*SMALL, *HALF)) if names is None or c.name in names]
        return min(1, check(device, ugly, args.kernels))
    device = torch.device("cuda")
    props = torch.cuda.get_device_properties(device)
    print(f"{props.name}, {props.multi_processor_count} SMs, torch {torch.__version__}", flush=True)
    decode = args.phase == "decode"
    bad = 0
    if not args.no_check:
        bad = check(device, LARGE, args.kernels) if decode else check_all(device, FULL_CASES, int(time.time()) & 0xFFFF)
    peers, lost = load_peers(args)
    bad += len(lost)
    rows: list[dict[str, Any]] = []
    report = {"device": props.name, "torch": torch.__version__, "config": dataclasses.asdict(MsaConfig()), "rows": rows}

    def save() -> None:
        if args.json:
            args.json.write_text(json.dumps(report, indent=1))

    if not decode:
        return min(1, bad + prefill(device, args, peers, rows, save))
    for case in parse_cases(args.cases) if args.cases else (*TARGETS, *CURVE):
        rows.append(measure(case, device, args, peers))
        print_row(rows[-1])
        torch.cuda.empty_cache()
        save()
    if args.dense:
        report["dense"] = []
        for requests, tokens in DENSE:
            found = dense_us(requests, tokens, device)
            report["dense"].append({"requests": requests, "tokens": tokens, **found})
            print(f"dense B={requests} L={tokens // K}k {found}", flush=True)
            torch.cuda.empty_cache()
            save()
    return min(1, bad + sum(bool(r["fault"] or r["peer_fault"]) for r in rows))


if __name__ == "__main__":
    raise SystemExit(main())
