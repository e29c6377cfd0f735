"""Other engines' kernels in the bench, as far as that goes without their wheels and without a GPU: what is missing is named,
arguments arrive in the peer's layouts, and a peer that is wrong is found out. With VLLM_FOLDER set, vLLM's own kernels too."""

import argparse
import os
import subprocess
import sys

import pytest
import torch

from engine.bench.msa_prefill import PrefillCase
from engine.bench.peers import PeerUnavailableError, in_our_order, measure, sglang, vllm
from engine.bench.peers.check import decode_fault, main, prefill_fault
from engine.bench.timing import Timing
from engine.msa import dispatch
from engine.msa.layouts import PageTable, PrefillBatch, interleaved
from engine.msa.oracle_decode import ReferenceRunner

CPU = torch.device("cpu")
FOLDER = os.environ.get("VLLM_FOLDER", "")
# What vLLM's two files must offer and what they import, with our reference behind it.
INDEX = """
import torch
from vllm.platforms import current_platform
from vllm.triton_utils import tl, triton
from vllm.utils.math_utils import round_up
from tests.unit.msa import test_peers as theirs

assert round_up(1, 16) == 16 and not current_platform.is_device_capability((12, 0))
minimax_m3_index_decode = theirs.index_decode
minimax_m3_index_score = theirs.index_score
minimax_m3_index_topk = theirs.index_topk
"""
ATTENTION = """
from vllm.triton_utils import tl, triton
from tests.unit.msa import test_peers as theirs

minimax_m3_sparse_attn = theirs.sparse_attn
minimax_m3_sparse_attn_decode = theirs.sparse_attn_decode
"""


