"""`catalejo loadtest ...`: run, sweep, replay, compare, report, merge, scenarios.

Exit code: 0 VALID, 3 INVALID (or no load found, or runs that should not be compared), 2 bad use."""

from __future__ import annotations

import typer

from loadtest.cli import results, runs

app = typer.Typer(no_args_is_help=True, help="Load tests that tell the truth.", pretty_exceptions_enable=False)
for command in (runs.run, runs.sweep, runs.replay, results.compare, results.report, results.merge, results.scenarios):
    app.command()(command)


def main() -> None:
    app()
