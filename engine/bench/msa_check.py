"""Correctness of a decode kernel on ugly cases: ragged lengths, partial and NaN-filled last pages, unused table entries,
several query rows, all dtypes and layouts. Inputs are fresh random numbers, outputs are poisoned before each run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from engine.msa.config import MsaConfig
from engine.msa.layouts import DecodeShape, PageTable
from engine.msa.oracle_decode import attend_blocks, choice_fault, paged_block_scores, row_lengths
from engine.msa.tolerances import TOLERANCE

BF16, F16, E4M3 = torch.bfloat16, torch.float16, torch.float8_e4m3fn


@dataclass(frozen=True)
class Case:
    name: str
    lengths: tuple[int, ...]
    queries: int = 1
    groups: int = 4
    heads: int = 16
    query_dtype: torch.dtype = BF16
    kv_dtype: torch.dtype = BF16
    index_dtype: torch.dtype = BF16
    config: MsaConfig = field(default_factory=MsaConfig)
    layout: str = "slots"  # or "interleaved"
    table: str = "pages"  # or "tokens"
    ties: bool = False

    def shape(self) -> DecodeShape:
        return DecodeShape(
            requests=len(self.lengths),
            groups=self.groups,
            heads=self.heads,
            queries=self.queries,
            max_tokens=max(self.lengths),
            query_dtype=self.query_dtype,
            kv_dtype=self.kv_dtype,
            index_dtype=self.index_dtype,
            config=self.config,
        )


# Small enough for an interpreter on a CPU.
SMALL = (
    Case("one_token", (1,), groups=1, heads=4),
    Case("fewer_blocks_than_k", (700,), groups=2),
    Case("exactly_k_blocks", (2048, 2047), groups=1),
    Case("first_choice", (2049,), groups=2, heads=8),
    Case("ragged", (300, 2900, 128, 2177), groups=2, heads=4),
    Case("verify_rows", (2600, 2176), queries=3, groups=1, heads=8),
    Case("fp8", (2500,), groups=2, kv_dtype=E4M3, index_dtype=E4M3),
    Case("forced_blocks", (3500,), groups=1, heads=4, config=MsaConfig(128, 16, 2, 3)),
    Case("small_k", (1500,), groups=1, heads=4, config=MsaConfig(128, 4, 0, 1)),
    Case("token_table", (2700, 400), groups=1, heads=4, table="tokens"),
)
# The same in fp16, the type the Triton interpreter multiplies rightly.
HALF = tuple(
    replace(case, name=f"{case.name}_fp16", query_dtype=F16, kv_dtype=F16, index_dtype=F16)
    for case in SMALL
    if case.name in ("one_token", "first_choice", "forced_blocks", "token_table")
)
# For a GPU, or a patient CPU.
LARGE = (
    *SMALL,
    *HALF,
    Case("empty_request", (0, 5000, 1), groups=4),
    Case("ties", (9000, 5000), groups=2, ties=True),
    Case("ties_long", (300_001,), groups=1, heads=4, ties=True),
    Case("batch_ragged", tuple(131 * i * i + 7 for i in range(1, 40))),
    Case("batch_of_tiny", tuple(range(1, 90)), groups=2, heads=8),
    Case("one_long_many_short", (100_003, *([2200] * 30), 3)),
    Case("long", (300_001,)),
    Case("verify_2", (70_000, 2500), queries=2),
    Case("verify_4", (70_000, 3000, 129), queries=4),
    Case("verify_8", (40_000, 2300), queries=8),
    Case("verify_8_gqa8", (40_000, 9), queries=8, groups=2, heads=8),
    Case("fp16", (20_000, 31), query_dtype=F16, kv_dtype=F16, index_dtype=F16),
    Case("fp8_kv_only", (20_000, 5555), kv_dtype=E4M3),
    Case("fp8_index_only", (20_000, 5555), index_dtype=E4M3),
    Case("fp8_fp16_query", (20_000, 5555), query_dtype=F16, kv_dtype=E4M3, index_dtype=E4M3),
    Case("interleaved", (20_000, 1300), layout="interleaved"),
    Case("interleaved_fp8_tokens", (20_000, 1300), layout="interleaved", table="tokens", kv_dtype=E4M3),
    Case("one_group", (33_333, 4444), groups=1),
    Case("forced_long", (50_000, 2300), config=MsaConfig(128, 16, 3, 4)),
)


@dataclass
class Inputs:
    case: Case
    q: Tensor
    index_q: Tensor
    k: Tensor
    v: Tensor
    index_k: Tensor
    table: PageTable
    lengths: Tensor


def make(case: Case, device: torch.device, seed: int) -> Inputs:
    generator = torch.Generator(device="cpu").manual_seed(seed)
    need = [-(-n // 128) for n in case.lengths]
    pages = sum(need) + 3
    order = torch.randperm(pages, generator=generator)
    plain = torch.full((len(need), max(1, *need) + 1), -1, dtype=torch.int32)
    at = 0
    for r, n in enumerate(need):
        plain[r, :n] = order[at : at + n]
        at += n

    def numbers(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    index_k = numbers(pages, 128, 128)
    if case.ties:  # few distinct keys: most block scores are equal
        index_k = index_k[:2, :1].repeat(-(-pages // 2), 128, 1)[:pages].contiguous()
    k, v = numbers(pages, 128, case.groups, 128), numbers(pages, 128, case.groups, 128)
    stale = [(int(plain[r, n // 128]), n % 128) for r, n in enumerate(case.lengths) if n % 128]
    stale += [(int(page), 0) for page in order[at:]]
    for pool in (k, v, index_k):
        for page, begin in stale:
            pool[page, begin:] = float("nan")
    rows = len(need) * case.queries
    if case.layout == "interleaved":
        kv = torch.cat([k, v], -1).transpose(1, 2).contiguous().to(case.kv_dtype).to(device)
        k, v = kv[..., :128].transpose(1, 2), kv[..., 128:].transpose(1, 2)
    else:
        k, v = k.to(case.kv_dtype).to(device), v.to(case.kv_dtype).to(device)
    if case.table == "tokens":
        slots = (plain.clamp(min=0)[:, :, None] * 128 + torch.arange(128)).flatten(1).int()
        where = torch.randperm(len(need) + 2, generator=generator)[: len(need)]
        big = torch.full((len(need) + 2, slots.shape[1]), -1, dtype=torch.int32)
        big[where] = slots
        table = PageTable.of_tokens(big.to(device), where.to(device))
    else:
        table = PageTable(plain.to(device))
    return Inputs(
        case,
        numbers(rows, case.groups * case.heads, 128).to(case.query_dtype).to(device),
        numbers(rows, case.groups, 128).to(case.query_dtype).to(device),
        k,
        v,
        index_k.to(case.index_dtype).to(device),
        table,
        torch.tensor(case.lengths, dtype=torch.int32, device=device),
    )


def check_decode(case: Case, device: torch.device, runner: Callable[[DecodeShape], Any], seed: int = 0) -> list[str]:
    """Faults of one kernel on one case; empty when it is right. Runs decode, select and attend against the oracle."""
    i = make(case, device, seed)
    run = runner(case.shape())
    rows, heads = i.q.shape[:2]
    topk, scale = case.config.topk_blocks, 128**-0.5

    def poisoned() -> tuple[Tensor, Tensor, Tensor]:
        return (
            torch.full_like(i.q, float("nan")),
            torch.full((rows, heads), float("nan"), device=device),
            torch.full((rows, case.groups, topk), -7, dtype=torch.int32, device=device),
        )

    out, lse, blocks = poisoned()
    run.decode(i.q, i.index_q, i.k, i.v, i.index_k, i.table, i.lengths, out, scale=scale, lse=lse, blocks=blocks)
    tokens = row_lengths(i.lengths, case.queries)
    scores = paged_block_scores(i.index_q, i.index_k, i.table, i.lengths, case.queries)
    faults = []
    fault = choice_fault(blocks, scores, tokens, case.config, eps=TOLERANCE[case.index_dtype].score)
    if fault:
        faults.append(f"decode chose wrongly: {fault}")
    faults += compare(out, lse, i, blocks, tokens, scale, "decode")

    _, _, again = poisoned()
    run.select(i.index_q, i.index_k, i.table, i.lengths, again)
    if not torch.equal(again, blocks):
        faults.append("select and decode chose differently")

    shuffled = blocks[..., torch.randperm(topk, device=device)].contiguous()  # any order, -1 anywhere
    out, lse, _ = poisoned()
    run.attend(i.q, i.k, i.v, shuffled, i.table, i.lengths, out, scale=scale * 0.5, k_scale=2.0, v_scale=1.0, lse=lse)
    faults += compare(out, lse, i, blocks, tokens, scale, "attend")
    return faults


def compare(out: Tensor, lse: Tensor, i: Inputs, blocks: Tensor, tokens: Tensor, scale: float, what: str) -> list[str]:
    want, want_lse = attend_blocks(i.q, i.k, i.v, blocks, i.table, tokens, i.case.queries, scale)
    tolerance = TOLERANCE[i.case.query_dtype]
    error = (out.float() - want).norm() / want.norm().clamp(min=1e-30)
    faults = []
    if not torch.isfinite(out).all():
        faults.append(f"{what}: {int((~torch.isfinite(out)).sum())} elements not written or not finite")
    elif error > tolerance.output:
        at = int((out.float() - want).abs().argmax())
        row, head, d = at // (out.shape[1] * 128), at // 128 % out.shape[1], at % 128
        faults.append(
            f"{what}: relative error {error:.3g} over {tolerance.output}; worst at row {row}, head {head}, d {d}: "
            f"{out[row, head, d]:.5g} for {want[row, head, d]:.5g}"
        )
    live = torch.isfinite(want_lse)
    gap = (lse - want_lse)[live].abs().max() if live.any() else torch.zeros(())
    if not torch.isfinite(gap) or gap > tolerance.lse or not (lse[~live] == float("-inf")).all():
        faults.append(f"{what}: lse is off by {gap:.3g}")
    return faults
