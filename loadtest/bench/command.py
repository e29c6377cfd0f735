"""Runs each client in turn against a fresh truth server, several rounds, and prints what each reported minus the truth."""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from loadtest.bench.clients import bare, ours
from loadtest.bench.peers import peers
from loadtest.bench.truth import PeerError, Seen, truth, truth_server

OURS = "catalejo"
Client = Callable[[str, int], Seen]


@dataclass(frozen=True, slots=True)
class Errors:
    """One run's report minus the server's truth. `missing`: requests the server answered and the client did not report."""

    ttft_mean_ms: float
    ttft_p99_ms: float
    itl_mean_share: float
    requests: int
    missing: int
    valid: bool | None


def errors(seen: Seen, real: Seen) -> Errors:
    return Errors(
        seen.ttft_mean - real.ttft_mean,
        seen.ttft_p99 - real.ttft_p99,
        seen.itl_mean / real.itl_mean - 1,
        seen.requests,
        real.requests - seen.requests,
        seen.valid,
    )


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def measure(streams: int, repeats: int, clients: dict[str, Client]) -> dict[str, list[Errors]]:
    """Each client in turn, `repeats` times round, each against a fresh server. A peer that fails is taken out of `clients`."""
    out: dict[str, list[Errors]] = {name: [] for name in clients}
    for number in range(repeats):
        for name, client in list(clients.items()):
            with truth_server() as url:
                try:
                    found = errors(client(url, streams), truth(url))
                except PeerError as e:
                    _say(f"{name}: did not run here, left out: {e}")
                    del clients[name], out[name]
                    continue
            if found.missing:
                _say(
                    f"{name}: reported {found.requests} requests, the server answered {found.requests + found.missing}"
                )
            _say(f"{streams} streams, round {number + 1}, {name}: TTFT mean {found.ttft_mean_ms:+.2f} ms")
            out[name].append(found)
    return out


def medians(runs: list[Errors]) -> dict[str, Any]:
    names = ("ttft_mean_ms", "ttft_p99_ms", "itl_mean_share")
    opinions = [e.valid for e in runs if e.valid is not None]
    return {
        **{name: statistics.median(getattr(e, name) for e in runs) for name in names},
        "runs": len(runs),
        "said_valid": sum(opinions) if opinions else None,
    }


def rows(streams: int, found: dict[str, list[Errors]]) -> list[dict[str, Any]]:
    """One per client that ran: medians, and how many times our mean error its own is."""
    table = [{"streams": streams, "client": name, **medians(runs)} for name, runs in found.items() if runs]
    own = next((abs(row["ttft_mean_ms"]) for row in table if row["client"] == OURS), 0.0)
    for row in table:
        row["times_ours"] = abs(row["ttft_mean_ms"]) / own if own else None
    return table


def main(
    streams: list[int] | None = None,
    repeats: int = 5,
    as_json: bool = False,
    *,
    aiperf: str | None = None,
    guidellm: str | None = None,
    sglang: str | None = None,
) -> None:
    """`aiperf` and `guidellm` are paths of commands, `sglang` of a Python that can import it."""
    from rich.console import Console
    from rich.table import Table

    clients: dict[str, Client] = {OURS: ours, "bare asyncio": bare}
    for peer in peers(aiperf, guidellm, sglang):
        if peer.program is None:
            _say(f"{peer.name}: not installed")
        else:
            clients[peer.name] = peer
    document = [row for count in streams or [64, 256] for row in rows(count, measure(count, repeats, clients))]
    if as_json:
        print(json.dumps(document, indent=2))
        return
    table = Table(title=f"client minus server truth, medians of {repeats}")
    for column in ("streams", "client", "TTFT mean, ms", "times ours", "TTFT p99, ms", "ITL mean, %", "says VALID"):
        table.add_column(column, justify="left" if column == "client" else "right")
    for row in document:
        table.add_row(
            str(row["streams"]),
            row["client"],
            f"{row['ttft_mean_ms']:+.2f}",
            "-" if row["times_ours"] is None else f"{row['times_ours']:.1f}",
            f"{row['ttft_p99_ms']:+.2f}",
            f"{row['itl_mean_share'] * 100:+.2f}",
            "-" if row["said_valid"] is None else f"{row['said_valid']} of {row['runs']}",
        )
    Console(width=120).print(table)
