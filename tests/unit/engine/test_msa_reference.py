"""The oracle against a loop that anybody can check, and against dense attention where both must agree."""

import math

import pytest
import torch

from engine.msa.config import MsaConfig
from engine.msa.reference import (
    attend,
    block_scores,
    check_choice,
    gather_pages,
    msa,
    msa_decode_paged,
    msa_prefill_paged,
    select_blocks,
)

SMALL = MsaConfig(block_size=4, topk_blocks=3)


def draw(n_queries, n_keys, groups=2, heads=6, dim=8, index_dim=5, seed=0, dtype=torch.float64):
    g = torch.Generator().manual_seed(seed)
    shapes = {
        "q": (n_queries, heads, dim),
        "k": (n_keys, groups, dim),
        "v": (n_keys, groups, dim),
        "index_q": (n_queries, groups, index_dim),
        "index_k": (n_keys, index_dim),
    }
    return {name: torch.randn(shape, generator=g, dtype=dtype) for name, shape in shapes.items()}


def by_hand(x, positions, c):
    """One query, one head, one key at a time."""
    out = torch.zeros_like(x["q"])
    per_group = x["q"].shape[1] // x["k"].shape[1]
    for t, i in enumerate(positions.tolist()):
        for h in range(x["q"].shape[1]):
            g = h // per_group
            own = i // c.block_size
            best = {}
            for j in range(i + 1):
                b = j // c.block_size
                best[b] = max(best.get(b, -math.inf), float(x["index_q"][t, g].float() @ x["index_k"][j].float()))
            forced = set(range(min(c.init_blocks, own + 1))) | set(range(max(0, own - c.local_blocks + 1), own + 1))
            ranking = sorted(best, key=lambda b: (b not in forced, -best[b]))
            chosen = set(ranking[: c.topk_blocks])
            keys = [j for j in range(i + 1) if j // c.block_size in chosen]
            weights = torch.stack([x["q"][t, h] @ x["k"][j, g] for j in keys]) / math.sqrt(x["q"].shape[-1])
            out[t, h] = weights.softmax(0) @ x["v"][keys, g]
    return out


@pytest.mark.parametrize(
    "c", [SMALL, MsaConfig(4, 3, 1, 1), MsaConfig(4, 3, 0, 2), MsaConfig(5, 1), MsaConfig(3, 4, 2, 2)], ids=str
)
@pytest.mark.parametrize(("first", "count"), [(0, 37), (20, 17), (36, 1)])
def test_matches_a_loop_over_single_keys(c, first, count):
    x = draw(count, 37)
    positions = torch.arange(first, first + count)
    out, _, blocks = msa(**x, positions=positions, config=c)
    torch.testing.assert_close(out, by_hand(x, positions, c))
    check_choice(blocks, block_scores(x["index_q"], x["index_k"], positions, c), positions, c)


def test_own_block_is_the_last_valid_one_and_empty_slots_follow():
    x = draw(30, 30)
    positions = torch.arange(30)
    blocks = select_blocks(x["index_q"], x["index_k"], positions, SMALL)
    for t in range(30):
        for g in range(2):
            valid = blocks[t, g][blocks[t, g] >= 0].tolist()
            assert valid == sorted(valid)
            assert valid[-1] == t // 4
            assert blocks[t, g, len(valid) :].tolist() == [-1] * (3 - len(valid))


def test_equals_dense_attention_while_all_blocks_fit():
    x = draw(12, 12)
    positions = torch.arange(12)
    sparse, lse, _ = msa(**x, positions=positions, config=SMALL)
    dense, dense_lse = attend(x["q"], x["k"], x["v"], None, positions, SMALL)
    torch.testing.assert_close(sparse, dense)
    torch.testing.assert_close(lse, dense_lse)


def test_nan_index_keys_rank_last_but_never_crash():
    x = draw(1, 20)
    x["index_k"][4:8] = math.nan
    positions = torch.tensor([19])
    assert 1 not in select_blocks(x["index_q"], x["index_k"], positions, SMALL).unique().tolist()


def test_pages_in_any_order_with_rubbish_behind_the_end():
    c = SMALL
    lengths, counts = [9, 30, 1], [9, 3, 1]
    cu = torch.tensor([0, 9, 12, 13], dtype=torch.int32)
    pages = torch.randperm(16, generator=torch.Generator().manual_seed(3))
    table = torch.full((3, 9), -1, dtype=torch.int32)
    pools = {n: torch.full((16, 4, *s), math.nan, dtype=torch.float64) for n, s in
             {"k_pages": (2, 8), "v_pages": (2, 8), "index_k_pages": (5,)}.items()}  # fmt: skip
    want, queries, used = [], [], 0
    for r, (length, count) in enumerate(zip(lengths, counts, strict=True)):
        x = draw(count, length, seed=r)
        for b in range(-(-length // 4)):
            page = pages[used].item()
            used += 1
            table[r, b] = page
            for pool, name in (("k_pages", "k"), ("v_pages", "v"), ("index_k_pages", "index_k")):
                part = x[name][b * 4 : b * 4 + 4]
                pools[pool][page, : len(part)] = part
        assert torch.equal(gather_pages(pools["k_pages"], table[r], length), x["k"])
        want.append(msa(**x, positions=torch.arange(length - count, length), config=c))
        queries.append((x["q"], x["index_q"]))
    q, iq = (torch.cat(parts) for parts in zip(*queries, strict=True))
    lengths_t = torch.tensor(lengths, dtype=torch.int32)
    got = msa_prefill_paged(q, iq, **pools, page_table=table, cu_q=cu, lengths=lengths_t, config=c)
    for mine, theirs in zip(got, zip(*want, strict=True), strict=True):
        torch.testing.assert_close(mine, torch.cat(theirs))
    last = torch.tensor([8, 11, 12])
    step = msa_decode_paged(q[last], iq[last], **pools, page_table=table, lengths=lengths_t, config=c)
    torch.testing.assert_close(step[0], got[0][last])
    assert torch.equal(step[2], got[2][last])


@pytest.mark.parametrize("bad", [(0, 1, 0, 1), (4, 1, 0, 0), (4, 1, -1, 1), (4, 2, 2, 1)])
def test_impossible_configurations_are_refused(bad):
    with pytest.raises(ValueError, match="block"):
        MsaConfig(*bad)
