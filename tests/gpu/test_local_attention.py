"""The embedded engine's dense attention on a GPU, where tiles are longer than on a CPU. Skipped without one."""

import pytest
import torch

from engine.local.attention import LONG_TILE, Batch, Segment, dense_attention
from engine.local.kv_storage import LayerPages, as_pages
from engine.msa.config import MsaConfig
from engine.msa.reference import attend, gather_pages

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


@pytest.mark.parametrize("length", [100, 700, LONG_TILE, 2 * LONG_TILE + 77])
def test_dense_attention_over_short_and_several_tiles(length):
    """A single token and a chunk, over pages whose unwritten rest is NaN."""
    device, groups, dim, count = torch.device("cuda"), 2, 64, 70
    blocks = -(-length // 128)
    layer = LayerPages(*(torch.full((2 * blocks, groups, 128, dim), float("nan"), device=device) for _ in "kv"), None)
    pages, where = torch.randperm(2 * blocks, device=device), torch.arange(length, device=device)
    tables = pages[:blocks], pages[blocks:]
    for table in tables:
        layer.write(
            table[where // 128], where % 128, *(torch.randn(length, groups, dim, device=device) for _ in "kv"), None
        )
    q = torch.randn(1 + count, 8, dim, device=device)
    positions = torch.cat([where[-1:], where[-count:]])
    batch = Batch(positions, tables[0][None], 1, length, [Segment(slice(1, 1 + count), length - count, tables[1])])
    out = dense_attention(q, layer, batch)
    for rows, table in zip((slice(0, 1), slice(1, 1 + count)), tables, strict=True):
        k, v = (gather_pages(as_pages(pool), table, length) for pool in (layer.k, layer.v))
        want, _ = attend(q[rows], k, v, None, positions[rows], MsaConfig())
        torch.testing.assert_close(out[rows], want, rtol=1e-4, atol=1e-5)
