"""Latency of one request, from the moment it was due. "No value" is None, never zero.

ttft    first content-bearing event - due. A role-only chunk or a comment is no token.
e2e     end - due
tpot    (last content event - first) / (output_tokens - 1); needs 2 tokens and usage
itl     the gaps between content events, one value per token: a read that brings several events, or an event that
        brings several tokens, counts its tokens at gap / tokens each. Tokens per event =
        (output_tokens - 1) / (events - 1): a chunk is not a token (batched SSE, speculation, hidden reasoning)
queue   send lag of the client itself: sent - due
"""

from __future__ import annotations

from loadtest.reading import Sample


def ttft(s: Sample) -> float | None:
    return s.chunks[0] if s.ok and s.chunks else None


def e2e(s: Sample) -> float | None:
    return s.end if s.ok else None


def tpot(s: Sample) -> float | None:
    if not s.ok or len(s.chunks) < 2 or not s.output_tokens or s.output_tokens < 2:
        return None
    return (s.chunks[-1] - s.chunks[0]) / (s.output_tokens - 1)


def itl(s: Sample) -> list[tuple[float, float]]:
    """(gap per token in seconds, number of tokens it stands for)."""
    if not s.ok or len(s.chunks) < 2 or not s.output_tokens or s.output_tokens < 2:
        return []
    per_event = (s.output_tokens - 1) / (len(s.chunks) - 1)
    out: list[tuple[float, float]] = []
    since, events = s.chunks[0], 0
    for stamp in s.chunks[1:]:
        events += 1
        if stamp > since:
            tokens = events * per_event
            out.append(((stamp - since) / tokens, tokens))
            since, events = stamp, 0
    if events and out:  # the last events came in one read with their predecessor
        gap, tokens = out[-1]
        whole = tokens + events * per_event
        out[-1] = (gap * tokens / whole, whole)
    return out


def queue(s: Sample) -> float:
    return s.send_lag
