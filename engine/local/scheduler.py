"""Which tokens are computed in the next step, and which pages they go to.

A step holds one token of every decoding sequence and at most `chunk_tokens` prompt tokens, shared fairly between the
prompts being prefilled: short prompts pass long ones, and a long prompt delays a running stream by one chunk at most.
`step_pairs` bounds the (token, earlier token) pairs of those chunks, since late chunks of a long prompt cost more.

Order is by rank: higher priority first, then first come. When pages run out, or places for a request of higher
priority, the lowest-ranked running sequence is preempted: its full pages stay in the prefix cache as long as nobody
needs them, it waits at its old rank, and what is lost is computed again. The highest-ranked sequence can take every
page, and no accepted request needs more than all pages, so it always ends.

Plain Python, no tensors. Not thread-safe.
"""

from __future__ import annotations

import bisect
from dataclasses import dataclass

from engine.local.prefix_cache import PrefixCache
from engine.local.sequence import Request, Sequence


@dataclass(frozen=True, slots=True)
class Work:
    """Compute `count` tokens of `sequence` from its `computed`; pages for them are held."""

    sequence: Sequence
    count: int

    @property
    def samples(self) -> bool:
        """The last of these tokens is the sequence's last, so a next one is sampled."""
        return self.count == self.sequence.pending


