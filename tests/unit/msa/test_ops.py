"""The public operators on a CPU, against the reference."""

import pytest
import torch

from engine.msa import reference
from engine.msa.config import MsaConfig
from engine.msa.layouts import DecodeShape, MsaArgumentError, PageTable
from engine.msa.ops import msa_decode, paged_decode, plan_decode, select_blocks, selected_page_table

CONFIG = MsaConfig()
GROUPS, HEADS = 2, 3


@pytest.fixture
def work():
    generator = torch.Generator().manual_seed(7)

    def numbers(*shape):
        return torch.randn(*shape, generator=generator)

    lengths = torch.tensor([2700, 140, 2304], dtype=torch.int32)
    table = torch.randperm(3 * 22, generator=generator).view(3, 22).int()
    pools = numbers(66, 128, GROUPS, 128), numbers(66, 128, GROUPS, 128), numbers(66, 128, 128)
    return numbers(6, GROUPS * HEADS, 128), numbers(6, GROUPS, 128), *pools, table, lengths


def test_a_step_equals_the_reference(work):
    q, index_q, k, v, index_k, table, lengths = work
    want, want_lse, want_blocks = reference.msa_decode_paged(
        q, index_q, k, v, index_k, table, lengths, CONFIG, queries_per_request=2
    )
    blocks = torch.full((6, GROUPS, 16), -7, dtype=torch.int32)
    lse = torch.full((6, GROUPS * HEADS), float("nan"))
    out = msa_decode(q, index_q, k, v, index_k, PageTable(table), lengths, queries=2, blocks=blocks, lse=lse)
    torch.testing.assert_close(out, want, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(lse, want_lse, rtol=1e-4, atol=1e-4)
    assert torch.equal(blocks, want_blocks)
    assert torch.equal(select_blocks(index_q, index_k, PageTable(table), lengths, queries=2), want_blocks)
    again = paged_decode(q, k, v, want_blocks, PageTable(table), lengths, queries=2)
    torch.testing.assert_close(again, want, rtol=1e-4, atol=1e-5)


def test_attention_skips_empty_slots_and_blocks_after_the_row(work):
    q, _, k, v, _, table, lengths = work
    blocks = torch.tensor([0, 1, 2], dtype=torch.int32).expand(6, GROUPS, 3)
    plain = torch.nn.functional.pad(blocks, (0, 13), value=-1).contiguous()
    odd = plain.clone()
    odd[:, :, 7] = 9999
    odd = odd[..., torch.randperm(16)].contiguous()
    table = PageTable(table)
    first = paged_decode(q, k, v, plain, table, lengths, queries=2)
    assert torch.equal(torch.isfinite(first), torch.ones_like(first, dtype=torch.bool))
    torch.testing.assert_close(paged_decode(q, k, v, odd, table, lengths, queries=2), first, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("heads_in_pages", [False, True])
def test_the_selected_page_table_serves_a_kernel_that_knows_nothing_of_msa(work, heads_in_pages):
    q, index_q, k, v, index_k, table, lengths = work
    blocks = torch.empty(6, GROUPS, 16, dtype=torch.int32)
    want = msa_decode(q, index_q, k, v, index_k, PageTable(table), lengths, queries=2, blocks=blocks)
    pages, held = selected_page_table(blocks, PageTable(table), lengths, queries=2, heads_in_pages=heads_in_pages)
    assert pages.shape == (6 * GROUPS, 16) and pages.dtype == held.dtype == torch.int32
    by_head = [pool.transpose(1, 2).flatten(0, 1) for pool in (k, v)]  # [P G, 128, D]
    for unit in range(6 * GROUPS):
        row, group = divmod(unit, GROUPS)
        if heads_in_pages:
            key, value = (pool[pages[unit].long()].flatten(0, 1)[: held[unit]] for pool in by_head)
        else:
            key, value = (pool[pages[unit].long()][:, :, group].flatten(0, 1)[: held[unit]] for pool in (k, v))
        mine = q[row, group * HEADS : (group + 1) * HEADS]
        plain = torch.nn.functional.scaled_dot_product_attention(
            mine[:, None], key.expand(HEADS, -1, -1), value.expand(HEADS, -1, -1)
        )
        torch.testing.assert_close(plain[:, 0], want[row, group * HEADS : (group + 1) * HEADS], rtol=1e-4, atol=1e-5)


def test_a_request_of_no_tokens_gets_zeros(work):
    q, index_q, k, v, index_k, table, _ = work
    lengths = torch.tensor([0, 140, 0], dtype=torch.int64)
    out = torch.full_like(q[:3], float("nan"))
    msa_decode(q[:3], index_q[:3], k, v, index_k, PageTable(table), lengths, out=out)
    assert (out[[0, 2]] == 0).all() and (out[1] != 0).any()


@pytest.mark.parametrize(
    ("name", "bad", "text"),
    [
        ("q", lambda t: t[:, :-1], r"q: shape is \(6, 5, 128\), the plan is for \(6, 6, 128\)"),
        ("q", lambda t: t.double(), "q: dtype is torch.float64, the plan is for torch.float32"),
        ("index_q", lambda t: t[:5], "index_q: shape is"),
        ("k", lambda t: t[:, :64], "k: shape is"),
        ("v", lambda t: t.half(), "v: dtype is torch.float16"),
        ("index_k", lambda t: t.transpose(0, 1).contiguous().transpose(0, 1), "index_k: strides are"),
        ("lengths", lambda t: t.float(), "lengths: dtype is torch.float32"),
        ("lengths", lambda t: t[:2], r"lengths: shape is \(2,\), the plan is for \(3,\)"),
        ("table", lambda t: t[:2], "table: has 2 rows for 3 requests"),
    ],
)
def test_wrong_arguments_are_named(work, name, bad, text):
    names = ("q", "index_q", "k", "v", "index_k", "table", "lengths")
    given = dict(zip(names, work, strict=True))
    given[name] = bad(given[name])
    plan = plan_decode(
        DecodeShape(3, GROUPS, HEADS, 2, 2816, torch.float32, torch.float32, torch.float32), "cpu", "reference"
    )
    given["table"] = PageTable(given["table"])
    with pytest.raises(MsaArgumentError, match=text):
        plan.decode(**given, out=torch.empty_like(work[0]))
