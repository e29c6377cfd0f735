"""Decode through engine.msa's operators: the same tokens as through torch, and which kernel is asked for."""

import numpy as np
import pytest
import torch

from engine.checkpoints import make_tiny
from engine.local.core import Core
from engine.local.kernel_rows import KernelRows, pick_kernel
from engine.local.kv_storage import KvShape
from engine.local.model import Model
from engine.local.options import EngineOptions
from engine.local.sampling import Sampling
from engine.local.sequence import Request
from engine.msa.config import MsaConfig
from tests.unit.engine.harness import text_ids

M3 = KvShape(4, 128, (0, 128, 128), 128)
CUDA, CPU = torch.device("cuda"), torch.device("cpu")


@pytest.fixture(scope="module")
def big_blocks(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tiny-128")
    make_tiny.make(folder, "tiny-128")
    return Model(folder)


def greedy(model, kernel):
    core = Core(model, EngineOptions(model="", kv_pages=64, msa_kernel=kernel))
    sampling = Sampling(max_new_tokens=4, temperature=0.0)
    requests = [
        Request(rid=str(n), prompt=np.array(text_ids(n, n), dtype=np.uint32), sampling=sampling) for n in (3, 128, 300)
    ]
    for request in requests:
        core.add(request)
    while core.busy:
        core.step()
    return [request.sequences[0].output for request in requests]


def test_the_operators_give_the_same_tokens(big_blocks):
    assert greedy(big_blocks, "reference") == greedy(big_blocks, "torch") == greedy(big_blocks, "auto")


@pytest.mark.parametrize(("name", "why"), [("sm90", "sm_90"), ("magic", "not one of")])
def test_a_kernel_named_that_cannot_do_the_work_is_refused_at_the_start(big_blocks, name, why):
    with pytest.raises(ValueError, match=why):
        Core(big_blocks, EngineOptions(model="", kv_pages=8, msa_kernel=name))


@pytest.mark.parametrize(
    ("wanted", "shape", "dtype", "device", "kernel"),
    [
        ("auto", M3, torch.bfloat16, CUDA, "auto"),
        ("auto", M3, torch.float32, CUDA, None),
        ("auto", M3, torch.bfloat16, CPU, None),
        ("auto", KvShape(2, 32, (0, 32), 16), torch.bfloat16, CUDA, None),
        ("torch", M3, torch.bfloat16, CUDA, None),
        ("reference", M3, torch.float32, CPU, "reference"),
    ],
)
def test_which_kernel(wanted, shape, dtype, device, kernel):
    assert pick_kernel(wanted, shape, 16, MsaConfig(), dtype, device) == kernel


def test_rows_and_width_are_rounded_up_and_filled_with_nothing():
    rows = KernelRows.of("auto", torch.arange(15).view(3, 5), torch.tensor([600, 5, 128]))
    assert rows.table.shape == (4, 8)
    assert rows.lengths.tolist() == [601, 6, 129, 0]
    assert rows.table[1].tolist() == [5, 6, 7, 8, 9, 0, 0, 0]
