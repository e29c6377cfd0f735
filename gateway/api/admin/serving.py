"""Engines as an operator sees them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any
from urllib.parse import urlsplit

from gateway.routing.router import Router
from gateway.routing.worker import Worker


def engines(routers: Iterable[Router]) -> list[dict[str, Any]]:
    return [d for r in routers for d in (*(describe(r, w) for w in r.workers), *(_leaving(r, w) for w in r.leaving))]


def describe(routing: Router, worker: Worker) -> dict[str, Any]:
    """`state`: up, down or draining. `ejected`: left alone for being far from its peers. `pending_tokens`: prompt tokens sent
    and not yet computed; `resident_tokens`: context of what runs there; `load`: what the engine says it runs and queues, from
    all its clients; `indexed_tokens`: prefix tokens it is believed to cache, by its own KV events (`index` is exact) or by
    what was sent there (guess)."""
    url = urlsplit(worker.client.url)
    return {
        "name": worker.name,
        "url": f"{url.scheme}://{url.netloc.rpartition('@')[2]}",
        "state": "draining" if worker.draining else "up" if worker.healthy else "down",
        "healthy": worker.healthy,
        "breaker": worker.breaker,
        "ejected": worker.ejected,
        "in_flight": worker.in_flight,
        "pending_tokens": worker.pending_tokens,
        "resident_tokens": worker.resident_tokens,
        "load": worker.reported_load,
        "context_length": worker.context_length,
        "index": "exact" if routing.index_is_exact(worker.name) else "guess",
        "indexed_tokens": routing.indexed_tokens(worker.name),
    }


def _leaving(routing: Router, worker: Worker) -> dict[str, Any]:
    """Removed from the list, with streams that still run."""
    return {**describe(routing, worker), "state": "leaving"}
