"""Views of other engines' caches, and arguments that are not what they should be."""

import pytest
import torch

from engine.msa.layouts import DecodeShape, MsaArgumentError, PageTable, interleaved, pages_of_slots


def test_token_table_and_page_table_name_the_same_pages():
    pages = torch.tensor([[7, 3, 9], [1, 0, 2]], dtype=torch.int32)
    slots = (pages[:, :, None] * 128 + torch.arange(128)).flatten(1).int()
    pool = torch.zeros(5, 384, dtype=torch.int32)
    pool[[4, 1]] = slots
    for dtype in (torch.int32, torch.int64):
        table = PageTable.of_tokens(pool, torch.tensor([4, 1], dtype=dtype))
        assert table.max_blocks == 3
        assert torch.equal(table.pages(2), pages)
    assert torch.equal(PageTable(pages).pages(2), pages)


def test_views_share_memory_with_the_pool():
    slots = torch.randn(3 * 128 + 5, 2, 16)
    assert pages_of_slots(slots).shape == (3, 128, 2, 16)
    assert pages_of_slots(slots).data_ptr() == slots.data_ptr()
    kv = torch.randn(3, 2, 128, 32)
    k, v = interleaved(kv)
    assert k.shape == v.shape == (3, 128, 2, 16)
    assert torch.equal(k[1, 5, 1], kv[1, 1, 5, :16]) and torch.equal(v[1, 5, 1], kv[1, 1, 5, 16:])


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: PageTable(torch.zeros(2, 2)), "table: dtype is torch.float32"),
        (
            lambda: PageTable(torch.zeros(4, 4, dtype=torch.int32).t()[:, ::2]),
            "table: must be 2-d with contiguous rows",
        ),
        (lambda: PageTable(torch.zeros(2, 2, dtype=torch.int32), torch.zeros(2)), "rows: dtype is torch.float32"),
        (lambda: interleaved(torch.zeros(2, 2, 128, 31)), "kv: shape is"),
        (lambda: pages_of_slots(torch.zeros(2, 128)), "slots: has 2 dimensions"),
        (lambda: DecodeShape(requests=0, groups=4, heads=16), "requests: is 0"),
    ],
)
def test_bad_arguments_name_the_field_and_the_limit(make, text):
    with pytest.raises(MsaArgumentError, match=text):
        make()
