"""Prefill of block-sparse attention, measured: `catalejo bench msa --phase prefill`.

New tokens of one or several requests at the end of contexts from 8k to 1M: every choice and attention kernel of
dispatch.py that takes the work, SGLang's and vLLM's when given, dense attention. Attention is timed twice: with choices as random
index queries make them (neighbours choose independently: the union form's worst case) and with neighbours that choose
alike, as real text does. Floors: floor_us. Peers and dense run last, so that what is ours is on disk before their
compilation or autotuning can eat the time."""

from __future__ import annotations

import dataclasses
import re
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from engine.bench.timing import time_graph
from engine.msa import dispatch
from engine.msa.config import MsaConfig
from engine.msa.layouts import PageTable, PrefillBatch
from engine.msa.oracle_decode import attend_blocks, choice_fault, paged_block_scores
from engine.msa.tolerances import TOLERANCE

BF16 = torch.bfloat16
GROUPS, HEADS, DIM, SCALE, K = 4, 16, 128, 128**-0.5, 1024
BANDWIDTH, RATE = 4.3e12, 790e12
ALIKE = 64
"""Neighbouring queries that share an index query in the second input."""


@dataclasses.dataclass(frozen=True)
class PrefillCase:
    requests: int
    new: int
    length: int

    def __str__(self) -> str:
        return f"{self.requests}x{self.new}@{self.length}"


# First the table that has to be met, then the curve.
MUST_AIM = {
    PrefillCase(1, 8192, 128 * K): (5900, 3900), PrefillCase(1, 8192, 512 * K): (14_000, 9500),
    PrefillCase(1, 100, 60_100): (250, 90), PrefillCase(1, 100, 250_100): (600, 180),
    PrefillCase(1, 2000, 62_000): (1500, 900),
}  # fmt: skip
CASES = (
    PrefillCase(1, 8192, 128 * K), PrefillCase(1, 2000, 62_000), PrefillCase(1, 8192, 8192), PrefillCase(1, 100, 60_100),
    PrefillCase(8, 100, 60_100), PrefillCase(1, 8192, 512 * K), PrefillCase(1, 500, 60_500), PrefillCase(1, 100, 250_100),
    PrefillCase(1, 16, 60_016), PrefillCase(1, 8192, 32 * K), PrefillCase(1, 2048, 128 * K), PrefillCase(1, 16_384, 128 * K),
    PrefillCase(4, 2048, 32 * K), PrefillCase(16, 200, 8 * K), PrefillCase(1, 8192, 1024 * K),
)  # fmt: skip


def parse_cases(text: str) -> list[PrefillCase]:
    """`1x8192@131072,8x100@60100`: requests x new tokens @ length with them."""
    cases = []
    for part in text.split(","):
        found = re.fullmatch(r"(\d+)x(\d+)@(\d+)", part)
        if found is None:
            raise ValueError(f"{part!r} is not REQUESTSxNEW@LENGTH, as in 1x8192@131072")
        cases.append(PrefillCase(*map(int, found.groups())))
    return cases


def work(case: PrefillCase, block: int = 128, topk: int = 16, groups: int = GROUPS) -> dict[str, float]:
    """FLOP and bytes that the mathematics asks for.

    choice: every complete block before a query, 2 x 128 FLOP a (query, index head, key), where more than topk blocks
    exist; index keys read once. attention: the chosen blocks, 4 x 128 FLOP a (query head, key); q, out and each of the
    request's keys and values moved once."""
    first = case.length - case.new
    positions = torch.arange(first, case.length, dtype=torch.float64)
    own = positions // block
    scored = torch.where(own >= topk, own, 0.0).sum().item() * block
    seen = (torch.clamp(own, max=topk - 1) * block + positions % block + 1).sum().item()
    kept = min(case.length, case.new * groups * topk * block)  # tokens anybody can have chosen
    return {
        "select_flop": case.requests * scored * groups * 2 * DIM,
        "select_bytes": case.requests * case.length * DIM * 2.0,
        "attend_flop": case.requests * seen * groups * HEADS * 4 * DIM,
        "attend_bytes": case.requests * (case.new * groups * HEADS * DIM * 2.0 * 2 + kept * groups * DIM * 2 * 2),
    }


