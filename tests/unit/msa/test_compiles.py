"""The Triton kernels compile for a GPU as they are launched: the interpreter, which the other tests use, accepts more."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest


def test_launches_compile_for_hopper(tmp_path: Path) -> None:
    """A process of its own: whether Triton interprets is decided at import."""
    pytest.importorskip("triton.backends.nvidia")
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"} | {"TRITON_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, "-m", "engine.bench.compile_launches", "--cases", "first_choice,first_chunk"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    for kernel in ("triton_decode._attend_kernel", "triton_extend._choose_kernel", "triton_prefill_select._score_kernel",
                   "triton_block_major._merge_kernel", "triton_union._attend_kernel"):  # fmt: skip
        assert kernel in done.stdout
