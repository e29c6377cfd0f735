"""What happens when SGLang loads us: choose the adapter, check its rows, put the hooks in, check again, or end the process.

SGLang catches `Exception` around plugins; SystemExit passes."""

from __future__ import annotations

import logging
import multiprocessing
from collections.abc import Sequence
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from engine.sglang import rows
from engine.sglang.rows import Finding, Row

log = logging.getLogger("catalejo.sglang")
ADAPTERS = {version: f"engine.sglang.adapter_{version.replace('.', '_')}" for version in ("0.5.17", "0.5.23")}
IDLE_PROCESSES = ("run_detokenizer_process", "run_data_parallel_controller_process")
"""Processes in which nothing of ours works; importing a model there would only cost memory."""


def register() -> None:
    process = this_process()
    if process is None:
        return
    chosen = adapter()
    logging.getLogger("catalejo").setLevel(logging.INFO)
    problem = install(chosen.ROWS, process, sglang_version(), _registry())
    if problem is not None:
        raise SystemExit(problem)
    chosen.started(process)


def adapter() -> Any:
    """The module that knows the installed SGLang. Raises SystemExit when there is none."""
    found = sglang_version()
    name = ADAPTERS.get(found)
    if name is None:
        raise SystemExit(
            f"catalejo: SGLang {found} has no adapter; refusing to serve. Adapters: {', '.join(ADAPTERS)}. "
            "SGLANG_PLUGINS=none serves plain SGLang, without pictures."
        )
    return import_module(name)


def install(table: Sequence[Row], process: str, found: str, registry: Any) -> str | None:
    """Checks every row, hooks those of this process, checks the hooks. Returns the refusal, or None.

    The server process checks the model's rows as well: it is the one that must not become ready."""
    checked = table if process == "server" else [r for r in table if r.process == process]
    findings = rows.check(checked)
    _report(findings)
    problem = rows.refusal(found, findings)
    if problem is not None:
        return problem
    mine = [r for r in table if r.process == process and r.kind != "use"]
    originals = {r.path: rows.resolve(r.path) for r in mine}
    for row in mine:
        registry.add(row.path, row.kind, rows.resolve(row.hook))
    registry.apply()
    return rows.refusal(found, rows.check_hooked(mine, originals))


def this_process() -> str | None:
    """server, model, or None where there is nothing to do."""
    if multiprocessing.parent_process() is None:
        return "server"
    target = getattr(multiprocessing.current_process(), "_target", None)
    return None if getattr(target, "__name__", "") in IDLE_PROCESSES else "model"


def sglang_version() -> str:
    try:
        return version("sglang")
    except PackageNotFoundError:
        raise SystemExit("catalejo: SGLang is not installed") from None


class _Registry:
    """SGLang's own way of putting hooks in."""

    def add(self, path: str, kind: str, hook: Any) -> None:
        from sglang.srt.plugins.hook_registry import HookRegistry, HookType

        HookRegistry.register(path, hook, HookType(kind))

    def apply(self) -> None:
        """Now, not when SGLang gets to it, so that the result can be checked here."""
        from sglang.srt.plugins.hook_registry import HookRegistry

        HookRegistry.apply_hooks()


def _registry() -> _Registry:
    return _Registry()


def _report(findings: Sequence[Finding]) -> None:
    for finding in findings:
        log.log(logging.INFO if finding.fault is None else logging.ERROR, "catalejo row %s", finding.line())
