"""Each hook of each adapter broken on purpose: renamed, its signature changed, not put in. Runs without SGLang: fakes
with the signatures of its real source (tests/fixtures/sglang) take its place."""

from __future__ import annotations

import functools
import json
import pkgutil
import subprocess
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from engine.sglang import plugin, rows
from engine.sglang.rows import Row

FIXTURES = Path(__file__).parents[1] / "fixtures" / "sglang"
VERSIONS = tuple(plugin.ADAPTERS)
ADAPTERS = {version: import_module(name) for version, name in plugin.ADAPTERS.items()}
ALL = [(version, row) for version, adapter in ADAPTERS.items() for row in adapter.ROWS]


def each(keep: Callable[[Row], bool] = lambda row: True) -> pytest.MarkDecorator:
    """(version, row) of every adapter."""
    chosen = [(version, row) for version, row in ALL if keep(row)]
    return pytest.mark.parametrize(("version", "row"), chosen, ids=[f"{v}-{r.name}" for v, r in chosen])


def hooked(row: Row) -> bool:
    return row.kind != "use"


def function(names: tuple[str, ...]) -> Callable[..., Any]:
    scope: dict[str, Any] = {}
    exec(f"def made({', '.join(names)}): return 'original'", scope)
    return scope["made"]


class World:
    """A SGLang of some version by the signatures in its source, and its hook registry."""

    def __init__(self, version: str) -> None:
        self.version = version
        self.rows: tuple[Row, ...] = ADAPTERS[version].ROWS
        written = json.loads((FIXTURES / f"signatures_{version}.json").read_text())
        self.objects: dict[str, Any] = {path: function(tuple(names)) for path, names in written.items()}
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

    def install(self, process: str = "server") -> str | None:
        return plugin.install(self.rows, process, self.version, self)


@pytest.fixture
def version() -> str:
    """For tests that name none."""
    return VERSIONS[-1]


@pytest.fixture
def world(version: str, monkeypatch: pytest.MonkeyPatch) -> World:
    made = World(version)
    monkeypatch.setattr(rows, "resolve", made.find)
    for name in ("check", "check_hooked", "fault_of"):
        real = getattr(rows, name)
        defaults = tuple(made.find for _ in real.__defaults__)
        monkeypatch.setattr(real, "__defaults__", defaults)
    return made


@pytest.mark.parametrize("process", ["server", "model"])
@pytest.mark.parametrize("version", VERSIONS)
def test_the_real_sglang_is_accepted(world: World, process: str) -> None:
    assert world.install(process) is None
    wanted = {r.path for r in world.rows if r.process == process and hooked(r)}
    assert {path for path, _, _ in world.asked} == wanted


@pytest.mark.parametrize("version", VERSIONS)
def test_an_adapter_refuses_the_other_sglang(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    other = World(next(v for v in VERSIONS if v != version))
    faults = [f for f in rows.check(ADAPTERS[version].ROWS, other.find) if f.fault]
    assert any("minimax_sparse_prefill" in f.row.path for f in faults)


@each()
def test_a_missing_name_is_refused_with_what_it_breaks(world: World, row: Row) -> None:
    del world.objects[row.path]
    problem = world.install()
    assert problem is not None
    assert row.path in problem
    assert row.breaks in problem
    assert world.version in problem
    assert not world.asked  # nothing was hooked half


@each(lambda row: bool(row.signature))
def test_a_parameter_gone_is_refused(world: World, row: Row) -> None:
    world.objects[row.path] = function(row.signature[:-1])
    problem = world.install()
    assert problem is not None
    assert row.path in problem
    assert row.signature[-1] in problem


@each(lambda row: not row.some)
def test_a_parameter_more_is_refused(world: World, row: Row) -> None:
    world.objects[row.path] = function((*row.signature, "novelty"))
    problem = world.install()
    assert problem is not None
    assert "novelty" in problem


@each(lambda row: row.some)
def test_a_class_may_grow_fields(world: World, row: Row) -> None:
    world.objects[row.path] = function((*row.signature, "novelty"))
    assert world.install() is None


@each(hooked)
def test_a_hook_that_was_not_put_in_is_refused(world: World, row: Row) -> None:
    world.silent.add(row.path)
    problem = world.install(row.process)
    assert problem is not None
    assert row.path in problem
    assert "not put in" in problem


def test_a_hook_overridden_by_another_plugin_is_refused(world: World) -> None:
    row = next(r for r in world.rows if hooked(r))
    real = world.apply

    def apply() -> None:
        real()
        world.objects[row.path] = function(row.signature)

    world.apply = apply  # type: ignore[method-assign]
    problem = world.install(row.process)
    assert problem is not None
    assert "somebody else" in problem


@each(hooked)
def test_every_hook_exists(row: Row, version: str) -> None:
    assert callable(rows.resolve(row.hook))


@pytest.mark.parametrize("version", VERSIONS)
def test_an_adapter_has_what_the_route_calls(version: str) -> None:
    for name in ("media_inputs", "request_input", "on_dispatch", "started"):
        assert callable(getattr(ADAPTERS[version], name))
    assert ADAPTERS[version].AFTER_IDS


def test_one_line_per_row(world: World, caplog: pytest.LogCaptureFixture) -> None:
    del world.objects[world.rows[0].path]
    with caplog.at_level("INFO", logger="catalejo.sglang"):
        world.install()
    lines = [r.getMessage() for r in caplog.records]
    assert len(lines) == len(world.rows)
    assert sum("FAILED" in line for line in lines) == 1


def test_what_is_not_callable_is_refused() -> None:
    row = ALL[0][1]
    assert "not a function" in (rows.fault_of(row, lambda path: 3) or "")


@pytest.mark.parametrize("found", ["0.5.22", "0.6.0"])
def test_an_unknown_version_ends_the_process(monkeypatch: pytest.MonkeyPatch, found: str) -> None:
    monkeypatch.setattr(plugin, "sglang_version", lambda: found)
    with pytest.raises(SystemExit, match=found) as refusal:
        plugin.register()
    assert "0.5.17, 0.5.23" in str(refusal.value)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_failing_row_ends_the_process_past_sglangs_own_net(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    del world.objects[world.rows[0].path]
    monkeypatch.setattr(plugin, "sglang_version", lambda: world.version)
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
    code += "import engine.sglang.adapter_0_5_17\n"
    code += "bad = [m for m in ('torch', 'sglang', 'transformers', 'prometheus_client') if m in sys.modules]\n"
    code += "assert not bad, bad"
    subprocess.run([sys.executable, "-c", code], check=True)