class Scheduler:
    def __init__(
        self, cache: PrefixCache, page_size: int, *, max_running: int, chunk_tokens: int, step_pairs: int | None = None
    ) -> None:
        self.cache = cache
        self.page_size = page_size
        self.chunk_tokens = chunk_tokens
        self.step_pairs = step_pairs
        self.max_running = max_running
        self.waiting: list[Sequence] = []
        self.running: list[Sequence] = []
        self._slots = list(range(max_running - 1, -1, -1))
        self._arrivals = 0
        self.preemptions = 0
        self.hit_tokens = 0
        self.asked_tokens = 0

    # ---------------------------------------------------------------------------------------- coming and going
    def add(self, request: Request) -> None:
        self._arrivals += 1
        request.arrival = self._arrivals
        request.sequences = [Sequence(request, i, self.page_size) for i in range(request.n)]
        for s in request.sequences:
            bisect.insort(self.waiting, s, key=_rank)

    def remove(self, sequence: Sequence) -> None:
        """Takes a sequence out, wherever it is, and lets go of its pages."""
        if sequence.slot >= 0:
            self.running.remove(sequence)
            self._release(sequence)
        elif sequence in self.waiting:
            self.waiting.remove(sequence)

    def _release(self, s: Sequence) -> None:
        self.cache.give_back(s.pages[len(s.nodes) :])
        self.cache.unlock(s.nodes)
        self._slots.append(s.slot)
        s.pages, s.nodes, s.slot, s.computed, s.tabled = [], [], -1, 0, 0

    # ---------------------------------------------------------------------------------------- planning
    def plan(self) -> list[Work]:
        """Newcomers are let in, then decodes are planned, then prompt chunks. Empty only when nothing can run."""
        self._admit()
        work = []
        for s in list(self.running):
            if s.slot >= 0 and s.pending == 1:
                if self._reserve(s, 1):
                    work.append(Work(s, 1))
                else:
                    self._preempt(s)
        chunks = self._chunks()
        return _still_running(work) + chunks

    def _chunks(self) -> list[Work]:
        work: list[Work] = []
        budget = self.chunk_tokens
        prefilling = [s for s in self.running if s.pending > 1]
        share = dict.fromkeys(prefilling, 0)
        left = sorted(prefilling, key=lambda s: s.pending)
        for i, s in enumerate(left):  # smallest first: what it does not need goes to the others
            share[s] = min(s.pending, budget, max(1, budget // (len(left) - i)))
            budget -= share[s]
        pairs = self.step_pairs
        for s in prefilling:
            if s.slot < 0 or not share[s]:
                continue
            count = share[s]
            if pairs is not None:
                fair = max(0, pairs) // (s.computed + count)
                count = min(count, fair if work else max(fair, self.page_size))  # the first one always moves on
            count = self._reserve(s, count) if count else 0
            if count:
                work.append(Work(s, count))
                pairs = None if pairs is None else pairs - count * (s.computed + count)
        return _still_running(work)

    def _reserve(self, s: Sequence, count: int) -> int:
        """Pages for the next `count` tokens; returns for how many there are pages. Preempts lower ranks if it must."""
        needed = -(-(s.computed + count) // self.page_size)
        while len(s.pages) < needed:
            page = self.cache.take()
            if page is None:
                victim = self.running[-1]
                if victim is s:
                    break
                self._preempt(victim)
                continue
            s.pages.append(page)
        return min(count, len(s.pages) * self.page_size - s.computed)

    def _preempt(self, s: Sequence) -> None:
        self.running.remove(s)
        self._release(s)
        bisect.insort(self.waiting, s, key=_rank)
        self.preemptions += 1

    def _admit(self) -> None:
        """Moves waiting sequences in, in order. One that does not fit yet holds up those behind it, after running
        ones of lower priority have made room."""
        for s in list(self.waiting):
            leader = s.request.sequences[0]
            if s is not leader and leader.finish is None and leader.generated == 0:
                continue  # the first choice computes the prompt for all of them
            while len(self.running) >= self.max_running or not self._fits(s):
                if self.running[-1].request.priority >= s.request.priority:
                    return
                self._preempt(self.running[-1])
            self.waiting.remove(s)
            bisect.insort(self.running, s, key=_rank)

    def _fits(self, s: Sequence) -> bool:
        """Locks the cached prefix and gives a slot, if all that is left to compute has pages now, and every running
        sequence could still get one more."""
        size = self.page_size
        whole = (len(s.tokens) - 1) // size  # never the last token: it must be computed
        path = self.cache.match(s.request.salt, (s.page_key(p, size) for p in range(whole)))
        self.cache.lock(path)
        needed = -(-len(s.tokens) // size) - len(path)
        if self.running and needed + len(self.running) > self.cache.available:
            self.cache.unlock(path)
            return False
        s.nodes = path
        s.pages = [n.page for n in path]
        s.computed = len(path) * size
        s.slot = self._slots.pop()
        if s.request.cached_tokens is None:
            s.request.cached_tokens = s.computed
            self.hit_tokens += s.computed
            self.asked_tokens += s.prompt_tokens
        return True

    # ---------------------------------------------------------------------------------------- after a step
    def computed(self, work: Work) -> None:
        """Records that the tokens are in the cache; pages that became full go into the tree."""
        s = work.sequence
        s.computed += work.count
        while (len(s.nodes) + 1) * self.page_size <= s.computed:
            i = len(s.nodes)
            key = s.page_key(i, self.page_size)
            s.nodes.append(self.cache.insert(s.request.salt, s.nodes, key, s.pages[i]))
            if s.pages[i] != s.nodes[i].page:  # somebody else had computed the same
                s.pages[i] = s.nodes[i].page
                s.tabled = min(s.tabled, i)

    def check(self) -> None:
        """Raises AssertionError unless the books balance."""
        ranks = [s.rank for s in self.running]
        assert ranks == sorted(ranks)
        assert [s.rank for s in self.waiting] == sorted(s.rank for s in self.waiting)
        assert sorted([*self._slots, *(s.slot for s in self.running)]) == list(range(self.max_running))
        assert all(not s.pages and not s.nodes and not s.computed for s in self.waiting)
        for s in self.running:
            assert [n.page for n in s.nodes] == s.pages[: len(s.nodes)]
            assert len(s.pages) * self.page_size >= s.computed
        self.cache.check(
            private=[p for s in self.running for p in s.pages[len(s.nodes) :]],
            locked=[n for s in self.running for n in s.nodes],
        )


def _still_running(work: list[Work]) -> list[Work]:
    """Without those that had to make room for another one."""
    return [w for w in work if w.sequence.slot >= 0]


def _rank(s: Sequence) -> tuple[int, int, int]:
    return s.rank