def floor_us(case: PrefillCase) -> tuple[float, float]:
    """Least microseconds of choice and attention: the larger of FLOP / 790 TFLOP/s and bytes / 4.3 TB/s."""
    w = work(case)
    select, attend = (max(w[f"{p}_flop"] / RATE, w[f"{p}_bytes"] / BANDWIDTH) * 1e6 for p in ("select", "attend"))
    return select, attend


@dataclasses.dataclass
class Inputs:
    case: PrefillCase
    k: Tensor
    v: Tensor
    index_k: Tensor
    tables: list[PageTable]
    q: Tensor
    index_q: Tensor
    groups: int
    heads: int

    @classmethod
    def of(cls, case: PrefillCase, device: torch.device, seed: int, groups: int = GROUPS, heads: int = HEADS) -> Inputs:
        torch.manual_seed(seed)
        per = -(-case.length // 128)
        sets = max(1, min(3, (1 << 30) // (case.requests * per * 128 * groups * DIM * 4)))
        pages = sets * case.requests * per
        k, v = (torch.randn(pages, 128, groups, DIM, device=device, dtype=BF16) for _ in "kv")
        index_k = torch.randn(pages, 128, DIM, device=device, dtype=BF16)
        order = torch.randperm(pages, device=device, dtype=torch.int32).view(sets, case.requests, per)
        rows = case.requests * case.new
        q = torch.randn(rows, groups * heads, DIM, device=device, dtype=BF16)
        index_q = torch.randn(rows, groups, DIM, device=device, dtype=BF16)
        return cls(case, k, v, index_k, [PageTable(t.contiguous()) for t in order], q, index_q, groups, heads)

    @property
    def batch(self) -> PrefillBatch:
        case = self.case
        return PrefillBatch((case.new,) * case.requests, (case.length,) * case.requests, self.groups, self.heads)

    def alike(self) -> Tensor:
        """Index queries of which ALIKE neighbours are one and the same, up to a tenth of noise."""
        rows = len(self.index_q)
        centre = self.index_q[torch.arange(rows, device=self.q.device) // ALIKE * ALIKE]
        return (centre.float() + 0.1 * torch.randn_like(centre.float())).to(BF16)


def fault_of(i: Inputs, blocks: Tensor, out: Tensor, index_q: Tensor) -> str | None:
    """Against the fp32 oracle: the first, middle and last 32 rows of the first and the last request."""
    case, count = i.case, min(32, i.case.new)
    pages = i.tables[0].pages(case.requests)
    for request in {0, case.requests - 1}:
        for at in {0, (case.new - count) // 2, case.new - count}:
            rows = slice(request * case.new + at, request * case.new + at + count)
            one = PageTable(pages[request : request + 1])
            end = case.length - case.new + at + count
            sees = torch.arange(end - count + 1, end + 1, device=out.device)
            scores = paged_block_scores(index_q[rows], i.index_k, one, torch.tensor([end], device=out.device), count)
            fault = choice_fault(blocks[rows], scores, sees, MsaConfig(), TOLERANCE[BF16].score)
            if fault:
                return f"request {request} rows from {at}: {fault}"
            table = PageTable(pages[request : request + 1].expand(count, -1))
            want, _ = attend_blocks(i.q[rows], i.k, i.v, blocks[rows], table, sees, 1, SCALE)
            error = ((out[rows].float() - want).norm() / want.norm()).item()
            if not error <= TOLERANCE[BF16].output:
                return f"request {request} rows from {at}: output error {error:.3g}"
    return None


def attend_variants(i: Inputs, names: list[str], sweep: bool) -> dict[str, Callable[[], Any]]:
    """Name -> maker of a runner with `attend`."""
    batch = i.batch
    found: dict[str, Callable[[], Any]] = {}
    for name in names:
        refusal = dispatch.PREFILL[name].refuse(batch, i.q.device)
        if refusal:
            print(f"  {name}: {refusal}", file=sys.stderr)
            continue
        found[name] = lambda name=name: dispatch.PREFILL[name].make(batch, i.q.device)
        if sweep and name == "block_major":
            from engine.msa.kernels import triton_block_major as bm

            for m, per, warps, stages in ((64, 64, 4, 2), (64, 32, 4, 1), (128, 64, 8, 1), (32, 64, 4, 1)):
                t = bm.Tuning(m=m, per=per, warps=warps, stages=stages)
                found[f"{name}_m{m}_per{per}_w{warps}_s{stages}"] = lambda t=t: bm.BlockMajorRunner(
                    batch, i.q.device, t
                )
        if sweep and name == "union":
            from engine.msa.kernels import triton_union as un

            for stages in (2, 5):
                u = un.Tuning(stages=stages)
                found[f"{name}_s{stages}"] = lambda u=u: un.UnionRunner(batch, i.q.device, u)
    return found


def select_variants(i: Inputs, names: list[str], sweep: bool) -> dict[str, Callable[[], Any]]:
    """Name -> maker of a selector with `run`."""
    batch = i.batch
    found: dict[str, Callable[[], Any]] = {
        name: lambda name=name: dispatch.SELECT[name].make(batch, i.q.device) for name in names
    }
    if sweep and "fused" in names:
        from engine.msa.kernels import triton_prefill_select as ps

        for m, warps, stages in ((256, 8, 5), (256, 16, 5), (128, 4, 3), (64, 4, 3)):
            t = ps.Tuning(m=m, warps=warps, stages=stages)
            found[f"fused_m{m}_w{warps}_s{stages}"] = lambda t=t: ps.FusedSelect(batch, i.q.device, t)
    return found


def union_factor(blocks: Tensor) -> float:
    """Mean blocks in the union of 8 neighbours' choices, over a query's own number of blocks."""
    rows = blocks.shape[0] // 8 * 8
    if not rows:
        return float("nan")
    grouped = blocks[:rows].unflatten(0, (-1, 8)).transpose(1, 2).flatten(2).sort(-1).values  # [tiles, G, 8 K]
    fresh = (grouped >= 0) & (grouped != torch.nn.functional.pad(grouped[..., :-1], (1, 0), value=-2))
    return (fresh.sum(-1).float().mean() / (blocks[:rows] >= 0).sum(-1).float().mean()).item()


def measure(
    case: PrefillCase, device: torch.device, attends: list[str], selects: list[str], sweep: bool, seed: int,
    report: Callable[[dict[str, Any]], None],
) -> dict[str, Any]:  # fmt: skip
    """Microseconds per layer of every variant; `report` is called with the row so far after each of them."""
    i = Inputs.of(case, device, seed)
    floor_select, floor_attend = floor_us(case)
    default = dispatch.choose(i.batch, device, phase="prefill").kernel
    attends = list(dict.fromkeys([default, *attends]))
    row: dict[str, Any] = {
        "case": str(case), **dataclasses.asdict(case), **work(case), "floor_select": floor_select,
        "floor_attend": floor_attend, "default": f"{dispatch.choose(i.batch, device, phase='select').kernel}+{default}",
        "select": {}, "attend": {}, "attend_alike": {}, "fault": {},
    }  # fmt: skip
    if case in MUST_AIM:
        row["must"], row["aim"] = MUST_AIM[case]
    replays, sets = 5 if case.new > 1000 else 11, len(i.tables)
    out = torch.empty_like(i.q)
    blocks = torch.full((len(i.q), GROUPS, 16), -7, dtype=torch.int32, device=device)
    good: Tensor | None = None

    def attempt(kind: str, name: str, call: Callable[[], None]) -> None:
        try:
            call()
        except Exception as error:
            row["fault"][f"{kind} {name}"] = f"{type(error).__name__}: {str(error)[:200]}"
        report(row)

    for name, make in select_variants(i, selects, sweep).items():

        def one(name: str = name, make: Callable[[], Any] = make) -> None:
            nonlocal good
            selector = make()
            blocks.fill_(-7)
            selector.run(i.index_q, i.index_k, i.tables[0], blocks)
            if good is None:
                good = blocks.clone()
            row["select"][name] = time_graph(
                lambda s: selector.run(i.index_q, i.index_k, i.tables[s], blocks), sets, replays=replays
            ).us
            selector.run(i.index_q, i.index_k, i.tables[0], blocks)
            differing = (blocks != good).any(-1).float().mean().item()
            if differing > 1e-3:  # near ties may be ranked otherwise, here and there
                row["fault"][f"select {name}"] = f"{differing:.2%} of the choices are not {next(iter(row['select']))}'s"

        attempt("select", name, one)
    if good is None:
        return row
    near = torch.empty_like(blocks)
    alike_q = i.alike()
    next(iter(select_variants(i, selects, False).values()))().run(alike_q, i.index_k, i.tables[0], near)
    row["union"], row["union_alike"] = union_factor(good), union_factor(near)
    for name, make in attend_variants(i, attends, sweep).items():

        def two(name: str = name, make: Callable[[], Any] = make) -> None:
            runner = make()
            for what, chosen, index_q in (("attend", good, i.index_q), ("attend_alike", near, alike_q)):
                out.fill_(float("nan"))
                runner.attend(i.q, i.k, i.v, chosen, i.tables[0], out, scale=SCALE)
                fault = fault_of(i, chosen, out, index_q)
                if fault:
                    row["fault"][f"{what} {name}"] = fault
                row[what][name] = time_graph(
                    lambda s, chosen=chosen: runner.attend(i.q, i.k, i.v, chosen, i.tables[s], out, scale=SCALE),
                    sets,
                    replays=replays,
                ).us

        attempt("attend", name, two)
        torch.cuda.empty_cache()
    row["best_us"] = min(row["select"].values()) + min(row["attend"].values(), default=float("inf"))
    report(row)
    return row


def measure_dense(case: PrefillCase, device: torch.device) -> dict[str, float]:
    """Dense attention of one request's chunk: flash with the causal mask at the lower right, cuDNN causal for a first
    chunk, else without a mask over all keys (new / (2 length) more work than with one)."""
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.nn.attention.bias import causal_lower_right

    shape = (case.requests, GROUPS * HEADS, case.new, DIM)
    q = torch.randn(*shape, device=device, dtype=BF16)
    k, v = (torch.randn(case.requests, GROUPS * HEADS, case.length, DIM, device=device, dtype=BF16) for _ in "kv")
    attention = torch.nn.functional.scaled_dot_product_attention
    causal = case.new == case.length
    calls = {
        "flash": (SDPBackend.FLASH_ATTENTION, lambda s: attention(q, k, v, attn_mask=causal_lower_right(case.new, case.length))),
        "cudnn": (SDPBackend.CUDNN_ATTENTION, lambda s: attention(q, k, v, is_causal=causal)),
    }  # fmt: skip
    found = {}
    for name, (backend, call) in calls.items():
        try:
            with sdpa_kernel(backend):
                found[name] = time_graph(call, 1, replays=3).us
        except RuntimeError as error:
            sys.stderr.write(f"dense {name} {case}: {str(error)[:200]}\n")
    return found


def print_row(row: dict[str, Any]) -> None:
    print(f"prefill {row['case']:16s} floor {row['floor_select']:.0f} + {row['floor_attend']:.0f} us"
          f"  ({row['select_flop'] / 1e9:.0f} + {row['attend_flop'] / 1e9:.0f} GFLOP,"
          f" {row['select_bytes'] / 1e6:.0f} + {row['attend_bytes'] / 1e6:.0f} MB)"
          f"  default {row['default']}  must/aim {row.get('must', '-')}/{row.get('aim', '-')}")  # fmt: skip
    for name, us in row["select"].items():
        print(f"    select {name:24s} {us:9.1f}")
    for name, us in row["attend"].items():
        print(f"    attend {name:24s} {us:9.1f}   neighbours alike {row['attend_alike'].get(name, float('nan')):9.1f}")
    if "union" in row:
        print(f"    union of 8 neighbours / own: {row['union']:.2f}, alike {row['union_alike']:.2f}")
    for peer in ("sglang", "vllm", "dense"):
        if row.get(peer):
            print(f"    {peer} " + "  ".join(f"{k}={v:.5g}" for k, v in row[peer].items()))
    for what, fault in row["fault"].items():
        print(f"    FAULT {what}: {fault}")
    sys.stdout.flush()
