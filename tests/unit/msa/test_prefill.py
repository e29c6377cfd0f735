"""Prefill: the kernels under Triton's interpreter (in a process of its own: interpreting is decided when kernels are
imported), the operators and their plan on a CPU, and how work is cut."""

import itertools
import os
import subprocess
import sys

import pytest
import torch

from engine.bench.prefill_check import TINY, TINY_CASES, check_prefill, make, plan_of, run
from engine.msa import dispatch
from engine.msa.config import MsaConfig
from engine.msa.extend import msa_prefill, plan_prefill, sparse_prefill
from engine.msa.layouts import MsaArgumentError, PageTable, PrefillBatch

CPU = torch.device("cpu")
QUICK = ("ragged", "tokens_interleaved")
SCRIPT = """
import sys
import torch
from engine.bench.prefill_check import PAIRS, TINY_CASES, check_all, check_prefill
cases, device = [c for c in TINY_CASES if c.name in sys.argv[2:]], torch.device("cpu")
if sys.argv[1] == "whole":
    sys.exit(check_all(device, cases, seed=4))
for case in cases:
    for kernel, select in PAIRS:
        print(kernel, case.name, *(check_prefill(case, device, kernel, select, seed=4) or ["ok"]))
"""
PASSES = """
import torch
from engine.bench.prefill_check import TINY_CASES, make, plan_of, run
from engine.msa.kernels.triton_block_major import BlockMajorRunner, Tuning
case, device = next(c for c in TINY_CASES if c.name == "ragged"), torch.device("cpu")
work = make(case, device, 2)
out, _, blocks = run(plan_of(case, device, "block_major", "reference"), work.q, work.index_q, work)
short = BlockMajorRunner(case.batch(), device, Tuning(pass_bytes=1 << 10, per=2, m=16))
assert short.pass_rows < case.batch().rows, short.pass_rows
other = torch.full_like(out, float("nan"))
short.attend(work.q, work.k, work.v, blocks, work.table, other, scale=case.dim**-0.5)
torch.testing.assert_close(other, out, rtol=2e-3, atol=1e-4)  # a CPU's products depend on the rows beside them
print("ok", short.pass_rows)
"""


def interpreted(depth, *names):
    environment = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-W", "ignore", "-c", SCRIPT, depth, *names]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    assert done.stdout.count(" ok\n") == 2 * len(names)


def test_kernels_are_right_under_the_interpreter():
    interpreted("quick", *QUICK)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_passes_and_hot_blocks_spread_over_items_change_nothing():
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    command = [sys.executable, "-W", "ignore", "-c", PASSES]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and done.stdout.startswith("ok"), done.stderr[-2000:]


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", [case.name for case in TINY_CASES])
def test_kernels_are_right_on_every_case(name):
    interpreted("whole", name)


@pytest.mark.parametrize("case", TINY_CASES, ids=lambda case: case.name)
def test_the_reference_is_right(case):
    assert check_prefill(case, CPU, "reference", "reference", seed=2) == []


def test_a_spoiled_output_is_noticed(monkeypatch):
    case = next(case for case in TINY_CASES if case.name == "ragged")
    from engine.msa.extend import RowByRow

    real = RowByRow.attend

    def spoiled(self, q, k, v, blocks, table, out, **scales):
        real(self, q, k, v, blocks, table, out, **scales)
        out[3, 0] = out[4, 0]

    monkeypatch.setattr(RowByRow, "attend", spoiled)
    assert check_prefill(case, CPU, "reference", "reference", seed=2)


