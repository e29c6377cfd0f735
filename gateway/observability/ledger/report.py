"""Totals and costs of a ledger. Everything is UTC.

Cost of a group = sum over its models of: (input - cached) * input price + cached * cached price + output * output price, per
million tokens, + images and videos, each at its price. Requests that failed cost nothing; those whose client left do.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

from gateway.observability.ledger.jsonl import read_jsonl
from gateway.observability.ledger.sqlite import read_sqlite
from gateway.observability.ledger.sums import SUMS, LedgerError, LedgerRow
from gateway.observability.settings import Price
from gateway.observability.usage import OUTCOMES

MILLION: Final = 1_000_000
FREE: Final = frozenset({"failed", "refused"})
_AGO: Final = re.compile(r"(\d{1,5})([dhm])")
_TIME: Final[Mapping[str, str]] = {"hour": "%Y-%m-%dT%H:00Z", "day": "%Y-%m-%d", "month": "%Y-%m"}
GROUPINGS: Final = ("month", "day", "hour", "tenant", "model", "outcome")


@dataclass(slots=True)
class Total:
    """Of one group. `cost` is the sum over the models that have a price, None when none of those that were used has one;
    `unpriced` names the others."""

    outcomes: dict[str, int] = field(default_factory=lambda: dict.fromkeys(OUTCOMES, 0))
    sums: dict[str, float] = field(default_factory=lambda: dict.fromkeys(SUMS, 0))
    priced: Decimal | None = None
    unpriced: set[str] = field(default_factory=set)

    @property
    def cost(self) -> Decimal | None:
        return Decimal(0) if self.priced is None and not self.unpriced else self.priced

    def add(self, row: LedgerRow, prices: Mapping[str, Price]) -> None:
        self.outcomes[row.outcome] = self.outcomes.get(row.outcome, 0) + int(row.sums[0])
        for name, value in zip(SUMS, row.sums, strict=True):
            self.sums[name] += value
        if row.outcome in FREE or not any(row.sums[1:-1]):
            return
        price = prices.get(row.model)
        if price is None:
            self.unpriced.add(row.model)
        else:
            self.priced = (self.priced or 0) + cost_of(row, price)


def cost_of(row: LedgerRow, price: Price) -> Decimal:
    used = dict(zip(SUMS, (Decimal(v) for v in row.sums), strict=True))
    cached_price = price.input if price.cached_input is None else price.cached_input
    tokens = (
        (used["input_tokens"] - used["cached_tokens"]) * price.input
        + used["cached_tokens"] * cached_price
        + used["output_tokens"] * price.output
    )
    return tokens / MILLION + used["images"] * price.image + used["videos"] * price.video


def read(path: Path, since: float, until: float) -> Iterator[LedgerRow]:
    """Rows of a ledger of either form. Raises LedgerError."""
    if not path.exists():
        raise LedgerError(
            f"there is no usage ledger at {path}; a gateway writes one when observability.ledger.path is set"
        )
    return (read_jsonl if path.is_dir() or path.suffix == ".jsonl" else read_sqlite)(path, since, until)


def totals(
    rows: Iterable[LedgerRow], by: Sequence[str], prices: Mapping[str, Price]
) -> tuple[dict[tuple[str, ...], Total], Total]:
    """(group -> its total, in order; the total of all). `by`: some of GROUPINGS."""
    keys = [_key(name) for name in by]
    groups: dict[tuple[str, ...], Total] = {}
    whole = Total()
    for row in rows:
        group = tuple(key(row) for key in keys)
        total = groups.get(group)
        if total is None:
            total = groups[group] = Total()
        total.add(row, prices)
        whole.add(row, prices)
    return dict(sorted(groups.items())), whole


def _key(name: str) -> Callable[[LedgerRow], str]:
    if name in _TIME:
        return lambda row: datetime.fromtimestamp(row.at, UTC).strftime(_TIME[name])
    return lambda row: str(getattr(row, name))


def parse_time(text: str, now: datetime) -> datetime:
    """`2026-11-30`, `2026-11-30T12:00` (UTC unless it says otherwise), or `7d`, `24h`, `30m` before `now`. Raises ValueError."""
    if ago := _AGO.fullmatch(text):
        unit = {"d": "days", "h": "hours", "m": "minutes"}[ago[2]]
        return now - timedelta(**{unit: int(ago[1])})
    try:
        given = datetime.fromisoformat(text)
    except ValueError:
        message = f"{text!r} is neither a date (2026-11-30), a time (2026-11-30T12:00) nor an age (7d, 24h, 30m)"
        raise ValueError(message) from None
    return given if given.tzinfo else given.replace(tzinfo=UTC)


def as_record(by: Sequence[str], group: tuple[str, ...], total: Total) -> dict[str, Any]:
    """One object, for JSON and CSV; `cost` in units of the currency, without the models in `unpriced`; None when unknown."""
    return {
        **dict(zip(by, group, strict=True)),
        **{name: round(v, 3) if name == "seconds" else int(v) for name, v in total.sums.items()},
        **total.outcomes,
        "cost": None if total.cost is None else float(round(total.cost, 9)),
        "unpriced": sorted(total.unpriced),
    }
