"""The packed, tiled attention and the grouped experts against the plain definitions."""

import pytest
import torch

from engine.local import attention
from engine.local.attention import Batch, Segment, dense_attention, sparse_attention
from engine.local.experts import grouped_experts
from engine.local.kv_storage import LayerPages, as_pages
from engine.msa.config import MsaConfig
from engine.msa.reference import attend, block_scores, check_choice, choose_blocks, gather_pages, select_blocks
from tests.unit.engine.harness import model

GROUPS, HEADS, DIM, INDEX_DIM = 2, 8, 16, 12
SEQUENCES = [(1, 1), (40, 1), (300, 1), (17, 17), (301, 44), (530, 9)]
"""(length, how many of the last tokens are queries)"""


def world(block, seed=0):
    """Pages with random contents, NaN where nothing was written, and a packed batch over SEQUENCES."""
    g = torch.Generator().manual_seed(seed)

    def randn(*shape):
        return torch.randn(shape, generator=g)

    blocks = [-(-length // block) for length, _ in SEQUENCES]
    n_pages = sum(blocks) + 3
    layer = LayerPages(
        torch.full((n_pages, GROUPS, block, DIM), float("nan")),
        torch.full((n_pages, GROUPS, block, DIM), float("nan")),
        torch.full((n_pages, block, INDEX_DIM), float("nan")),
    )
    free = torch.randperm(n_pages, generator=g)
    tables, positions, segments, at = [], [], [], 0
    for (length, count), n in zip(SEQUENCES, blocks, strict=True):
        table, free = free[:n], free[n:]
        where = torch.arange(length)
        layer.write(table[where // block], where % block, randn(length, GROUPS, DIM), randn(length, GROUPS, DIM),
                    randn(length, INDEX_DIM))  # fmt: skip
        positions.append(torch.arange(length - count, length))
        tables.append(table)
        if count > 1:
            segments.append(Segment(slice(at, at + count), length - count, table))
        at += count
    singles = [t for t, (_, count) in zip(tables, SEQUENCES, strict=True) if count == 1]
    longest = max(length for length, count in SEQUENCES if count == 1)
    padded = torch.stack([torch.cat([t, t.new_zeros(max(map(len, singles)) - len(t))]) for t in singles])
    batch = Batch(torch.cat(positions), padded, len(singles), longest, segments)
    return layer, tables, batch, randn(at, HEADS, DIM), randn(at, GROUPS, INDEX_DIM)


def one_by_one(layer, tables, q, index_q, config):
    """The reference, sequence by sequence: (rows, keys, values, index keys, positions)."""
    at = 0
    for (length, count), table in zip(SEQUENCES, tables, strict=True):
        k, v = (gather_pages(as_pages(pool), table, length) for pool in (layer.k, layer.v))
        ik = gather_pages(layer.index_k, table, length)
        yield slice(at, at + count), k, v, ik, torch.arange(length - count, length)
        at += count


@pytest.mark.parametrize("tile", [64, 256, 4096])
def test_dense_layers(tile, monkeypatch):
    monkeypatch.setattr(attention, "TILE", tile)
    layer, tables, batch, q, iq = world(16)
    out = dense_attention(q, layer, batch)
    for rows, k, v, _, positions in one_by_one(layer, tables, q, iq, None):
        want, _ = attend(q[rows], k, v, None, positions, MsaConfig())
        torch.testing.assert_close(out[rows], want)


def test_tiles_keep_their_size_on_a_cpu_and_grow_to_a_bound_elsewhere():
    """At 256 keys a tile a GPU spent a long prompt's prefill on launches."""
    cpu, gpu = torch.device("cpu"), torch.device("cuda")
    assert {attention._tile(length, cpu) for length in (1, 300, 1 << 20)} == {256}
    assert [attention._tile(length, gpu) for length in (1, 300, 1 << 20)] == [256, 512, attention.LONG_TILE]


@pytest.mark.parametrize(
    "config", [MsaConfig(16, 4), MsaConfig(16, 6, 1, 2), MsaConfig(5, 3), MsaConfig(16, 64)], ids=str
)
@pytest.mark.parametrize("floats", [1 << 24, 4096], ids=["one-slice", "many-slices"])
def test_sparse_layers(config, floats, monkeypatch):
    monkeypatch.setattr(attention, "GATHER_FLOATS", floats)
    layer, tables, batch, q, iq = world(config.block_size)
    chosen = []
    monkeypatch.setattr(attention, "choose_blocks", lambda *a: chosen.append(choose_blocks(*a)) or chosen[-1])
    out = sparse_attention(q, iq, layer, batch, config)
    blocks = torch.cat(chosen)
    for rows, k, v, ik, positions in one_by_one(layer, tables, q, iq, config):
        check_choice(blocks[rows], block_scores(iq[rows], ik, positions, config), positions, config, eps=1e-5)
        assert torch.equal(blocks[rows], select_blocks(iq[rows], ik, positions, config))
        want, _ = attend(q[rows], k, v, blocks[rows], positions, config)
        torch.testing.assert_close(out[rows], want)


@torch.inference_mode()
@pytest.mark.parametrize("count", [1, 5, 64])
def test_grouped_experts_equal_transformers(count):
    block = model().net.model.language_model.layers[1].mlp
    x = torch.randn(count, 128, generator=torch.Generator().manual_seed(count))
    _, weights, chosen = block.gate(x)
    torch.testing.assert_close(grouped_experts(block.experts, x, chosen, weights), block.experts(x, chosen, weights))
    one = torch.full_like(chosen, 3)  # everybody to one expert, twice
    torch.testing.assert_close(grouped_experts(block.experts, x, one, weights), block.experts(x, one, weights))