def test_functions_plan_for_themselves():
    case = next(case for case in TINY_CASES if case.name == "ragged")
    work = make(case, CPU, 5)
    out, _, blocks = run(plan_of(case, CPU, "reference", "auto"), work.q, work.index_q, work)
    arguments = (work.k, work.v)
    whole = msa_prefill(work.q, work.index_q, *work.keys, case.new, case.lengths, TINY, kernel="reference")
    given = sparse_prefill(work.q, *arguments, blocks, work.table, case.new, case.lengths, TINY, kernel="reference")
    assert torch.equal(whole, out) and torch.equal(given, out)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"q": torch.zeros(3, 4, 16)}, "q: shape is"),
        ({"blocks": torch.zeros(4, 2, 4)}, "blocks: is torch.float32"),
        (
            {"table": PageTable(torch.zeros(1, 1, dtype=torch.int32))},
            "table: has 1 blocks a row, the longest request 2",
        ),
        ({"k": torch.zeros(2, 16, 2, 16, dtype=torch.float16)}, "k: dtype is torch.float16"),
    ],
)
def test_bad_tensors_are_named(change, text):
    plan = plan_prefill([4], [20], groups=2, heads=2, device="cpu", config=TINY, query_dtype=torch.float32,
                        kv_dtype=torch.float32, kernel="reference", head_dim=16)  # fmt: skip
    pool = torch.zeros(2, 16, 2, 16)
    given = {
        "q": torch.zeros(4, 4, 16), "k": pool, "v": pool, "blocks": torch.zeros(4, 2, 4, dtype=torch.int32),
        "table": PageTable(torch.zeros(1, 2, dtype=torch.int32)),
    } | change  # fmt: skip
    with pytest.raises(MsaArgumentError, match=text):
        plan.attend(**given, out=torch.zeros(4, 4, 16))


def test_kernels_without_a_measured_gain_run_by_name_only(monkeypatch):
    named = {(row.phase, row.kernel) for row in dispatch.TABLE}
    assert ("prefill", "union") not in named
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    batch = PrefillBatch((4,), (20,), 2, 2)
    for phase, kernel in (("prefill", "block_major"), ("select", "fused")):
        with pytest.raises(MsaArgumentError, match="needs a GPU"):
            dispatch.choose(batch, CPU, kernel, phase)


@pytest.mark.parametrize(
    ("new", "lengths", "attention", "choice"),
    [
        ((8192,), (131_072,), "block_major", "fused"),
        ((8192,), (8192,), "block_major", "fused"),
        ((100,) * 8, (60_100,) * 8, "block_major", "fused"),
        ((100,), (60_100,), "block_major", "split"),
        ((100,), (250_100,), "sm90", "split"),  # few queries choose the same block
        ((16,), (60_016,), "sm90", "split"),
    ],
)
def test_hopper_takes_what_was_fastest(monkeypatch, new, lengths, attention, choice):
    """The rows of docs/kernels.md's table, as far as the choice of kernel goes."""
    monkeypatch.setattr(dispatch, "architecture", lambda device: "sm_90")
    able = dispatch.Kernel(lambda batch, device: None, lambda batch, device: None)
    monkeypatch.setitem(dispatch.PHASES, "prefill", dict.fromkeys(dispatch.PREFILL, able))
    monkeypatch.setitem(dispatch.PHASES, "select", dict.fromkeys(dispatch.SELECT, able))
    batch = PrefillBatch(new, lengths, 4, 16)
    assert dispatch.choose(batch, CPU, phase="prefill").kernel == attention
    assert dispatch.choose(batch, CPU, phase="select").kernel == choice


@pytest.mark.parametrize("slots", [1, 7, 500])
def test_work_items_cover_each_block_of_each_tile_once(slots):
    from engine.msa.kernels.triton_prefill_select import plan_items

    batch = PrefillBatch((3000, 5, 700), (3000, 90_000, 20_000), 4, 16)
    items, tiles = plan_items(batch, 64, slots)
    sizes = [end - begin for *_, begin, end, _ in items]
    assert sizes == sorted(sizes, reverse=True) and min(sizes) >= 1
    assert sorted(item[5] for item in items) == list(range(len(items)))
    assert len(items) <= slots + len(tiles)
    by_place = {item[5]: item for item in items}
    covered_rows = 0
    for (first, begin, pieces), following in zip(tiles, [*tiles[1:], (batch.rows, 0, 0)], strict=True):
        rows = following[0] - first
        covered_rows += rows
        spans = [by_place[begin + piece][3:5] for piece in range(pieces)]
        last_own = (int(batch.row_tokens(CPU)[first + rows - 1]) - 1) // 128
        if last_own < MsaConfig().topk_blocks:
            assert spans == []
            continue
        assert spans[0][0] == 0 and spans[-1][1] == last_own
        assert all(a[1] == b[0] for a, b in itertools.pairwise(spans))
    assert covered_rows == batch.rows
