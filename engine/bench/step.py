"""`catalejo bench step`: how much of a layer's step is attention, and what that means for the whole model.

Agents' mix: every request has a 60,000-token prefix and 2,000 tokens of its own. Two kinds of step at concurrency 8 and 32:
all requests decode one token; and the same with a 2,000-token prefill chunk of one more request in between. Attention of
a sparse layer (choice and attention to it) is measured with our default kernels, with those of `--kernel`/`--select`, and
with SGLang's when given, for the heads one GPU holds. The rest of a layer is not measured but stated: the larger of

    weight bytes / bandwidth     weights that the step's tokens touch: projections, shared expert, and the expected
                                 number of different experts, 128 (1 - (1 - 4/128)^tokens), each sharded over the GPUs
    FLOP / matrix rate           2 x weights used per token

divided by `--efficiency`, plus two all-reduces of `--allreduce-us`. Then Amdahl: 57 sparse and 3 dense layers, the dense
ones' attention at the floor of its bytes or FLOP over the same efficiency."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from engine.bench.msa_inputs import DecodeInputs, make_inputs
from engine.bench.timing import time_graph
from engine.msa.extend import PrefillPlan
from engine.msa.layouts import DecodeShape, PageTable
from engine.msa.ops import plan_decode

BF16 = torch.bfloat16
PREFIX, OWN, CHUNK = 60_000, 2_000, 2_000


@dataclass(frozen=True)
class Model:
    """MiniMax-M3's decoder."""

    hidden: int = 6144
    heads: int = 64
    kv_heads: int = 4
    head_dim: int = 128
    index_heads: int = 4
    experts: int = 128
    experts_per_token: int = 4
    expert_width: int = 3072
    dense_width: int = 12288
    sparse_layers: int = 57
    dense_layers: int = 3

    @property
    def projections(self) -> int:
        """Weights of q, k, v, o and the indexer of one layer."""
        wide = self.heads * self.head_dim
        narrow = (2 * self.kv_heads + self.index_heads + 1) * self.head_dim
        return self.hidden * (2 * wide + narrow)

    @property
    def expert(self) -> int:
        return 3 * self.hidden * self.expert_width


