"""The arguments in the pods are ones that the `catalejo` command takes."""

from __future__ import annotations

import pytest
from typer.main import get_command

from gateway.cli import app
from tests.deploy.chart.matrix import MATRIX, rendered
from tests.deploy.chart.rendering import container

COMMANDS = get_command(app).commands  # type: ignore[attr-defined]


def test_the_gateway_takes_its_arguments() -> None:
    for name in MATRIX:
        args = container(rendered(name).one("Deployment", "-gateway"))["args"]
        assert args[0] == "gateway"
        with COMMANDS["gateway"].make_context("gateway", list(args[1:])) as context:
            assert str(context.params["config"]) == "/etc/catalejo/catalejo.yaml"


def test_the_load_test_takes_its_arguments() -> None:
    job = next(j for j in rendered("load-test").all("Job"))
    args = container(job)["args"]
    assert args[:2] == ["loadtest", "run"]
    with COMMANDS["loadtest"].commands["run"].make_context("run", list(args[2:])) as context:
        assert context.params["url"] == "http://m3-catalejo-gateway.serving.svc:80"
        assert (context.params["rate"], context.params["duration"], context.params["seed"]) == (1.0, 300.0, 7)
        assert context.params["scenario"] == "chat" and context.params["model"] == "demo"


def test_the_engine_takes_its_arguments() -> None:
    for name in ("cpu-demo", "h200x8", "h100x8"):
        kind = "LeaderWorkerSet" if name == "h100x8" else "StatefulSet"
        args = container(rendered(name).one(kind))["args"]
        with COMMANDS["engine"].make_context("engine", list(args[1:])) as context:
            assert context.params["host"] == "0.0.0.0" and context.params["port"] == 30000
            assert context.params["backend"] in ("local", "sglang")


def test_sglang_starts_with_the_charts_flags_once_each() -> None:
    command = pytest.importorskip("engine.sglang.command", reason="needs the SGLang backend of `catalejo engine`")
    for name in ("h200x8", "h100x8"):
        kind = "LeaderWorkerSet" if name == "h100x8" else "StatefulSet"
        args = container(rendered(name).one(kind))["args"]
        with COMMANDS["engine"].make_context("engine", list(args[1:])) as context:
            p, more = context.params, context.args
        gpus = command.Gpus(8, "NVIDIA", 139, "9.0")
        line, _ = command.build(p["model"], p["host"], p["port"], "token", p["context_length"], more, gpus)
        flags = [word.split("=", 1)[0] for word in line if word.startswith("--")]
        assert len(flags) == len(set(flags))
        assert {"--tp-size=8", "--page-size=128"} <= set(line) and "--context-length" in flags
