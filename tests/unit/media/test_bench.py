"""The bench counts what it says it counts."""

from __future__ import annotations

from gateway.bench.media_cache import measure


def test_each_screenshot_is_fetched_decoded_and_sent_once_with_the_cache_on() -> None:
    turns, pictures = 4, 3
    results = {(r.source, r.cache): r for r in measure(turns, pictures, 160, 96)}
    parts = 1 + 2 + 3 + 3
    for source in ("data", "http"):
        on, off = results[source, "on"], results[source, "off"]
        assert (on.decodes, off.decodes, on.parts) == (pictures, parts, parts)
        assert on.fetches == (pictures if source == "http" else 0) and off.fetches == (parts if source == "http" else 0)
        assert abs(on.rows_sent_mib * parts / pictures - off.rows_sent_mib) < 0.05
