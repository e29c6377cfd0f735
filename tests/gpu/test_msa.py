"""The kernels on a real GPU: every case, CUDA graphs, repeatability. Skipped without one."""

import pytest
import torch

from engine.bench.msa_check import LARGE, check_decode, make
from engine.msa import dispatch
from engine.msa.ops import plan_decode

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


@pytest.mark.parametrize("case", LARGE, ids=lambda case: case.name)
@pytest.mark.parametrize("name", ["sm90", "triton"])
def test_kernel_is_right(name, case):
    device, kernel = torch.device("cuda"), dispatch.KERNELS[name]
    refusal = kernel.refuse(case.shape(), device)
    if refusal:
        pytest.skip(refusal)
    assert check_decode(case, device, lambda shape: kernel.make(shape, device)) == []


@pytest.mark.parametrize("name", ["sm90", "triton"])
def test_a_captured_step_follows_lengths_and_queries_and_allocates_nothing(name):
    device = torch.device("cuda")
    case = next(case for case in LARGE if case.name == "verify_4")
    refusal = dispatch.KERNELS[name].refuse(case.shape(), device)
    if refusal:
        pytest.skip(refusal)
    i = make(case, device, 1)
    plan = plan_decode(case.shape(), device, name)
    out = torch.full_like(i.q, float("nan"))
    arguments = (i.q, i.index_q, i.k, i.v, i.index_k, i.table, i.lengths)
    plan.decode(*arguments, out=out)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        plan.decode(*arguments, out=out)
    first = None
    for step in range(3):
        i.q.copy_(torch.randn_like(i.q))
        i.lengths.copy_(torch.tensor(case.lengths, device=device) - step * 130 % 129)
        out.fill_(float("nan"))
        before = torch.cuda.memory_stats()["allocation.all.allocated"]
        graph.replay()
        assert torch.cuda.memory_stats()["allocation.all.allocated"] == before
        replayed = out.clone()
        plan.decode(*arguments, out=out)
        assert torch.equal(replayed, out)  # the same bits
        assert first is None or not torch.equal(first, out)
        first = out.clone()