def reference(rows, groups, heads, queries, dtype):
    from engine.msa.layouts import DecodeShape

    return ReferenceRunner(DecodeShape(rows // queries, groups, heads, queries, query_dtype=dtype), CPU)


def index_decode(
    idx_q, index_kv_cache, block_table, seq_lens, max_seq_len, topk, init_blocks, local_blocks, num_kv_heads, decode_query_len,
    max_decode_query_len, out=None,
):  # fmt: skip
    assert (topk, init_blocks, local_blocks, num_kv_heads) == (
        16,
        0,
        1,
        idx_q.shape[1],
    ) and max_seq_len >= seq_lens.max()
    blocks = torch.empty(len(idx_q), num_kv_heads, topk, dtype=torch.int32)
    runner = reference(len(idx_q), num_kv_heads, 1, decode_query_len, idx_q.dtype)
    runner.select(idx_q, index_kv_cache, PageTable(block_table), seq_lens, blocks)
    out.copy_(blocks.transpose(0, 1).flip(-1))


def index_score(
    idx_q, index_kv_cache, block_table, cu_seqlens_q, seq_lens, prefix_lens, max_query_len, max_seq_len, num_kv_heads
):
    new, lengths = cu_seqlens_q.diff().tolist(), seq_lens.tolist()
    assert torch.equal(seq_lens - prefix_lens, cu_seqlens_q.diff()) and (max(new), max(lengths)) == (
        max_query_len,
        max_seq_len,
    )
    batch = PrefillBatch(tuple(new), tuple(lengths), num_kv_heads, 1)
    blocks = torch.empty(len(idx_q), num_kv_heads, 16, dtype=torch.int32)
    dispatch.SELECT["reference"].make(batch, CPU).run(idx_q, index_kv_cache, PageTable(block_table), blocks)
    return blocks


def index_topk(score, cu_seqlens_q, prefix_lens, max_query_len, topk, init_blocks, local_blocks, out=None):
    assert (topk, init_blocks, local_blocks) == (16, 0, 1)
    out.copy_(score.transpose(0, 1).flip(-1))


def sparse_attn_decode(
    q,
    kv_cache,
    topk_idx,
    block_table,
    seq_lens,
    num_kv_heads,
    sm_scale,
    output,
    decode_query_len,
    k_scale=None,
    v_scale=None,
):
    runner = reference(len(q), num_kv_heads, q.shape[1] // num_kv_heads, decode_query_len, q.dtype)
    k, v = interleaved(kv_cache)
    runner.attend(q, k, v, in_our_order(topk_idx), PageTable(block_table), seq_lens, output, scale=sm_scale)


def sparse_attn(
    q, kv_cache, topk_idx, block_table, cu_seqlens_q, seq_lens, prefix_lens, max_query_len, num_kv_heads, sm_scale, output,
    k_scale=None, v_scale=None,
):  # fmt: skip
    new = tuple(cu_seqlens_q.diff().tolist())
    batch = PrefillBatch(new, tuple(seq_lens.tolist()), num_kv_heads, q.shape[1] // num_kv_heads, q.dtype)
    k, v = interleaved(kv_cache)
    table = PageTable(block_table)
    dispatch.PREFILL["reference"].make(batch, CPU).attend(
        q, k, v, in_our_order(topk_idx), table, output, scale=sm_scale
    )


@pytest.fixture
def functions(tmp_path, monkeypatch):
    ops = tmp_path / "vllm/models/minimax_m3/common/ops"
    ops.mkdir(parents=True)
    (ops / "index_topk.py").write_text(INDEX)
    (ops / "sparse_attn.py").write_text(ATTENTION)
    yield vllm.load(tmp_path, pdl=False)
    for name in [name for name in sys.modules if name.partition(".")[0] == "vllm"]:
        del sys.modules[name]


def test_a_folder_without_the_kernels_is_named(tmp_path):
    with pytest.raises(
        PeerUnavailableError, match=r"has no index_topk.py and no sparse_attn.py: is this vLLM 0.33.0\?"
    ):
        vllm.load(tmp_path)
    with pytest.raises(PeerUnavailableError, match="is this SGLang"):
        sglang.load(tmp_path)
    assert "vllm" not in sys.modules


def test_another_version_is_named(tmp_path, functions):
    (tmp_path / "vllm/models/minimax_m3/common/ops/sparse_attn.py").write_text("minimax_m3_sparse_attn = None")
    del sys.modules["vllm.models.minimax_m3.common.ops.sparse_attn"]
    with pytest.raises(PeerUnavailableError, match="has no minimax_m3_sparse_attn_decode: is this vLLM"):
        vllm.load(tmp_path)


def test_a_peer_that_cannot_be_loaded_is_told_and_counted(tmp_path, capsys):
    found, lost = measure.load_peers(argparse.Namespace(sglang=None, vllm=tmp_path))
    assert (found, lost) == ({}, ["vllm"]) and capsys.readouterr().err.startswith("vllm: ")
    assert main(["--compile", "--vllm", str(tmp_path)]) == 2


def test_choices_come_into_our_order():
    theirs = torch.tensor([[[7, 3, 5, -1]], [[2, -1, -1, -1]]], dtype=torch.int32)  # [2 groups, 1 row, 4]
    assert in_our_order(theirs).tolist() == [[[3, 5, 7, -1], [2, -1, -1, -1]]]


def test_the_cache_keeps_the_order_in_memory_of_the_keys():
    k, v = (torch.arange(3 * 128 * 2 * 4.0).view(3, 128, 2, 4) + n for n in (0, 0.5))
    by_head = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in (k, v)]
    for keys, strides in (((k, v), (2048, 8, 16, 1)), (by_head, (2048, 1024, 8, 1))):
        cache = vllm.cache_of(*keys)
        assert cache.shape == (3, 2, 128, 8) and cache.stride() == strides
        assert all(torch.equal(a, b) for a, b in zip(interleaved(cache), (k, v), strict=True))


def test_calls_reach_the_functions_of_the_folder_and_are_right(functions):
    assert decode_fault(functions, (300, 2177), 1, "nhd") is None
    assert decode_fault(functions, (2600, 2177), 2, "hnd") is None
    assert prefill_fault(functions, PrefillCase(2, 3, 2180), 2) is None


def test_prefill_is_measured_and_a_wrong_output_is_a_fault(functions, monkeypatch):
    def once(call, sets, **_):
        call(sets - 1)
        return Timing(1.0, 0.0)

    monkeypatch.setattr(measure, "time_graph", once)
    monkeypatch.setitem(dispatch.SELECT, "split", dispatch.SELECT["reference"])
    case = PrefillCase(1, 9, 2200)
    row = measure.measure_prefill("vllm", functions, case, CPU, 3)
    assert row == {"same_choice": 1.0, "select": 1.0, "attend": 1.0, "score": 1.0}
    functions.prefill_attend = lambda output, **_: output.zero_()
    assert "output error" in measure.measure_prefill("vllm", functions, case, CPU, 3)["fault"]


@pytest.mark.slow
@pytest.mark.skipif(not FOLDER, reason="VLLM_FOLDER does not name an unpacked wheel")
@pytest.mark.parametrize("how", [[], ["--compile"]])
def test_vllms_own_kernels(how):
    command = [sys.executable, "-m", "engine.bench.peers.check", "--vllm", FOLDER, *how]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
