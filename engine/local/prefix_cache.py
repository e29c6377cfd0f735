"""Page bookkeeping: a fixed set of pages, and a tree of the ones whose contents are known (the prefix cache).

Every page is in exactly one place:
    free        never used, or given back
    private     held by one sequence, being filled
    in the tree full, shared by any number of sequences; node = one page, edge = what the page holds

An edge is the exact content of the page (token ids, with media replaced by item hashes; see sequence.page_key), so a
hit is never a guess. There is one root per salt: sequences of different salts share nothing.

A sequence locks each node it uses. A node's parent is locked at least as often as the node, so unlocked nodes form
whole subtrees and every unlocked page can be had by evicting leaves, least recently used first. Pages in use are
never evicted.

Plain Python, no tensors. Not thread-safe: only the engine's thread touches it.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterable


class Node:
    """A full page in the tree. Roots have page -1."""

    __slots__ = ("children", "key", "locks", "page", "parent", "salt", "used")

    def __init__(self, key: bytes, page: int, parent: Node | None, salt: str) -> None:
        self.key = key
        self.page = page
        self.parent = parent
        self.salt = salt
        self.children: dict[bytes, Node] = {}
        self.locks = 0
        self.used = 0


class PrefixCache:
    def __init__(self, n_pages: int, *, keep: bool = True) -> None:
        """`keep` False: nothing stays in the tree once it is unlocked."""
        self.n_pages = n_pages
        self._keep = keep
        self._free = list(range(n_pages - 1, -1, -1))
        self._roots: dict[str, Node] = {}
        self._tick = itertools.count(1)
        self._unlocked = 0
        self._in_tree = 0
        # Candidates for eviction: (used, serial, node). Entries go stale and are skipped when popped.
        self._leaves: list[tuple[int, int, Node]] = []
        self.evictions = 0

    # ---------------------------------------------------------------------------------------- counts
    @property
    def available(self) -> int:
        """Pages that `take` can still hand out: free ones and those eviction would free."""
        return len(self._free) + self._unlocked

    @property
    def cached(self) -> int:
        """Pages in the tree that nobody uses right now."""
        return self._unlocked

    @property
    def used(self) -> int:
        """Pages held by sequences, shared ones counted once."""
        return self.n_pages - self.available

    # ---------------------------------------------------------------------------------------- pages
    def take(self) -> int | None:
        """A page to fill, or None when all are in use."""
        if not self._free and not self._evict():
            return None
        return self._free.pop()

    def give_back(self, pages: Iterable[int]) -> None:
        self._free.extend(pages)

    # ---------------------------------------------------------------------------------------- the tree
    def match(self, salt: str, keys: Iterable[bytes]) -> list[Node]:
        """The longest path whose edges are `keys` in order. Not locked yet: lock before the next `take`."""
        node = self._roots.get(salt)
        path: list[Node] = []
        if node is None:
            return path
        for key in keys:
            node = node.children.get(key)
            if node is None:
                break
            path.append(node)
        return path

    def lock(self, nodes: Iterable[Node]) -> None:
        for node in nodes:
            if node.locks == 0:
                self._unlocked -= 1
            node.locks += 1
            node.used = next(self._tick)

    def unlock(self, nodes: list[Node]) -> None:
        """Releases a path, deepest first, so that the far end of a prefix is evicted before its beginning."""
        for node in reversed(nodes):
            node.locks -= 1
            if node.locks == 0:
                self._unlocked += 1
                node.used = next(self._tick)
                if not node.children:
                    self._offer(node)
        while not self._keep and self._evict():
            pass

    def insert(self, salt: str, path: list[Node], key: bytes, page: int) -> Node:
        """Puts a full private page under the last node of `path` and locks it. If the tree already holds that content,
        `page` is given back and the node found is returned: the caller goes on with `node.page`."""
        parent = path[-1] if path else self._roots.setdefault(salt, Node(b"", -1, None, salt))
        node = parent.children.get(key)
        if node is None:
            node = parent.children[key] = Node(key, page, parent, salt)
            self._in_tree += 1
            self._unlocked += 1  # until the lock below
        else:
            self._free.append(page)
        self.lock([node])
        return node

    def clear(self) -> None:
        """Forgets everything nobody uses."""
        while self._evict():
            pass

    def _offer(self, node: Node) -> None:
        heapq.heappush(self._leaves, (node.used, next(self._tick), node))

    def _evict(self) -> bool:
        while self._leaves:
            used, _, node = heapq.heappop(self._leaves)
            parent = node.parent
            if node.locks or node.children or parent is None or node.used != used:
                continue
            del parent.children[node.key]
            node.parent = None
            self._free.append(node.page)
            self._in_tree -= 1
            self._unlocked -= 1
            self.evictions += 1
            if parent.parent is None:
                if not parent.children:
                    del self._roots[parent.salt]
            elif not parent.children and not parent.locks:
                self._offer(parent)
            return True
        return False

    # ---------------------------------------------------------------------------------------- invariants
    def check(self, private: Iterable[int] = (), locked: Iterable[Node] = ()) -> None:
        """Raises AssertionError unless the books balance. `private`: pages held by sequences outside the tree, one
        entry per holder; `locked`: every node held by a sequence, one entry per holder."""
        nodes: list[Node] = []
        stack = list(self._roots.values())
        while stack:
            node = stack.pop()
            for key, child in node.children.items():
                assert child.key == key and child.parent is node and child.salt == node.salt
                assert node.page == -1 or node.locks >= child.locks, "a parent is locked less often than its child"
                nodes.append(child)
                stack.append(child)
        assert all(r.children for r in self._roots.values()), "an empty root was kept"
        places = [*self._free, *private, *(n.page for n in nodes)]
        assert sorted(places) == list(range(self.n_pages)), "a page is lost or in two places"
        holders: dict[int, int] = {}
        for node in locked:
            holders[id(node)] = holders.get(id(node), 0) + 1
        for node in nodes:
            assert node.locks == holders.pop(id(node), 0), "locks do not match the holders"
        assert not holders, "a held node is not in the tree"
        assert self._in_tree == len(nodes)
        assert self._unlocked == sum(n.locks == 0 for n in nodes)
        offered = {id(n) for used, _, n in self._leaves if used == n.used}
        for node in nodes:
            if node.locks == 0 and not node.children:
                assert id(node) in offered, "a leaf nobody uses cannot be evicted"
