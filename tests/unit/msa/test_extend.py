"""New tokens behind prefixes: the packed operator against the reference, and its plan's arguments."""

import pytest
import torch

from engine.msa import reference
from engine.msa.config import MsaConfig
from engine.msa.extend import plan_prefill
from engine.msa.layouts import MsaArgumentError, PageTable


def compare_with_reference(new, lengths, kernel, dtype=torch.float16, groups=2, heads=3):
    generator = torch.Generator().manual_seed(3)
    need = [-(-n // 128) for n in lengths]
    pages = sum(need) + 2
    table = torch.full((len(new), max(need)), -1, dtype=torch.int32)
    free = torch.randperm(pages, generator=generator).int()
    for r, n in enumerate(need):
        table[r, :n], free = free[:n], free[n:]
    rows = sum(new)
    sizes = [(rows, groups * heads, 128), (rows, groups, 128), *[(pages, 128, groups, 128)] * 2, (pages, 128, 128)]
    q, index_q, k, v, index_k = (torch.randn(*size, generator=generator).to(dtype) for size in sizes)
    for r, n in enumerate(lengths):
        if n % 128:  # what lies behind the last token must not matter
            for pool in (k, v, index_k):
                pool[table[r, n // 128], n % 128 :] = float("nan")
    plan = plan_prefill(
        new,
        lengths,
        groups=groups,
        heads=heads,
        device="cpu",
        query_dtype=dtype,
        kv_dtype=dtype,
        index_dtype=dtype,
        kernel=kernel,
    )
    out = torch.full_like(q, float("nan"))
    blocks = torch.full((rows, groups, 16), -7, dtype=torch.int32)
    plan.extend(q, index_q, k, v, index_k, PageTable(table), out=out, blocks=blocks)
    bounds = torch.tensor([0, *torch.tensor(new).cumsum(0).tolist()])
    wide = [t.float() for t in (q, index_q, k, v, index_k)]
    want, _, want_blocks = reference.msa_prefill_paged(*wide, table, bounds, torch.tensor(lengths), MsaConfig())
    assert torch.equal(blocks, want_blocks)
    torch.testing.assert_close(out.float(), want, rtol=1e-2, atol=2e-3)


def test_packed_requests_equal_the_reference():
    compare_with_reference([40, 7, 1], [2600, 130, 2049], "reference", torch.float32)


@pytest.mark.parametrize(
    ("new", "lengths", "text"),
    [
        ([3], [2], r"new_tokens\[0\]: is 3, it must be from 1 to the length, 2"),
        ([1, 0], [5, 5], r"new_tokens\[1\]: is 0"),
        ([], [], "new_tokens: 0 for 0 lengths"),
        ([1], [1, 2], "new_tokens: 1 for 2 lengths"),
    ],
)
def test_bad_batches_are_named(new, lengths, text):
    with pytest.raises(MsaArgumentError, match=text):
        plan_prefill(new, lengths, groups=2, heads=2, device="cpu")
