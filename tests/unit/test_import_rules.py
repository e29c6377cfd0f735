"""The rooms do not reach into each other: what docs/architecture.md calls the import rule."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def imports(path: Path) -> set[str]:
    out: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            out.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            out.add(node.module)
            out.update(f"{node.module}.{alias.name}" for alias in node.names)
    return out


def offenders(package: str, forbidden: str, allowed: str = "\0") -> list[str]:
    found = []
    for path in sorted((ROOT / package).rglob("*.py")):
        for name in sorted(imports(path)):
            inside = name == forbidden or name.startswith(forbidden + ".")
            excused = name in (allowed, allowed.rpartition(".")[0]) or name.startswith(allowed + ".")
            if inside and not excused:
                found.append(f"{path.relative_to(ROOT)} imports {name}")
    return found


def test_gateway_imports_only_the_contract_from_engine() -> None:
    assert offenders("gateway", "engine", allowed="engine.wire") == []


@pytest.mark.parametrize("package", ["engine", "loadtest"])
def test_engine_and_loadtest_never_import_gateway(package: str) -> None:
    assert offenders(package, "gateway") == []


@pytest.mark.parametrize("package", ["gateway", "engine", "loadtest"])
def test_nothing_imports_tests(package: str) -> None:
    assert offenders(package, "tests") == []


@pytest.mark.parametrize("module", ["gateway", "engine", "engine.wire", "gateway.cli", "loadtest"])
def test_importing_a_package_loads_no_torch(module: str) -> None:
    code = f"import {module}, sys; sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, timeout=60).returncode == 0