@dataclass(frozen=True)
class Machine:
    """The stated inputs of the projection."""

    gpus: int = 8
    weight_bytes: float = 1.0
    bandwidth: float = 4.3e12
    rate: float = 790e12
    efficiency: float = 0.7
    allreduce_us: float = 15.0

    def us(self, weights: float, flop: float) -> float:
        floor = max(weights * self.weight_bytes / self.bandwidth, flop / self.rate)
        return floor / self.gpus / self.efficiency * 1e6

    def rest_us(self, model: Model, tokens: int, dense: bool = False) -> float:
        """Everything of a layer but its attention, for a step of `tokens` tokens."""
        if dense:
            mlp = used = 3.0 * model.hidden * model.dense_width
        else:
            touched = model.experts * (1 - (1 - model.experts_per_token / model.experts) ** tokens)
            mlp, used = (touched + 1) * model.expert, (model.experts_per_token + 1.0) * model.expert
        weights, per_token = model.projections + mlp, model.projections + used
        return self.us(weights, 2 * per_token * tokens) + 2 * self.allreduce_us

    def dense_attention_us(self, model: Model, decoding: int, chunk: int, length: int) -> float:
        """Dense attention over `length` tokens for decoding requests and one chunk: a KV head is on gpus / kv_heads GPUs."""
        per_gpu = max(1, model.kv_heads // self.gpus)
        moved = decoding * length * per_gpu * model.head_dim * 2 * 2
        flop = chunk * length * model.heads / self.gpus * 4 * model.head_dim
        return (moved / self.bandwidth + flop / self.rate) / self.efficiency * 1e6


@dataclass(frozen=True)
class Projection:
    """One step of the whole model with given attention of a sparse layer."""

    attention_us: float
    layer_us: float
    share: float
    step_ms: float


def project(model: Model, machine: Machine, attention_us: float, decoding: int, chunk: int, length: int) -> Projection:
    rest = machine.rest_us(model, decoding + chunk)
    dense = machine.rest_us(model, decoding + chunk, True) + machine.dense_attention_us(model, decoding, chunk, length)
    layer = attention_us + rest
    step = (model.sparse_layers * layer + model.dense_layers * dense) / 1000
    return Projection(attention_us, layer, attention_us / layer, step)


class Attention:
    """The attention of one sparse layer for a mix, on one GPU's heads."""

    def __init__(self, concurrency: int, groups: int, heads: int, device: torch.device, scale: int, dtype: Any) -> None:
        """`scale`: divides all token counts, for checks on a CPU."""
        self.tokens, self.chunk = (PREFIX + OWN) // scale, CHUNK // scale
        shape = DecodeShape(concurrency, groups, heads, 1, self.tokens, dtype, dtype, dtype)
        self.inputs: DecodeInputs = make_inputs(shape, self.tokens, device, sets=1, seed=concurrency)
        self.q = torch.randn(self.chunk, groups * heads, 128, device=device).to(dtype)
        self.index_q = torch.randn(self.chunk, groups, 128, device=device).to(dtype)
        self.device, self.dtype, self.groups, self.heads = device, dtype, groups, heads

    def decode(self) -> Any:
        i = self.inputs
        plan, out = plan_decode(i.shape, self.device), torch.empty_like(i.q[0])
        return lambda _: plan.decode(i.q[0], i.index_q[0], i.k, i.v, i.index_k, i.tables[0], i.lengths, out=out)

    def extend(self, kernel: str, select: str) -> Any:
        """The chunk ends where the decoding requests are; it uses the first one's pages."""
        i = self.inputs
        plan = PrefillPlan(
            [self.chunk], [self.tokens], groups=self.groups, heads=self.heads, device=self.device, query_dtype=self.dtype,
            kv_dtype=self.dtype, index_dtype=self.dtype, kernel=kernel, select=select,
        )  # fmt: skip
        table, out = PageTable(i.tables[0].table[:1]), torch.empty_like(self.q)
        return lambda _: plan.run(self.q, self.index_q, i.k, i.v, i.index_k, table, out=out)

    def theirs(self, peer: SimpleNamespace) -> tuple[float, float]:
        from engine.bench.msa_prefill import PrefillCase
        from engine.bench.peers.measure import measure_prefill
        from engine.bench.peers.sglang import Decode

        sglang = Decode(self.inputs, peer)
        sglang.select(0)
        case = PrefillCase(1, self.chunk, self.tokens)
        extend = measure_prefill("sglang", peer, case, self.device, 1, self.groups, self.heads)
        return time_graph(sglang.step, 1).us, extend["select"] + extend["attend"]


def report(
    model: Model, machine: Machine, concurrency: int, times: dict[str, tuple[float, float]]
) -> list[dict[str, Any]]:
    """times: name -> (decode us, chunk us) of one sparse layer. Rows for both kinds of step; the first name is the base."""
    rows = []
    for chunk in (0, CHUNK):
        base = None
        for name, (decode_us, chunk_us) in times.items():
            attention = decode_us + (chunk_us if chunk else 0.0)
            p = project(model, machine, attention, concurrency, chunk, PREFIX + OWN)
            base = base or p
            rows.append(
                {
                    "concurrency": concurrency,
                    "chunk": chunk,
                    "kernels": name,
                    **asdict(p),
                    "faster": base.step_ms / p.step_ms,
                }
            )
    return rows


def print_rows(rows: list[dict[str, Any]]) -> None:
    print("concurrency  chunk  kernels               attention us  layer us  share  60 layers ms  against the first")
    for r in rows:
        print(f"{r['concurrency']:11d} {r['chunk']:6d}  {r['kernels']:20s} {r['attention_us']:13.1f} {r['layer_us']:9.1f} "
              f"{r['share']:6.1%} {r['step_ms']:13.2f} {r['faster']:18.2f}", flush=True)  # fmt: skip


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="catalejo bench step", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--check", action="store_true", help="tiny sizes, on a CPU too; times nothing")
    parser.add_argument("--concurrency", default="8,32")
    parser.add_argument("--groups", type=int, default=1, help="KV heads on one GPU (8 GPUs: 1)")
    parser.add_argument("--heads", type=int, default=8, help="query heads per KV head on one GPU (8 GPUs: 8)")
    parser.add_argument("--kernel", default="block_major", help="also this attention kernel for the chunk")
    parser.add_argument("--select", default="fused", help="and this choice kernel")
    parser.add_argument("--sglang", type=Path, help="folder of the unpacked SGLang wheel")
    parser.add_argument("--json", type=Path)
    for name, value in asdict(Machine()).items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=type(value), default=value, help="stated input")
    args = parser.parse_args(arguments)
    model, machine = Model(), Machine(**{name: getattr(args, name) for name in asdict(Machine())})
    cuda = torch.cuda.is_available()
    if args.check:
        for concurrency in (2, 3):
            where = Attention(concurrency, 2, 2, torch.device("cpu"), 25, torch.float32)
            outs = where.decode()(0), where.extend("reference", "reference")(0)
            if not all(torch.isfinite(out).all() for out in outs):
                print(f"concurrency {concurrency}: an output is not finite")
                return 1
            print(f"check concurrency {concurrency}: decode {tuple(outs[0].shape)}, chunk {tuple(outs[1].shape)} ok")
        return 0
    if not cuda:
        print("no GPU here: use --check", file=sys.stderr)
        return 2
    peer = None
    if args.sglang:
        from engine.bench.peers.sglang import load

        peer = load(args.sglang)
    rows: list[dict[str, Any]] = []
    print(f"stated: {machine}")
    for concurrency in map(int, args.concurrency.split(",")):
        where = Attention(concurrency, args.groups, args.heads, torch.device("cuda"), 1, BF16)
        decode_us = time_graph(where.decode(), 1).us
        times = {}
        for name, kernel, select in (
            ("ours", "auto", "auto"),
            (f"{args.select}+{args.kernel}", args.kernel, args.select),
        ):
            times[name] = decode_us, time_graph(where.extend(kernel, select), 1, replays=7).us
        if peer is not None:
            times = {"sglang": where.theirs(peer), **times}
        rows += report(model, machine, concurrency, times)
        if args.json:
            args.json.write_text(
                json.dumps({"machine": asdict(machine), "model": asdict(model), "rows": rows}, indent=1)
            )
    print_rows(rows)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
