"""Correctness of the prefill kernels on ugly batches: ragged requests, first chunks, NaN behind the last token and in free
pages, unused table entries, all dtypes and layouts; and what must be equal whatever the batch: chunks against one pass,
prefill against decode, any placing of the pages. Inputs are fresh, outputs poisoned."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from engine.msa import dispatch
from engine.msa.config import MsaConfig
from engine.msa.extend import PrefillPlan
from engine.msa.layouts import DecodeShape, PageTable, PrefillBatch
from engine.msa.oracle_decode import attend_blocks, choice_fault, paged_block_scores
from engine.msa.tolerances import TOLERANCE

BF16, F16, E4M3 = torch.bfloat16, torch.float16, torch.float8_e4m3fn
TINY = MsaConfig(16, 4)


@dataclass(frozen=True)
class PrefillCase:
    name: str
    new: tuple[int, ...]
    lengths: tuple[int, ...]
    groups: int = 4
    heads: int = 16
    dim: int = 128
    dtype: torch.dtype = BF16
    kv_dtype: torch.dtype | None = None
    index_dtype: torch.dtype | None = None
    config: MsaConfig = field(default_factory=MsaConfig)
    layout: str = "slots"  # or "interleaved"
    table: str = "pages"  # or "tokens"
    ties: bool = False

    def batch(self) -> PrefillBatch:
        return PrefillBatch(
            self.new, self.lengths, self.groups, self.heads, self.dtype, self.kv_dtype or self.dtype,
            self.index_dtype or self.dtype, self.dim, self.config,
        )  # fmt: skip


def _tiny(
    name: str, new: tuple[int, ...], lengths: tuple[int, ...], groups: int = 2, heads: int = 2, **more: object
) -> PrefillCase:
    return PrefillCase(name, new, lengths, groups, heads, 16, F16, **{"config": TINY, **more})  # type: ignore[arg-type]


# Small blocks, for the interpreter on a CPU: fp16, the type it multiplies rightly.
TINY_CASES = (
    _tiny("first_chunk", (21,), (21,)),
    _tiny("one_row", (1,), (130,)),
    _tiny("behind_a_prefix", (5,), (151,), groups=4, heads=3),
    _tiny("ragged", (1, 12, 4), (1, 130, 64), groups=1),
    _tiny("block_borders", (8, 9, 7), (96, 97, 95), groups=1, heads=4),
    _tiny("forced", (9,), (150,), config=MsaConfig(16, 6, 2, 2)),
    _tiny("k_not_a_power_of_two", (10, 3), (130, 40), groups=1, config=MsaConfig(16, 5)),
    _tiny("ties", (9,), (140,), ties=True),
    _tiny("tokens_interleaved", (10, 3), (130, 77), groups=1, table="tokens", layout="interleaved"),
    _tiny("one_head", (9,), (120,), groups=1, heads=1),
)
# The model's sizes, for a GPU.
FULL_CASES = (
    PrefillCase("first_chunk", (3000,), (3000,)),
    PrefillCase("chunk", (1500,), (20_000,)),
    PrefillCase("agents", (100, 7, 333, 1), (9000, 2500, 5000, 4097)),
    PrefillCase("one_group", (700,), (9000,), groups=1),
    PrefillCase("gqa8", (300, 40), (6000, 100), groups=2, heads=8),
    PrefillCase("fp16", (300,), (6000,), dtype=F16),
    PrefillCase("fp8", (300, 50), (6000, 3000), kv_dtype=E4M3, index_dtype=E4M3),
    PrefillCase("fp8_fp16_query", (120,), (4000,), dtype=F16, kv_dtype=E4M3, index_dtype=E4M3),
    PrefillCase("interleaved_tokens", (300, 9), (6000, 2100), layout="interleaved", table="tokens"),
    PrefillCase("forced", (300,), (6000,), config=MsaConfig(128, 16, 2, 3)),
    PrefillCase("ties", (300,), (9000,), groups=2, ties=True),
)


@dataclass
class Work:
    case: PrefillCase
    q: Tensor
    index_q: Tensor
    k: Tensor
    v: Tensor
    index_k: Tensor
    table: PageTable

    @property
    def keys(self) -> tuple[Tensor, Tensor, Tensor, PageTable]:
        return self.k, self.v, self.index_k, self.table


def make(case: PrefillCase, device: torch.device, seed: int) -> Work:
    generator = torch.Generator().manual_seed(seed)
    size, dim, batch = case.config.block_size, case.dim, case.batch()
    counts = [-(-n // size) for n in case.lengths]
    pages = sum(counts) + 2
    order = torch.randperm(pages, generator=generator).int()
    plain = torch.full((len(counts), max(counts) + 1), -1, dtype=torch.int32)
    at = 0
    for r, n in enumerate(counts):
        plain[r, :n] = order[at : at + n]
        at += n

    def numbers(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    k, v, index_k = (
        numbers(pages, size, case.groups, dim),
        numbers(pages, size, case.groups, dim),
        numbers(pages, size, dim),
    )
    if case.ties:
        index_k = index_k[:2, :1].repeat(-(-pages // 2), size, 1)[:pages].contiguous()
    stale = [(int(plain[r, n // size]), n % size) for r, n in enumerate(case.lengths) if n % size]
    for page, begin in [*stale, *((int(page), 0) for page in order[at:])]:
        for pool in (k, v, index_k):
            pool[page, begin:] = float("nan")
    k, v, index_k = (
        t.to(d).to(device) for t, d in ((k, batch.kv_dtype), (v, batch.kv_dtype), (index_k, batch.index_dtype))
    )
    if case.layout == "interleaved":
        kv = torch.cat([k, v], -1).transpose(1, 2).contiguous()
        k, v = kv[..., :dim].transpose(1, 2), kv[..., dim:].transpose(1, 2)
    table = PageTable(plain.to(device))
    if case.table == "tokens":
        slots = (plain.clamp(min=0)[:, :, None] * size + torch.arange(size)).flatten(1).int()
        where = torch.randperm(len(counts) + 2, generator=generator)[: len(counts)]
        big = torch.full((len(counts) + 2, slots.shape[1]), -1, dtype=torch.int32)
        big[where] = slots
        table = PageTable.of_tokens(big.to(device), where.to(device), size)
    q, index_q = numbers(batch.rows, case.groups * case.heads, dim), numbers(batch.rows, case.groups, dim)
    return Work(case, q.to(case.dtype).to(device), index_q.to(case.dtype).to(device), k, v, index_k, table)


def plan_of(case: PrefillCase, device: torch.device, kernel: str, select: str, **changes: object) -> PrefillPlan:
    batch = replace(case.batch(), **changes)  # type: ignore[arg-type]
    return PrefillPlan(
        batch.new_tokens, batch.lengths, groups=batch.groups, heads=batch.heads, device=device, config=batch.config,
        query_dtype=batch.query_dtype, kv_dtype=batch.kv_dtype, index_dtype=batch.index_dtype, kernel=kernel, select=select,
        head_dim=batch.head_dim,
    )  # fmt: skip


def run(plan: PrefillPlan, q: Tensor, index_q: Tensor, work: Work, **scales: float) -> tuple[Tensor, Tensor, Tensor]:
    """Choice and attention into poisoned tensors: out, lse, blocks."""
    out = torch.full_like(q, float("nan"))
    lse = torch.full(q.shape[:2], float("nan"), device=q.device)
    blocks = torch.full_like(plan.blocks, -7)
    plan.run(q, index_q, *work.keys, out=out, lse=lse, blocks=blocks, **scales)
    return out, lse, blocks


def faults_of(work: Work, out: Tensor, lse: Tensor, blocks: Tensor, scale: float) -> Iterator[str]:
    """Against the fp32 oracle, request by request."""
    case, batch, first = work.case, work.case.batch(), 0
    pages = work.table.pages(len(batch.lengths))
    tolerance = TOLERANCE[case.dtype]
    for r, (count, length) in enumerate(zip(batch.new_tokens, batch.lengths, strict=True)):
        rows, one = slice(first, first + count), PageTable(pages[r : r + 1])
        first += count
        end = torch.tensor([length], device=out.device)
        sees = torch.arange(length - count + 1, length + 1, device=out.device)
        scores = paged_block_scores(work.index_q[rows], work.index_k, one, end, count)
        wrong = choice_fault(blocks[rows], scores, sees, case.config, TOLERANCE[batch.index_dtype].score)
        if wrong:
            yield f"request {r} chose wrongly: {wrong}"
            continue
        table = PageTable(pages[r : r + 1].expand(count, -1))
        want, want_lse = attend_blocks(work.q[rows], work.k, work.v, blocks[rows], table, sees, 1, scale)
        error = ((out[rows].float() - want).norm() / want.norm().clamp(min=1e-30)).item()
        gap = (lse[rows] - want_lse).abs().max().item()
        if not error <= tolerance.output:
            yield f"request {r}: output error {error:.3g} over {tolerance.output}"
        if not gap <= tolerance.lse:
            yield f"request {r}: lse is off by {gap:.3g}"


def check_prefill(case: PrefillCase, device: torch.device, kernel: str, select: str, seed: int = 0) -> list[str]:
    """Faults of one attention kernel and one choice kernel on one case; empty when both are right."""
    work, plan = make(case, device, seed), plan_of(case, device, kernel, select)
    out, lse, blocks = run(plan, work.q, work.index_q, work)
    scale = case.dim**-0.5
    faults = list(faults_of(work, out, lse, blocks, scale))
    shuffled = blocks[..., torch.randperm(blocks.shape[-1], device=device)].contiguous()  # any order, -1 anywhere
    shuffled[shuffled < 0] = torch.randint(-3, 0, (), device=device).int()
    out.fill_(float("nan"))
    plan.attend(
        work.q, work.k, work.v, shuffled, work.table, out=out, scale=scale * 0.5, k_scale=2.0, v_scale=2.0, lse=lse
    )
    faults += [f"given blocks: {fault}" for fault in faults_of(work, out / 2, lse, blocks, scale)]
    return faults


def check_equalities(case: PrefillCase, device: torch.device, kernel: str, select: str, seed: int = 0) -> list[str]:
    """One request of `case` in one pass, in uneven chunks, after moving its pages, and its last row as a decode step."""
    case = replace(case, new=case.new[:1], lengths=case.lengths[:1], table="pages", layout="slots", ties=False)
    work = make(case, device, seed)
    count, length, scale = case.new[0], case.lengths[0], case.dim**-0.5
    out, lse, blocks = run(plan_of(case, device, kernel, select), work.q, work.index_q, work)
    tolerance = TOLERANCE[case.dtype].output
    faults = []

    def compare(what: str, other: Tensor, other_blocks: Tensor, rows: slice) -> None:
        error = ((other.float() - out[rows].float()).norm() / out[rows].float().norm()).item()
        if not torch.equal(other_blocks, blocks[rows]):
            faults.append(f"{what}: another choice")
        elif not error <= tolerance:
            faults.append(f"{what}: differs by {error:.3g}")

    cuts = sorted({0, count // 3, count // 3 + 1, count - count // 4, count})
    for begin, end in itertools.pairwise(cuts):
        plan = plan_of(case, device, kernel, select, new_tokens=(end - begin,), lengths=(length - count + end,))
        part, _, chosen = run(plan, work.q[begin:end], work.index_q[begin:end], work)
        compare(f"chunk {begin}..{end}", part, chosen, slice(begin, end))

    moved = torch.randperm(len(work.k), device=device)
    home = torch.empty_like(moved)
    home[moved] = torch.arange(len(moved), device=device)
    pages = work.table.table
    table = PageTable(torch.where(pages < 0, pages, home[pages.clamp(min=0).long()].int()))
    other = Work(case, work.q, work.index_q, work.k[moved], work.v[moved], work.index_k[moved], table)
    again, again_lse, chosen = run(plan_of(case, device, kernel, select), work.q, work.index_q, other)
    if not (torch.equal(again, out) and torch.equal(again_lse, lse) and torch.equal(chosen, blocks)):
        faults.append("moved pages: not the same bits")

    shape = DecodeShape(
        1, case.groups, case.heads, 1, length, case.dtype, case.kv_dtype or case.dtype, case.index_dtype or case.dtype,
        case.dim, config=case.config,
    )  # fmt: skip
    decode = dispatch.make(shape, device)[1]
    last, chosen = torch.full_like(out[-1:], float("nan")), torch.full_like(blocks[-1:], -7)
    decode.decode(
        work.q[-1:], work.index_q[-1:], *work.keys, torch.tensor([length], dtype=torch.int32, device=device), last,
        scale=scale, blocks=chosen,
    )  # fmt: skip
    compare("decode", last, chosen, slice(count - 1, count))
    return faults


PAIRS = (("block_major", "fused"), ("union", "split"))
"""The new kernels, each once; row by row and split are decode's and extend's, with tests of their own."""


def check_all(device: torch.device, cases: Sequence[PrefillCase], seed: int) -> int:
    """Prints a line per kernel and case; the number of faults."""
    bad = 0
    for case in cases:
        for kernel, select in PAIRS:
            try:
                faults = check_prefill(case, device, kernel, select, seed)
                faults += check_equalities(case, device, kernel, select, seed + 1)
            except Exception as error:
                faults = [f"{type(error).__name__}: {str(error)[:300]}"]
            bad += bool(faults)
            print(f"check {kernel:11s} {select:5s} {case.name:22s} {'; '.join(faults) or 'ok'}", flush=True)
    return bad
