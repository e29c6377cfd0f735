"""Prefill kernels on a real GPU: every case for both forms, equalities, repeatability. Skipped without one."""

import pytest
import torch

from engine.bench.prefill_check import FULL_CASES, PAIRS, check_equalities, check_prefill, make, plan_of, run

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


@pytest.mark.parametrize("case", FULL_CASES, ids=lambda case: case.name)
@pytest.mark.parametrize(("kernel", "select"), PAIRS)
def test_kernels_are_right(kernel, select, case):
    device = torch.device("cuda")
    assert check_prefill(case, device, kernel, select) == []
    assert check_equalities(case, device, kernel, select) == []


@pytest.mark.parametrize(("kernel", "select"), PAIRS)
def test_the_same_input_gives_the_same_bits(kernel, select):
    """Also in several passes: the parts of a pass are those of one."""
    case = next(case for case in FULL_CASES if case.name == "agents")
    device = torch.device("cuda")
    work, plan = make(case, device, 1), plan_of(case, device, kernel, select)
    first = run(plan, work.q, work.index_q, work)
    for _ in range(3):
        again = run(plan, work.q, work.index_q, work)
        assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))


def test_passes_change_no_bit():
    from engine.msa.kernels.triton_block_major import BlockMajorRunner, Tuning

    case = next(case for case in FULL_CASES if case.name == "agents")
    device = torch.device("cuda")
    work, plan = make(case, device, 2), plan_of(case, device, "block_major", "split")
    out, _, blocks = run(plan, work.q, work.index_q, work)
    other = torch.full_like(out, float("nan"))
    short = BlockMajorRunner(case.batch(), device, Tuning(pass_bytes=64 << 20))
    assert short.pass_rows < case.batch().rows
    short.attend(work.q, work.k, work.v, blocks, work.table, other, scale=case.dim**-0.5)
    assert torch.equal(other, out)
