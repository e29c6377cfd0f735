"""How a command with a result ends: shown, written, pushed, and an exit code that says whether it may be quoted."""

from __future__ import annotations

import os
from typing import Any

import typer

from loadtest.cli.options import Output, fail


def check_outputs(output: Output) -> None:
    """Before an hour of load, not after it: suffixes known, folders there and ours to write."""
    from loadtest.report import files

    for path in output.out or ():
        try:
            files.check_suffix(path)
        except files.ResultError as e:
            fail(str(e))
        if path.is_dir() or not os.access(path if path.exists() else path.absolute().parent, os.W_OK):
            fail(f"--out {path}: cannot be written")


def finish(result: dict[str, Any], output: Output) -> None:
    """A file that cannot be written or a gateway that does not answer costs the exit code, never the other outputs."""
    from rich.console import Console

    from loadtest.report import files, push, terminal

    console = Console()
    terminal.show(result, console if console.is_terminal else Console(width=130))
    failures = 0
    for path in output.out or ():
        try:
            files.write(result, path)
            typer.echo(f"wrote {path}")
        except (files.ResultError, OSError) as e:
            typer.echo(f"error: {path}: {e}", err=True)
            failures += 1
    if output.push_gateway is not None:
        try:
            push.push(result, output.push_gateway)
            typer.echo(f"pushed to {output.push_gateway}")
        except push.PushError as e:
            typer.echo(f"error: {e}", err=True)
            failures += 1
    if failures:
        raise typer.Exit(2)
    if not result["verdict"]["valid"]:
        raise typer.Exit(3)
