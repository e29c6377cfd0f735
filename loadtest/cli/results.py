"""The commands that read results: compare, report, merge; and the list of scenarios."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer

from loadtest.cli.finish import check_outputs, finish
from loadtest.cli.options import Output, Seed, fail, takes


def _read(path: Path) -> dict[str, Any]:
    from loadtest.report import files

    try:
        return files.read(path)
    except files.ResultError as e:
        fail(str(e))


def compare(a: Path, b: Path, seed: Seed = 0) -> None:
    """Compare two JSON results: effect sizes with intervals, or "no difference shown"."""
    from rich.console import Console
    from rich.table import Table

    from loadtest import compare as comparing

    left, right = _read(a), _read(b)
    objections = comparing.objections(left, right)
    for objection in objections:
        typer.echo(f"warning: {objection}", err=True)
    differences = comparing.compare(left, right, seed=seed)
    if not differences:
        fail("nothing to compare: each run needs two answered requests at least")
    table = Table(title="ms; interval of B - A, 95 %")
    for column in ("figure", "A", "B", "B / A", "interval", "verdict"):
        table.add_column(column)
    for d in differences:
        ratio = "-" if d.ratio is None else f"{d.ratio:.3f}"
        table.add_row(
            d.figure, f"{d.a:,.1f}", f"{d.b:,.1f}", ratio, f"{d.interval.low:,.1f} .. {d.interval.high:,.1f}", d.words
        )
    console = Console()
    (console if console.is_terminal else Console(width=130)).print(table)
    if objections:
        raise typer.Exit(3)


@takes(output=Output)
def report(source: Path, output: Output) -> None:
    """Show a JSON result again, write it in another form, or push it."""
    check_outputs(output)
    finish(_read(source), output)


@takes(output=Output)
def merge(sources: list[Path], output: Output) -> None:
    """Join the JSON results of several machines that ran one test together (each with its own --seed)."""
    from loadtest import merge as merging

    check_outputs(output)
    try:
        result = merging.merge([_read(path) for path in sources])
    except merging.MergeError as e:
        fail(str(e))
    finish(result, output)


def scenarios() -> None:
    """List the shipped scenarios."""
    from loadtest.scenario import load, shipped

    for name in sorted(shipped()):
        typer.echo(f"{name:14} {load(name).description}")
