"""Each hook broken on purpose: renamed, its signature changed, not put in. Runs without SGLang: fakes take its place."""

from __future__ import annotations

import functools
import pkgutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from engine.sglang import adapter_0_5_23 as adapter
from engine.sglang import plugin, rows
from engine.sglang.rows import Row

ROWS = adapter.ROWS
IDS = [r.name for r in ROWS]


def function(names: tuple[str, ...]) -> Callable[..., Any]:
    scope: dict[str, Any] = {}
    exec(f"def made({', '.join(names)}): return 'original'", scope)
    return scope["made"]


class World:
    """A SGLang made of what the rows say, and its hook registry."""

    def __init__(self, table: tuple[Row, ...] = ROWS) -> None:
        self.objects: dict[str, Any] = {r.path: function(r.signature) for r in table}
        self.asked: list[tuple[str, str, Any]] = []
        self.silent: set[str] = set()

    def find(self, path: str) -> Any:
        if path.startswith("engine."):
            return pkgutil.resolve_name(path)
        if path not in self.objects:
            raise AttributeError(f"no {path}")
        return self.objects[path]

    def add(self, path: str, kind: str, hook: Any) -> None:
        self.asked.append((path, kind, hook))

    def apply(self) -> None:
        for path, _, hook in self.asked:
            if path in self.silent:
                continue  # SGLang logs that it failed, and goes on
            original = self.objects[path]

            def wrapped(*args: Any, _hook: Any = hook, _original: Any = original, **kwargs: Any) -> Any:
                return _hook(_original, *args, **kwargs)

            self.objects[path] = functools.wraps(original)(wrapped)


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    made = World()
    monkeypatch.setattr(rows, "resolve", made.find)
    for name in ("check", "check_hooked", "fault_of"):
        real = getattr(rows, name)
        defaults = tuple(made.find for _ in real.__defaults__)
        monkeypatch.setattr(real, "__defaults__", defaults)
    return made


@pytest.mark.parametrize("process", ["server", "model"])
def test_an_untouched_sglang_is_accepted(world: World, process: str) -> None:
    assert plugin.install(ROWS, process, "0.5.23", world) is None
    hooked = {r.path for r in ROWS if r.process == process and r.kind != "use"}
    assert {path for path, _, _ in world.asked} == hooked


@pytest.mark.parametrize("row", ROWS, ids=IDS)
def test_a_missing_name_is_refused_with_what_it_breaks(world: World, row: Row) -> None:
    del world.objects[row.path]
    problem = plugin.install(ROWS, "server", "0.5.23", world)
    assert problem is not None
    assert row.path in problem
    assert row.breaks in problem
    assert "0.5.23" in problem
    assert not world.asked  # nothing was hooked half


@pytest.mark.parametrize("row", [r for r in ROWS if r.signature], ids=[r.name for r in ROWS if r.signature])
def test_a_parameter_gone_is_refused(world: World, row: Row) -> None:
    world.objects[row.path] = function(row.signature[:-1])
    problem = plugin.install(ROWS, "server", "0.5.23", world)
    assert problem is not None
    assert row.path in problem
    assert row.signature[-1] in problem


@pytest.mark.parametrize("row", [r for r in ROWS if not r.some], ids=[r.name for r in ROWS if not r.some])
def test_a_parameter_more_is_refused(world: World, row: Row) -> None:
    world.objects[row.path] = function((*row.signature, "novelty"))
    problem = plugin.install(ROWS, "server", "0.5.23", world)
    assert problem is not None
    assert "novelty" in problem


@pytest.mark.parametrize("row", [r for r in ROWS if r.some], ids=[r.name for r in ROWS if r.some])
def test_a_class_may_grow_fields(world: World, row: Row) -> None:
    world.objects[row.path] = function((*row.signature, "novelty"))
    assert plugin.install(ROWS, "server", "0.5.23", world) is None


HOOKED = [r for r in ROWS if r.kind != "use"]


@pytest.mark.parametrize("row", HOOKED, ids=[r.name for r in HOOKED])
def test_a_hook_that_was_not_put_in_is_refused(world: World, row: Row) -> None:
    world.silent.add(row.path)
    problem = plugin.install(ROWS, row.process, "0.5.23", world)
    assert problem is not None
    assert row.path in problem
    assert "not put in" in problem


def test_a_hook_overridden_by_another_plugin_is_refused(world: World) -> None:
    row = HOOKED[0]
    real = world.apply

    def apply() -> None:
        real()
        world.objects[row.path] = function(row.signature)

    world.apply = apply  # type: ignore[method-assign]
    problem = plugin.install(ROWS, row.process, "0.5.23", world)
    assert problem is not None
    assert "somebody else" in problem


@pytest.mark.parametrize("row", HOOKED, ids=[r.name for r in HOOKED])
def test_every_hook_exists(row: Row) -> None:
    assert callable(rows.resolve(row.hook))


def test_one_line_per_row(world: World, caplog: pytest.LogCaptureFixture) -> None:
    del world.objects[ROWS[0].path]
    with caplog.at_level("INFO", logger="catalejo.sglang"):
        plugin.install(ROWS, "server", "0.5.23", world)
    lines = [r.getMessage() for r in caplog.records]
    assert len(lines) == len(ROWS)
    assert sum("FAILED" in line for line in lines) == 1


def test_what_is_not_callable_is_refused() -> None:
    row = ROWS[0]
    assert "not a function" in (rows.fault_of(row, lambda path: 3) or "")


@pytest.mark.parametrize("found", ["0.5.22", "0.6.0"])
def test_an_unknown_version_ends_the_process(monkeypatch: pytest.MonkeyPatch, found: str) -> None:
    monkeypatch.setattr(plugin, "sglang_version", lambda: found)
    with pytest.raises(SystemExit, match=found):
        plugin.register()


def test_a_failing_row_ends_the_process_past_sglangs_own_net(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    del world.objects[ROWS[0].path]
    monkeypatch.setattr(plugin, "sglang_version", lambda: "0.5.23")
    monkeypatch.setattr(plugin, "_registry", lambda: world)

    def like_sglang() -> None:
        try:
            plugin.register()
        except Exception:
            raise AssertionError("SGLang would have logged this and served on") from None

    with pytest.raises(SystemExit, match="refusing to serve"):
        like_sglang()


def test_a_module_that_cannot_be_imported_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "half_a_host").mkdir()
    (tmp_path / "half_a_host" / "__init__.py").touch()
    (tmp_path / "half_a_host" / "server.py").write_text("import a_package_nobody_has\n")
    monkeypatch.syspath_prepend(tmp_path)
    row = Row("half_a_host.server.run", "use", "server", (), "everything")
    assert "a_package_nobody_has" in (rows.fault_of(row) or "")
    missing = Row("half_a_host.client.run", "use", "server", (), "everything")
    assert "client" in (rows.fault_of(missing) or "")


def test_importing_the_plugin_imports_nothing_heavy() -> None:
    code = "import sys, engine.sglang, engine.sglang.rows, engine.sglang.adapter_0_5_23, engine.sglang.plugin\n"
    code += "bad = [m for m in ('torch', 'sglang', 'transformers', 'prometheus_client') if m in sys.modules]\n"
    code += "assert not bad, bad"
    subprocess.run([sys.executable, "-c", code], check=True)
