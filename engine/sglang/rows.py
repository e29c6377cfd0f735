"""What the plugin relies on inside SGLang, as data, and the check that it is there.

SGLang only logs what goes wrong in a plugin and serves on without it, so the proof is ours: every row is looked up and its
signature compared before anything starts, hooks are looked up again after they were put in, and one failing row ends
the process. Nothing here imports SGLang; the check is tested with fakes."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from importlib import import_module
from types import ModuleType
from typing import Any, Literal

Kind = Literal["around", "before", "after", "use"]
Process = Literal["server", "model"]


@dataclass(frozen=True)
class Row:
    """One touch of SGLang's internals.

    path       dotted path of a function, method or class
    kind       around, before, after: hooked that way; use: called by us
    process    where it matters: the HTTP server or a model (scheduler) process
    signature  parameter names. All of them, in order, or with `some` those that must be there
    breaks     what does not work without it
    hook       for hooked rows: module:function of ours, looked up when it is put in"""

    path: str
    kind: Kind
    process: Process
    signature: tuple[str, ...]
    breaks: str
    hook: str = ""
    some: bool = False

    @property
    def name(self) -> str:
        return ".".join(self.path.rsplit(".", 2)[-2:])


@dataclass(frozen=True)
class Finding:
    row: Row
    fault: str | None

    def line(self) -> str:
        state = "ok" if self.fault is None else f"FAILED: {self.fault}; without it: {self.row.breaks}"
        return f"{self.row.kind:<6} {self.row.path} {state}"


def resolve(path: str) -> Any:
    """The object at a dotted path. Raises AttributeError when there is no such name, ImportError when a module on the way
    cannot be imported, with that module's own complaint (pkgutil.resolve_name would hide it)."""
    first, *rest = path.split(".")
    found: Any = import_module(first)
    so_far = first
    for name in rest:
        so_far += f".{name}"
        if not hasattr(found, name) and isinstance(found, ModuleType):
            try:
                import_module(so_far)
            except ModuleNotFoundError as error:
                if error.name != so_far:
                    raise
        found = getattr(found, name)
    return found


def fault_of(row: Row, find: Callable[[str], Any] = resolve) -> str | None:
    """Why the row does not hold, or None."""
    try:
        target = find(row.path)
    except (ImportError, AttributeError, ValueError) as error:
        return f"not found ({error})"
    if not callable(target):
        return f"is a {type(target).__name__}, not a function or class"
    try:
        names = tuple(inspect.signature(target).parameters)
    except (TypeError, ValueError, NameError) as error:
        return f"has no readable signature ({error})"
    if row.some:
        missing = [name for name in row.signature if name not in names]
        return f"takes no {', '.join(missing)}" if missing else None
    if names != row.signature:
        return f"takes ({', '.join(names)}), expected ({', '.join(row.signature)})"
    return None


def _function(target: Any) -> Any:
    """Class methods are bound anew each time they are looked up."""
    return getattr(target, "__func__", target)


def check(rows: Iterable[Row], find: Callable[[str], Any] = resolve) -> list[Finding]:
    return [Finding(row, fault_of(row, find)) for row in rows]


def check_hooked(rows: Iterable[Row], originals: dict[str, Any], find: Callable[[str], Any] = resolve) -> list[Finding]:
    """After the hooks were put in: each hooked row now leads to something else that wraps what was there."""
    findings = []
    for row in rows:
        if row.kind == "use":
            continue
        now, before, fault = _function(find(row.path)), _function(originals[row.path]), None
        if now is before:
            fault = "the hook was not put in (SGLang's log says why)"
        elif getattr(now, "__wrapped__", None) is not before:
            fault = "somebody else replaced it"
        findings.append(Finding(row, fault))
    return findings


def refusal(version: str, findings: Sequence[Finding]) -> str | None:
    """The sentence the server ends with, or None when all is well."""
    failed = [f for f in findings if f.fault is not None]
    if not failed:
        return None
    lines = "\n  ".join(f.line() for f in failed)
    return f"catalejo: SGLang {version} is not what the plugin was made for; refusing to serve.\n  {lines}"
