"""The exact index agrees with a cache that stores pages, shares them between prompts and evicts leaves, whatever it does."""

from __future__ import annotations

import msgspec
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from gateway.routing.blocks import block_names
from gateway.routing.kv_events.index import ExactIndex
from gateway.routing.kv_events.messages import decode

Path = tuple[int, ...]
prompts = st.lists(st.integers(0, 1), min_size=1, max_size=10)  # a page each: its tokens are one number, repeated
steps = st.lists(st.tuples(st.booleans(), prompts, st.integers(0, 10**6)), max_size=30)


@given(steps=steps, asked=prompts, page=st.sampled_from([2, 4, 6, 8]), block=st.sampled_from([4, 8]))
def test_what_the_index_finds_is_what_the_cache_holds(
    steps: list[tuple[bool, list[int], int]], asked: list[int], page: int, block: int
) -> None:
    held: dict[Path, int] = {}  # pages from the start -> block hash
    index = ExactIndex(block, 10_000, int)
    for number, (store, pages, pick) in enumerate(steps):
        if store:
            new = [tuple(pages[: i + 1]) for i in range(len(pages)) if tuple(pages[: i + 1]) not in held]
            parent = held.get(new[0][:-1]) if new else None
            held.update({path: 100 * number + i for i, path in enumerate(new)})
            tokens = [path[-1] for path in new for _ in range(page)]
            event = {"type": "BlockStored", "block_hashes": [held[p] for p in new], "parent_block_hash": parent,
                     "token_ids": tokens, "block_size": page}  # fmt: skip
        else:
            leaves = [p for p in held if not any(q[:-1] == p for q in held)]
            gone = [leaves[pick % len(leaves)]] if leaves else []
            event = {"type": "BlockRemoved", "block_hashes": [held.pop(p) for p in gone]}
        for decoded in decode(msgspec.msgpack.encode([0.0, [event], None])).events:
            index.apply(decoded)
    tokens = np.repeat(np.array(asked, np.uint32), page)
    depth = next((i for i in range(len(asked), 0, -1) if tuple(asked[:i]) in held), 0)
    assert index.longest(block_names(tokens, (), None, block)) == depth * page // block
    if not held:
        assert len(index) == 0
