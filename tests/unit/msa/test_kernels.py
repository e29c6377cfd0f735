"""Every kernel that runs without a GPU, on the small ugly cases: the CUDA sources under the emulator, Triton's under its
interpreter (in a process of its own: interpreting is decided when kernels are imported), the reference runner itself."""

import os
import subprocess
import sys

import pytest
import torch

from engine.bench.msa_check import HALF, SMALL, check_decode
from engine.msa import dispatch

CPU = torch.device("cpu")
QUICK = {"one_token", "first_choice", "fp8", "small_k", "token_table", "one_token_fp16"}
CASES = [
    pytest.param(case, id=case.name, marks=() if case.name in QUICK else pytest.mark.slow) for case in (*SMALL, *HALF)
]


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("name", ["emulated", "reference"])
def test_kernel_is_right(name, case):
    kernel = dispatch.KERNELS[name]
    refusal = kernel.refuse(case.shape(), CPU)
    if refusal:
        pytest.skip(f"{name}: {refusal}")
    assert check_decode(case, CPU, lambda shape: kernel.make(shape, CPU), seed=11) == []


INTERPRETED = """
import sys
import torch
from engine.bench.msa_check import HALF, check_decode
from engine.msa import dispatch

device, kernel = torch.device("cpu"), dispatch.KERNELS["triton"]
for case in HALF:
    if case.name in ("one_token_fp16", "small_k_fp16", "token_table_fp16"):
        assert kernel.refuse(case.shape(), device) is None
        faults = check_decode(case, device, lambda shape: kernel.make(shape, device), seed=5)
        assert not faults, f"{case.name}: {faults}"
        print(case.name)
"""


def test_triton_kernels_are_right_under_the_interpreter():
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    done = subprocess.run(
        [sys.executable, "-c", INTERPRETED], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.split() == ["one_token_fp16", "token_table_fp16"]


@pytest.mark.slow
def test_extend_equals_the_reference_under_the_interpreter():
    script = (
        "from tests.unit.msa.test_extend import compare_with_reference as c; "
        "c([3, 1], [2180, 130], 'triton', groups=1, heads=1)"
    )
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
