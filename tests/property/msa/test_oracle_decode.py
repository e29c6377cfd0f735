"""The large-case oracle says what the readable reference says, on random shapes, permutations and lengths."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.msa import reference
from engine.msa.config import MsaConfig
from engine.msa.layouts import PageTable
from engine.msa.oracle_decode import ReferenceRunner, attend_blocks, choice_fault, paged_block_scores, row_lengths

configs = st.builds(
    lambda size, k, init, local: MsaConfig(size, max(k, init + local), init, local),
    st.sampled_from([8, 16]),
    st.integers(1, 6),
    st.integers(0, 2),
    st.integers(1, 2),
)


@st.composite
def works(draw):
    config = draw(configs)
    queries = draw(st.integers(1, 4))
    lengths = draw(st.lists(st.integers(queries, 12 * config.block_size), min_size=1, max_size=3))
    groups, heads = draw(st.sampled_from([(1, 2), (2, 1), (4, 2)]))
    seed = draw(st.integers(0, 1 << 20))
    ties = draw(st.booleans())
    return config, queries, lengths, groups, heads, seed, ties


def build(config, queries, lengths, groups, heads, seed, ties, dim=8):
    generator = torch.Generator().manual_seed(seed)
    need = [-(-n // config.block_size) for n in lengths]
    pages = sum(need) + 1
    free = torch.randperm(pages, generator=generator).int()
    table = torch.full((len(lengths), max(need)), -1, dtype=torch.int32)
    for r, n in enumerate(need):
        table[r, :n], free = free[:n], free[n:]
    rows = len(lengths) * queries
    sizes = [(rows, groups * heads, dim), (rows, groups, dim)]
    sizes += [(pages, config.block_size, groups, dim)] * 2 + [(pages, config.block_size, dim)]
    q, index_q, k, v, index_k = (torch.randn(*size, generator=generator) for size in sizes)
    if ties:
        index_k = index_k[:1, :1].expand_as(index_k).contiguous()
    for r, n in enumerate(lengths):
        if n % config.block_size:
            for pool in (k, v, index_k):
                pool[table[r, n // config.block_size], n % config.block_size :] = float("nan")
    return q, index_q, k, v, index_k, table, torch.tensor(lengths, dtype=torch.int32)


@settings(max_examples=60)
@given(works())
def test_the_runner_equals_the_reference(work):
    config, queries, lengths, groups, *_ = work
    q, index_q, k, v, index_k, table, ends = build(*work)
    want, want_lse, want_blocks = reference.msa_decode_paged(
        q, index_q, k, v, index_k, table, ends, config, queries_per_request=queries
    )

    class Shape:
        rows, lengths_per_row = len(lengths) * queries, False

    Shape.queries, Shape.groups, Shape.config = queries, groups, config
    out, lse = torch.full_like(q, float("nan")), torch.full(q.shape[:2], float("nan"))
    blocks = torch.full_like(want_blocks, -7)
    ReferenceRunner(Shape, q.device).decode(
        q, index_q, k, v, index_k, PageTable(table), ends, out, scale=q.shape[-1] ** -0.5, lse=lse, blocks=blocks
    )
    scores = paged_block_scores(index_q, index_k, PageTable(table), ends, queries)
    rows = row_lengths(ends, queries)
    assert choice_fault(blocks, scores, rows, config, 1e-4) is None
    assert choice_fault(want_blocks, scores, rows, config, 1e-4) is None
    mine, mine_lse = attend_blocks(q, k, v, want_blocks, PageTable(table), rows, queries, q.shape[-1] ** -0.5)
    torch.testing.assert_close(mine, want, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(mine_lse, want_lse, rtol=1e-4, atol=1e-4)
    if torch.equal(blocks, want_blocks):
        torch.testing.assert_close(out, want, rtol=1e-4, atol=1e-5)


@settings(max_examples=40)
@given(works(), st.randoms(use_true_random=False))
def test_a_spoiled_choice_is_noticed(work, random):
    config, queries, *_, ties = work
    _, index_q, _, _, index_k, table, ends = build(*work)
    scores = paged_block_scores(index_q, index_k, PageTable(table), ends, queries)
    rows = row_lengths(ends, queries)
    good = reference.choose_blocks(torch.nan_to_num(scores, neginf=float("-inf")), rows - 1, config)
    assert choice_fault(good, scores, rows, config, 1e-4) is None
    row = random.randrange(good.shape[0])
    bad = good.clone()
    bad[row, 0] = -1  # the own block at least is missing
    assert choice_fault(bad, scores, rows, config, 1e-4) is not None
    bad = good.clone()
    bad[row, 0, 0] = scores.shape[-1]
    assert choice_fault(bad, scores, rows, config, 1e-4) is not None
    own = int(rows[row] - 1) // config.block_size
    free = config.topk_blocks - config.init_blocks - config.local_blocks
    if not ties and free > 0 and own + 1 > config.topk_blocks + config.local_blocks:
        forced = set(range(config.init_blocks)) | set(range(own - config.local_blocks + 1, own + 1))
        order = [b for b in scores[row, 0].argsort().tolist() if b <= own and b not in forced]
        bad = good.clone()
        bad[row, 0] = torch.tensor(
            sorted(forced | set(order[:free])), dtype=torch.int32
        )  # the worst instead of the best
        assert choice_fault(bad, scores, rows, config, 1e-4) is not None
