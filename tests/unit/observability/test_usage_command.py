"""`catalejo usage`: totals, costs, forms, and one clear line for every mistake."""

from __future__ import annotations

import csv
import io
import json
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner, Result

from gateway.cli import app
from gateway.observability.ledger.jsonl import JsonLines
from gateway.observability.ledger.report import cost_of, parse_time
from gateway.observability.ledger.sqlite import SqliteSums
from gateway.observability.ledger.sums import LedgerRow, sums_of
from gateway.observability.settings import Price
from tests.unit.observability.records import NOON, record

DAY = 86400
PRICES = {
    "m3": {"input": 0.3, "cached_input": 0.03, "output": 1.2, "image": 0.002},
    "small": {"input": 0.1, "output": 0.1, "video": 0.5},
}


@pytest.fixture(params=["sqlite", "jsonl"])
def config(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A configuration file with prices, and the ledger it names: three days, two tenants, two models."""
    path = tmp_path / "ledger"
    sink = (SqliteSums if request.param == "sqlite" else JsonLines)(path, 10**5, lambda: NOON + 2 * DAY)
    million = {"prompt_tokens": 10**6, "cached_tokens": 4 * 10**5, "completion_tokens": 10**6}
    sink.take(
        [
            record(NOON, **million, images=3),
            record(NOON + 1, outcome="failed", **million),
            record(NOON + 2, outcome="refused", prompt_tokens=0, cached_tokens=0, completion_tokens=0, model=""),
            record(NOON + DAY, tenant="zoë [bold]", model="small", videos=2, **million),
            record(NOON + 2 * DAY, outcome="aborted", **million),
        ]
    )
    sink.write()
    sink.close()
    file = tmp_path / "catalejo.yaml"
    ledger = {"path": str(path), "format": request.param, "prices": PRICES}
    file.write_text(yaml.safe_dump({"model_path": "/nowhere", "observability": {"ledger": ledger}}))
    return file


def usage(*args: Any) -> Result:
    return CliRunner().invoke(app, ["usage", *map(str, args)])


def rows(*args: Any) -> list[dict[str, Any]]:
    result = usage(*args, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)["rows"]


def test_json_has_totals_and_costs_by_day_tenant_and_model(config: Path) -> None:
    result = usage("--config", config, "--json", "--until", "2027-01-01")
    body = json.loads(result.stdout)
    one, two, three, four = body["rows"]
    assert (one["day"], one["tenant"], one["model"], one["refused"], one["cost"]) == ("2026-11-30", "acme", "", 1, 0)
    assert (two["day"], two["tenant"], two["model"]) == ("2026-11-30", "acme", "m3")
    assert (two["requests"], two["ok"], two["failed"]) == (2, 1, 1)
    assert two["cost"] == pytest.approx(0.6 * 0.3 + 0.4 * 0.03 + 1.2 + 3 * 0.002), "a failed request costs nothing"
    assert (three["tenant"], three["cost"]) == ("zoë [bold]", pytest.approx(0.1 + 0.1 + 2 * 0.5))
    assert (four["aborted"], four["cost"]) == (1, pytest.approx(0.18 + 0.012 + 1.2))
    assert body["currency"] == "USD"
    assert body["total"]["requests"] == 5
    assert body["total"]["input_tokens"] == 4 * 10**6
    assert body["total"]["cost"] == pytest.approx(sum(r["cost"] for r in body["rows"]))


def test_grouping_filters_and_spans(config: Path) -> None:
    until = ("--until", "2027-01-01")
    assert [r["tenant"] for r in rows("--config", config, "--by", "tenant", *until)] == ["acme", "zoë [bold]"]
    assert [r["month"] for r in rows("--config", config, "--by", "month", *until)] == ["2026-11", "2026-12"]
    hours = [r["hour"] for r in rows("--config", config, "--by", "hour,outcome", "--until", "2026-12-01")]
    assert hours == ["2026-11-30T12:00Z"] * 3
    [only] = rows("--config", config, "--by", "model", "--tenant", "zoë [bold]", *until)
    assert (only["model"], only["requests"]) == ("small", 1)
    [only] = rows("--config", config, "--by", "model", "--model", "m3", "--since", "2026-12-01", *until)
    assert only["requests"] == 1
    [whole] = rows("--config", config, "--by", "", "--since", "2026-11-30T12:00", "--until", "2026-11-30T12:01")
    assert whole["requests"] == 3
    assert rows("--config", config, "--since", "2030-01-01", "--until", "2030-01-02") == []


def test_csv_is_one_line_per_group(config: Path) -> None:
    result = usage("--config", config, "--csv", "--by", "tenant,model", "--until", "2027-01-01")
    lines = list(csv.DictReader(io.StringIO(result.stdout)))
    assert [(x["tenant"], x["model"], x["requests"]) for x in lines] == [
        ("acme", "", "1"),
        ("acme", "m3", "3"),
        ("zoë [bold]", "small", "1"),
    ]
    empty = usage("--config", config, "--csv", "--since", "2030-01-01", "--until", "2030-01-02")
    assert empty.stdout.startswith("day,tenant,model,requests,") and empty.stdout.count("\n") == 1


def test_the_table_is_for_people(config: Path) -> None:
    result = usage("--config", config, "--until", "2027-01-01")
    lines = result.stdout.splitlines()
    assert lines[0].split()[:3] == ["day", "tenant", "model"] and lines[0].split()[-1] == "USD"
    assert "zoë [bold]" in result.stdout, "names are no markup"
    assert lines[-1].split()[0] == "total" and "4,000,000" in lines[-1]
    columns = dict(zip(lines[0].split()[3:7], lines[-1].split()[1:5], strict=True))
    assert columns == {"requests": "5", "refused": "1", "failed": "1", "aborted": "1"}


def test_a_model_without_a_price_has_no_cost_and_is_named(config: Path) -> None:
    """Symptom: one such model made the total of all others unknown."""
    body = yaml.safe_load(config.read_text())
    del body["observability"]["ledger"]["prices"]["small"]
    config.write_text(yaml.safe_dump(body))
    result = usage("--config", config, "--json", "--by", "model", "--until", "2027-01-01")
    body = json.loads(result.stdout)
    assert [r["cost"] is None for r in body["rows"]] == [False, False, True]
    assert [r["unpriced"] for r in body["rows"]] == [[], [], ["small"]]
    priced = sum(r["cost"] for r in body["rows"][:2])
    assert priced > 0 and body["total"]["cost"] == pytest.approx(priced) and body["total"]["unpriced"] == ["small"]
    assert "no price for: small" in result.stderr
    table = usage("--config", config, "--by", "model", "--until", "2027-01-01").stdout.splitlines()
    ends = [line.split()[0] + line[line.rindex("  ") :].rstrip() for line in map(str.rstrip, table)]
    assert ends[-1] == f"total  {priced:,.4f} + ?" and "small  ?" in ends, table
    lines = list(
        csv.DictReader(io.StringIO(usage("--config", config, "--csv", "--by", "", "--until", "2027-01-01").stdout))
    )
    assert [(float(x["cost"]) > 0, x["unpriced"]) for x in lines] == [(True, "small")]


def test_the_environment_names_the_ledger_too(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = yaml.safe_load(config.read_text())["observability"]["ledger"]["path"]
    monkeypatch.setenv("CATALEJO_OBSERVABILITY__LEDGER__PATH", path)
    assert len(rows("--by", "tenant", "--until", "2027-01-01")) == 2
    assert len(rows("--by", "tenant", "--until", "2027-01-01", "--ledger", path)) == 2


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ([], "no ledger is named"),
        (["--ledger", "/nowhere/usage.sqlite"], "no usage ledger at /nowhere/usage.sqlite"),
        (["--ledger", __file__], "not a database"),
        (["--config", "/nowhere.yaml"], "/nowhere.yaml"),
        (["--ledger", ".", "--since", "yesterday"], "--since: 'yesterday' is neither a date"),
        (["--ledger", ".", "--until", "2026-13-01"], "--until: '2026-13-01'"),
        (["--ledger", ".", "--since", "2026-11-30", "--until", "2026-11-29"], "is not before"),
        (["--ledger", ".", "--by", "day,week"], "--by week: not one of month, day, hour"),
        (["--ledger", ".", "--json", "--csv"], "give one of"),
    ],
)
def test_mistakes_are_one_clear_line(args: list[str], said: str) -> None:
    result = usage(*args)
    assert result.exit_code == 2
    assert said in " ".join(result.output.replace("│", " ").split())
    assert "Traceback" not in result.output


def test_a_wrong_price_is_named(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text(yaml.safe_dump({"observability": {"ledger": {"prices": {"m3": {"input": -1}}}}}))
    result = usage("--config", file)
    assert result.exit_code == 2
    assert "observability.ledger.prices.m3.input" in result.output


def test_cost_is_exact() -> None:
    """Sums of floats would drift over millions of requests."""
    row = LedgerRow(0, "t", "m3", "ok", sums_of(record(prompt_tokens=3, cached_tokens=1, completion_tokens=7)))
    price = Price.model_validate({"input": 0.1, "output": 0.2})
    assert cost_of(row, price) == (3 * Decimal("0.1") + 7 * Decimal("0.2")) / 10**6
    assert cost_of(row, Price()) == 0


def test_times() -> None:
    now = datetime(2026, 11, 30, 12, tzinfo=UTC)
    assert parse_time("7d", now) == datetime(2026, 11, 23, 12, tzinfo=UTC)
    assert parse_time("90m", now) == datetime(2026, 11, 30, 10, 30, tzinfo=UTC)
    assert parse_time("2026-11-30T12:00+02:00", now) == datetime(2026, 11, 30, 10, tzinfo=UTC)
    assert parse_time("2026-11-30T12:00Z", now) == now
