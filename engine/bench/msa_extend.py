"""Extend: new tokens behind long prefixes, ours beside SGLang's kernels. Part of `catalejo bench msa --phase prefill`."""

from __future__ import annotations

import dataclasses
import sys
from types import SimpleNamespace
from typing import Any

import torch

from engine.bench.timing import time_graph
from engine.msa.extend import plan_prefill
from engine.msa.layouts import PageTable
from engine.msa.oracle_decode import attend_blocks, choice_fault, paged_block_scores
from engine.msa.tolerances import TOLERANCE

BF16 = torch.bfloat16
GROUPS, HEADS, SCALE = 4, 16, 128**-0.5


@dataclasses.dataclass(frozen=True)
class ExtendCase:
    requests: int
    new: int
    prefix: int

    def __str__(self) -> str:
        return f"{self.requests} x {self.new} new behind {self.prefix // 1000}k"


CASES = (
    ExtendCase(1, 100, 60_000),
    ExtendCase(1, 100, 250_000),
    ExtendCase(1, 16, 60_000),
    ExtendCase(1, 500, 60_000),
    ExtendCase(1, 2000, 60_000),
    ExtendCase(8, 100, 60_000),
)


def floor_us(case: ExtendCase) -> float:
    """Index keys once from memory, or the dots at 790 TFLOP/s; then K and V of the union, here at most all chosen blocks
    read once per row and group through a cache: counted by arithmetic only."""
    keys = case.requests * (case.prefix + case.new)
    columns = case.new * GROUPS
    score = max(keys * 256 / 4.3e12, keys * columns * 256 / 790e12)
    attend = case.requests * columns * HEADS * 2048 * 128 * 4 / 790e12
    return (score + attend) * 1e6


def measure(case: ExtendCase, device: torch.device, peer: SimpleNamespace | None, sets: int = 3) -> dict[str, Any]:
    torch.manual_seed(case.new)
    length = case.prefix + case.new
    per = -(-length // 128)
    pages = sets * case.requests * per
    k, v = (torch.randn(pages, 128, GROUPS, 128, device=device, dtype=BF16) for _ in "kv")
    index_k = torch.randn(pages, 128, 128, device=device, dtype=BF16)
    tables = torch.randperm(pages, device=device, dtype=torch.int32).view(sets, case.requests, per)
    rows = case.requests * case.new
    q = torch.randn(rows, GROUPS * HEADS, 128, device=device, dtype=BF16)
    index_q = torch.randn(rows, GROUPS, 128, device=device, dtype=BF16)
    new, lengths = [case.new] * case.requests, [length] * case.requests
    plan = plan_prefill(new, lengths, groups=GROUPS, heads=HEADS, device=device)
    out = torch.full_like(q, float("nan"))
    blocks = torch.full((rows, GROUPS, 16), -7, dtype=torch.int32, device=device)
    one = [PageTable(table.contiguous()) for table in tables]
    row: dict[str, Any] = {
        "case": str(case),
        **dataclasses.asdict(case),
        "kernel": plan.choice.kernel,
        "floor": floor_us(case),
    }

    plan.extend(q, index_q, k, v, index_k, one[0], out=out, blocks=blocks)
    row["fault"] = None
    if rows <= 1000:
        ends = torch.tensor(lengths, device=device)
        scores = torch.cat(
            [
                paged_block_scores(
                    index_q[r * case.new : (r + 1) * case.new],
                    index_k,
                    PageTable(tables[0, r : r + 1]),
                    ends[r : r + 1],
                    case.new,
                )
                for r in range(case.requests)
            ]
        )
        row["fault"] = choice_fault(blocks, scores, plan.row_tokens.long(), plan.config, TOLERANCE[BF16].score)
        want, _ = attend_blocks(q, k, v, blocks, plan.row_table(one[0]), plan.row_tokens, 1, SCALE)
        row["error"] = ((out.float() - want).norm() / want.norm()).item()
        if not row["error"] <= TOLERANCE[BF16].output:
            row["fault"] = f"{row['fault']}; output error {row['error']:.3g}"
        del scores, want
    row["select"] = time_graph(lambda s: plan.select(index_q, index_k, one[s], out=blocks), sets, replays=9).us
    by_row = [plan.row_table(table) for table in one]
    row["attend"] = time_graph(
        lambda s: plan.runner.attend(q, k, v, blocks, by_row[s], plan.row_tokens, out, scale=SCALE), sets, replays=9
    ).us
    row["total"] = row["select"] + row["attend"]
    if peer is not None:
        try:
            row |= _sglang(peer, case, q, index_q, k, v, index_k, tables, blocks, sets)
            row["speedup"] = row["sglang_total"] / row["total"]
        except Exception as error:
            sys.stderr.write(f"sglang extend: {type(error).__name__}: {str(error)[:300]}\n")
    return row


def _sglang(
    peer: SimpleNamespace, case: ExtendCase, q: Any, index_q: Any, k: Any, v: Any, index_k: Any, tables: Any, ours: Any, sets: int
) -> dict[str, float]:  # fmt: skip
    device, length = q.device, case.prefix + case.new
    columns = torch.arange(128, device=device, dtype=torch.int32)
    tokens = [(table[:, :, None] * 128 + columns).flatten(1).contiguous() for table in tables]
    cu = torch.arange(case.requests + 1, device=device, dtype=torch.int32) * case.new
    slots = torch.arange(case.requests, device=device)
    ends = torch.full((case.requests,), length, device=device, dtype=torch.int64)
    starts = torch.full((case.requests,), case.prefix, device=device, dtype=torch.int64)
    common = {
        "slot_ids": slots, "cu_seqlens": cu, "seq_lens": ends, "prefix_lens": starts, "max_seqlen_q": case.new,
        "block_size_q": 1, "block_size_k": 128, "cu_seqblocks_q": cu, "max_seqblock_q": case.new, "sm_scale": SCALE,
    }  # fmt: skip
    rows = case.requests * case.new
    held: dict[str, Any] = {}

    def select(s: int) -> None:
        held["blocks"] = peer.prefill_select(
            q=index_q, k_cache=index_k.view(-1, 1, 128), v_cache=None, sink=None, req_to_token=tokens[s],
            max_seqlen_k=length, topk=16, init_blocks=0, local_blocks=1, disable_index_value=True,
            all_seqblock_q=rows, page_size=128, **common,
        )[1]  # fmt: skip

    def attend(s: int) -> None:
        held["out"] = peer.prefill_attend(
            q=q, k_cache=k.view(-1, GROUPS, 128), v_cache=v.view(-1, GROUPS, 128), sink=None, req_to_token=tokens[s],
            topk_idx=held["blocks"], **common,
        )  # fmt: skip

    select(0)
    attend(0)
    torch.cuda.synchronize()
    theirs = held["blocks"].permute(1, 0, 2).sort(-1).values
    row = {"same_choice": (theirs == ours.sort(-1).values).all(-1).float().mean().item()}
    row["sglang_select"] = time_graph(select, sets, replays=5).us
    row["sglang_attend"] = time_graph(attend, sets, replays=5).us
    row["sglang_total"] = row["sglang_select"] + row["sglang_attend"]
    return row


def print_row(row: dict[str, Any]) -> None:
    keys = ("floor", "select", "attend", "total", "sglang_select", "sglang_attend", "sglang_total", "speedup", "error")
    numbers = "  ".join(
        f"{key}={row[key]:.3g}" if key == "error" else f"{key}={row[key]:.1f}" for key in keys if key in row
    )
    print(f"extend {row['case']:28s} {numbers}  {'ok' if not row['fault'] else 'FAULT ' + row['fault']}", flush=True)
