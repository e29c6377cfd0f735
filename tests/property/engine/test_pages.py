"""Random life on few pages: whatever happens, the books balance and nobody reads what another one wrote.

The model is replaced by a shadow of the KV memory: each computed token writes what it is into its slot, and before a
sequence computes on, all it has computed so far must still be there."""

from __future__ import annotations

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from engine.local.prefix_cache import PrefixCache
from engine.local.sampling import Sampling
from engine.local.scheduler import Scheduler
from engine.local.sequence import Request, Sequence
from engine.wire import Item

PAGE = 4
PAGES = 12
ITEM_HASHES = ["a" * 64, "b" * 64]


class Life(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.cache = PrefixCache(PAGES)
        self.scheduler = Scheduler(self.cache, PAGE, max_running=3, chunk_tokens=7, step_pairs=100)
        self.memory: dict[tuple[int, int], int] = {}
        self.requests: list[Request] = []
        self.serial = 0

    def open_sequences(self) -> list[Sequence]:
        return [*self.scheduler.running, *self.scheduler.waiting]

    @rule(
        stem=st.integers(0, 2),
        shared=st.integers(0, 20),
        own=st.integers(1, 8),
        count=st.integers(1, 12),
        n=st.integers(1, 2),
        salt=st.sampled_from(["", "x"]),
        priority=st.integers(-1, 1),
        item=st.none() | st.tuples(st.sampled_from(ITEM_HASHES), st.integers(0, 6)),
    )
    def add(
        self, stem: int, shared: int, own: int, count: int, n: int, salt: str, priority: int,
        item: tuple[str, int] | None,
    ) -> None:  # fmt: skip
        """Prompts share stems, so that prefixes meet; the own part differs by what the stem does not fix."""
        ids = [100 * stem + i for i in range(shared)] + [1000 + self.serial * 50 + i for i in range(own)]
        items: tuple[Item, ...] = ()
        if item is not None and item[1] + 4 <= len(ids):
            ids[item[1] : item[1] + 4] = [7] * 4
            items = (Item("image", item[0], "u8", 1, (1, 4, 4), ((item[1], 4),)),)
        count = min(count, PAGES * PAGE - len(ids))
        self.serial += 1
        request = Request(
            rid=str(self.serial),
            prompt=np.array(ids, dtype=np.uint32),
            sampling=Sampling(max_new_tokens=count),
            n=n,
            salt=salt,
            priority=priority,
            items=items,
        )
        self.scheduler.add(request)
        self.requests.append(request)

    def contents(self, s: Sequence, count: int) -> list[int]:
        """What the slots of the first `count` positions must hold; each depends on everything before it."""
        marks = {i.ranges[0][0]: i.hash for i in s.request.items}
        chain, out = hash(s.request.salt), []
        for position, token in enumerate(s.tokens[:count]):
            chain = hash((chain, token, marks.get(position)))
            out.append(chain)
        return out

    def slots(self, s: Sequence, count: int) -> list[tuple[int, int]]:
        return [(s.pages[position // PAGE], position % PAGE) for position in range(count)]

    def verify(self, s: Sequence) -> None:
        held = [self.memory[slot] for slot in self.slots(s, s.computed)]
        assert held == self.contents(s, s.computed), "a slot was overwritten"

    @precondition(lambda self: self.open_sequences())
    @rule()
    def step(self) -> None:
        plan = self.scheduler.plan()
        assert plan, "something is open and nothing runs"
        assert sum(w.count for w in plan if w.count > 1) <= 7
        assert len({w.sequence for w in plan}) == len(plan)
        best = min(self.open_sequences(), key=lambda s: s.rank)
        same = sum(s.request.priority == best.request.priority for s in self.scheduler.running)
        assert best.slot >= 0 or best.index > 0 or same, "the first in order waits for lower priorities"
        for w in plan:
            self.verify(w.sequence)
            end = w.sequence.computed + w.count
            self.memory.update(zip(self.slots(w.sequence, end), self.contents(w.sequence, end), strict=True))
        sampling = [w.sequence for w in plan if w.samples]
        for w in plan:
            self.scheduler.computed(w)
        for s in sampling:
            s.tokens.append(5000 + self.serial * 7 + s.index)
            if s.generated >= s.request.sampling.max_new_tokens:
                s.finish = "length"
                self.scheduler.remove(s)

    @precondition(lambda self: any(r.open for r in self.requests))
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        request = data.draw(st.sampled_from([r for r in self.requests if r.open]))
        for s in request.sequences:
            if s.finish is None:
                s.finish = "abort"
                self.scheduler.remove(s)

    @rule()
    def forget(self) -> None:
        self.cache.clear()
        assert self.cache.cached == 0

    @invariant()
    def books_balance(self) -> None:
        self.scheduler.check()
        for s in self.scheduler.running:
            self.verify(s)
        for r in self.requests:
            if r.cached_tokens is not None:
                assert r.cached_tokens % PAGE == 0
                assert r.cached_tokens < len(r.prompt)

    def teardown(self) -> None:
        """Everything ends, in bounded time, and no page stays in use."""
        for _ in range(2000):
            if not self.open_sequences():
                break
            self.step()
        assert not self.open_sequences(), "it does not come to an end"
        assert self.cache.used == 0
        self.scheduler.check()


Life.TestCase.settings = settings(max_examples=100, stateful_step_count=40)
TestLife = Life.TestCase


def test_unkept_pages_leave_at_once() -> None:
    cache = PrefixCache(4, keep=False)
    page = cache.take()
    assert page is not None
    node = cache.insert("", [], b"k", page)
    cache.unlock([node])
    cache.check()
    assert cache.cached == 0
    assert cache.available == 4


def test_least_recently_used_goes_first_and_far_ends_before_beginnings() -> None:
    cache = PrefixCache(4)
    paths = []
    for salt in ("old", "new"):
        path = []
        for key in (b"1", b"2"):
            page = cache.take()
            assert page is not None
            path.append(cache.insert(salt, path, key, page))
        paths.append(path)
    for path in paths:
        cache.unlock(path)
    cache.lock(cache.match("old", [b"1"]))  # only its beginning is used again
    cache.unlock(cache.match("old", [b"1"]))
    order = []
    for _ in range(4):
        cache.take()
        left = {salt: len(cache.match(salt, [b"1", b"2"])) for salt in ("old", "new")}
        order.append((left["old"], left["new"]))
    assert order == [(1, 2), (1, 1), (1, 0), (0, 0)]


def test_same_content_computed_twice_is_stored_once() -> None:
    cache = PrefixCache(4)
    a, b = cache.take(), cache.take()
    assert a is not None and b is not None
    first = cache.insert("", [], b"k", a)
    second = cache.insert("", [], b"k", b)
    assert first is second
    assert second.page == a
    assert cache.used == 1
    assert cache.insert("other", [], b"k", cache.take() or 0) is not first
    cache.check(locked=[first, first, cache.match("other", [b"k"])[0]])
