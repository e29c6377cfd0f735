"""Run with SGLang's interpreter (run.sh does): every row holds in the real SGLang, and each one broken is refused.

No server, no hooks: names are taken away or given another signature, the check is run, the names are put back."""

from __future__ import annotations

import sys
from typing import Any

from engine.sglang import plugin, rows


class NoHooks:
    def add(self, *_: Any) -> None:
        raise AssertionError("nothing may be hooked when a row failed")

    def apply(self) -> None:
        raise AssertionError("nothing may be hooked when a row failed")


def refused(table: tuple[rows.Row, ...], row: rows.Row, replacement: Any) -> str | None:
    owner_path, _, name = row.path.rpartition(".")
    owner = rows.resolve(owner_path)
    real = owner.__dict__[name]
    try:
        if replacement is None:
            delattr(owner, name)
        else:
            setattr(owner, name, replacement)
        return plugin.install(table, "server", plugin.sglang_version(), NoHooks())
    finally:
        setattr(owner, name, real)


def main() -> None:
    table = plugin.adapter().ROWS
    faults = [f.line() for f in rows.check(table) if f.fault]
    if faults:
        sys.exit("\n".join(faults))
    for row in table:
        for broken in (None, lambda something_else: None):
            problem = refused(table, row, broken)
            if problem is None or row.path not in problem:
                sys.exit(f"{row.path} broken, and the plugin said {problem}")
    print(f"{len(table)} rows hold; each one missing or changed is refused")


if __name__ == "__main__":
    main()
