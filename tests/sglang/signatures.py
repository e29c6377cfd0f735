"""Parameter names in a SGLang's source, read without importing it:

    pip download --no-deps -d wheel sglang==0.5.17 && python -m zipfile -e wheel/*.whl source
    python -m tests.sglang.signatures 0.5.17 source > tests/fixtures/sglang/signatures_0.5.17.json

The table holds what the adapter's rows touch; tests/sglang/test_rows.py holds the rows against it."""

from __future__ import annotations

import ast
import json
import sys
from importlib import import_module
from pathlib import Path

from engine.sglang.plugin import ADAPTERS

Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def names(root: Path, path: str) -> list[str] | None:
    """Parameters of the function, method or class at a dotted path, as inspect.signature would give them for the
    attribute of the class: a class method without `cls`, a class as its __init__ without `self` or as its fields. None
    when there is no such definition."""
    parts = path.split(".")
    for depth in range(len(parts) - 1, 0, -1):
        module = root.joinpath(*parts[:depth])
        file = next((f for f in (module.with_suffix(".py"), module / "__init__.py") if f.is_file()), None)
        if file is not None:
            break
    else:
        return None
    scope: ast.Module | ast.ClassDef = ast.parse(file.read_text())
    found: Definition | None = None
    for name in parts[depth:]:
        found = next((node for node in scope.body if isinstance(node, Definition) and node.name == name), None)
        if found is None:
            return None
        if isinstance(found, ast.ClassDef):
            scope = found
    assert found is not None
    if isinstance(found, ast.ClassDef):
        init = next((n for n in found.body if isinstance(n, ast.FunctionDef) and n.name == "__init__"), None)
        if init is not None:
            return _parameters(init)[1:]
        return [n.target.id for n in found.body if isinstance(n, ast.AnnAssign) and isinstance(n.target, ast.Name)]
    bound = any(isinstance(d, ast.Name) and d.id == "classmethod" for d in found.decorator_list)
    return _parameters(found)[int(bound) :]


def _parameters(function: ast.FunctionDef | ast.AsyncFunctionDef) -> list[str]:
    spec = function.args
    starred = [a.arg for a in (spec.vararg, spec.kwarg) if a is not None]
    return [a.arg for a in (*spec.posonlyargs, *spec.args, *spec.kwonlyargs)] + starred


if __name__ == "__main__":
    version, source = sys.argv[1], Path(sys.argv[2])
    rows = import_module(ADAPTERS[version]).ROWS
    print(json.dumps({row.path: names(source, row.path) for row in rows}, indent=1))
