"""The index never exceeds its bound, and its answer is a prefix of what was sent."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gateway.routing.prefix_index import PrefixIndex


def chain(path: list[int]) -> list[bytes]:
    """Names of a path: each stands for everything before it, as block_names makes them."""
    return [repr(path[: i + 1]).encode() for i in range(len(path))]


paths = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=8), min_size=1, max_size=40)


@given(sent=paths, asked=st.lists(st.integers(0, 2), min_size=1, max_size=8), capacity=st.integers(1, 30))
def test_longest_is_right_and_memory_is_bounded(sent: list[list[int]], asked: list[int], capacity: int) -> None:
    index = PrefixIndex(capacity)
    for path in sent:
        index.add("w", chain(path))
        assert len(index) <= capacity
        assert index.longest("w", chain(path)) == min(len(path), capacity)
    names = chain(asked)
    found = index.longest("w", names)
    held = index._workers["w"]
    assert all(n in held for n in names[:found])
    assert found == len(names) or names[found] not in held
    assert index.longest("other", names) == 0
    index.forget("w")
    assert index.longest("w", names) == 0


@given(sent=paths, capacity=st.integers(1, 30))
def test_what_is_held_is_closed_under_prefixes(sent: list[list[int]], capacity: int) -> None:
    index = PrefixIndex(capacity)
    for path in sent:
        index.add("w", chain(path))
    held = {n.decode() for n in index._workers["w"]}
    for name in held:
        path = eval(name)
        assert all(repr(path[: i + 1]) in held for i in range(len(path)))
