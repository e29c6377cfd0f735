"""Which worker holds which rows: bounded, forgetful, never certain."""

from __future__ import annotations

from gateway.media.residency import Residency


def test_known_after_add_until_forgotten_and_per_worker() -> None:
    residency = Residency()
    residency.add("a", "h1", 10)
    assert residency.known("a", "h1") and not residency.known("b", "h1") and not residency.known("a", "h2")
    residency.forget("a", "h1")
    residency.forget("nobody", "h1")
    assert not residency.known("a", "h1")


def test_a_restarted_worker_is_forgotten_whole() -> None:
    residency = Residency()
    for name in ("h1", "h2"):
        residency.add("a", name)
        residency.add("b", name)
    residency.forget("a")
    assert residency.count("a", ["h1", "h2"]) == 0 and residency.count("b", ["h1", "h2", "h3"]) == 2


def test_bounded_in_bytes_least_recently_used_first() -> None:
    residency = Residency(max_bytes=100)
    residency.add("a", "old", 40)
    residency.add("a", "used", 40)
    residency.add("a", "old", 40)  # added twice counts once
    assert residency.known("a", "used")
    residency.add("a", "new", 40)
    assert [residency.known("a", h) for h in ("old", "used", "new")] == [False, True, True]
    residency.add("a", "giant", 101)
    assert not residency.known("a", "giant") and residency.count("a", ["used", "new"]) == 0


def test_bounded_in_entries_and_workers() -> None:
    residency = Residency(max_entries=3, max_workers=2)
    for number in range(10):
        residency.add("a", str(number))
    assert [h for h in map(str, range(10)) if residency.known("a", h)] == ["7", "8", "9"]
    residency.add("b", "x")
    residency.add("c", "x")
    assert not residency.known("a", "9") and residency.known("b", "x") and residency.known("c", "x")
