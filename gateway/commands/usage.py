"""`catalejo usage`."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

from gateway.config import ConfigError, load_observability
from gateway.observability.ledger.report import GROUPINGS, Total, as_record, parse_time, read, totals
from gateway.observability.ledger.sums import LedgerError
from gateway.observability.settings import LedgerSettings

Groups = Mapping[tuple[str, ...], Total]


def run(
    config: Path | None,
    ledger: Path | None,
    since: str | None,
    until: str | None,
    by: Sequence[str],
    tenant: str | None,
    model: str | None,
    form: str,
) -> int:
    """`form`: table, json or csv. Returns the exit status."""
    try:
        settings = load_observability(config).ledger
        path = ledger or settings.path
        if path is None:
            raise LedgerError("no ledger is named: give --ledger PATH, or --config with observability.ledger.path")
        by = list(dict.fromkeys(by))
        if unknown := [name for name in by if name not in GROUPINGS]:
            raise LedgerError(f"--by {unknown[0]}: not one of {', '.join(GROUPINGS)}")
        begin, end = _span(since, until)
        rows = (
            row
            for row in read(path, begin.timestamp(), end.timestamp())
            if (tenant is None or row.tenant == tenant) and (model is None or row.model == model)
        )
        groups, whole = totals(rows, by, settings.prices)
    except (LedgerError, ConfigError) as e:
        print(f"catalejo usage: {e}", file=sys.stderr)  # noqa: T201
        return 2
    if form == "json":
        span = {"since": begin.isoformat() if since else None, "until": end.isoformat(), "currency": settings.currency}
        records = [as_record(by, group, total) for group, total in groups.items()]
        print(json.dumps({**span, "rows": records, "total": as_record((), (), whole)}, indent=1))  # noqa: T201
    elif form == "csv":
        writer = csv.DictWriter(sys.stdout, list(as_record(by, ("",) * len(by), whole)), lineterminator="\n")
        writer.writeheader()
        for group, total in groups.items():
            record = as_record(by, group, total)
            writer.writerow({**record, "unpriced": ", ".join(record["unpriced"])})
    else:
        _print_table(settings, by, groups, whole)
    if settings.prices and whole.unpriced:
        names = ", ".join(sorted(name or "(none)" for name in whole.unpriced))
        print(f"catalejo usage: observability.ledger.prices has no price for: {names}", file=sys.stderr)  # noqa: T201
    return 0


def _span(since: str | None, until: str | None) -> tuple[datetime, datetime]:
    now = datetime.now(UTC)
    begin = _moment("--since", since, now) if since else datetime.fromtimestamp(0, UTC)
    end = _moment("--until", until, now) if until else now
    if begin >= end:
        raise LedgerError(f"--since ({begin.isoformat()}) is not before --until ({end.isoformat()})")
    return begin, end


def _moment(option: str, text: str, now: datetime) -> datetime:
    try:
        return parse_time(text, now)
    except (ValueError, OverflowError) as e:
        raise LedgerError(f"{option}: {e}") from None


def _print_table(settings: LedgerSettings, by: Sequence[str], groups: Groups, whole: Total) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, header_style="bold")
    for name in by:
        table.add_column(name, overflow="fold")
    numbers = ("requests", "refused", "failed", "aborted", "input", "cached", "output", "reasoning", "images", "videos")
    for name in (*numbers, settings.currency) if settings.prices else numbers:
        table.add_column(name, justify="right", no_wrap=True)

    def cells(total: Total) -> list[str]:
        s, o = total.sums, total.outcomes
        tokens = (s["input_tokens"], s["cached_tokens"], s["output_tokens"], s["reasoning_tokens"])
        counts = (s["requests"], o["refused"], o["failed"], o["aborted"], *tokens, s["images"], s["videos"])
        cost = "?" if total.cost is None else f"{total.cost:,.4f}"
        if total.cost is not None and total.unpriced:
            cost += " + ?"
        return [f"{int(n):,}" for n in counts] + ([cost] if settings.prices else [])

    for group, total in groups.items():
        # Text, since a name may look like rich's markup; a request refused early has no model.
        table.add_row(*(Text(key or "-") for key in group), *cells(total))
    if by:
        table.add_section()
        table.add_row("total", *[""] * (len(by) - 1), *cells(whole))
    else:
        table.add_row(*cells(whole))
    console = Console()
    if not console.is_terminal:
        console.width = 240  # a pipe has no width to fit
    console.print(table)
