"""Who takes part in `catalejo bench gateway`, and with what command.

Peers are found by option or CATALEJO_BENCH_SMG / CATALEJO_BENCH_LITELLM (the executable, best in a virtual environment of
its own), else on PATH; one that is not there is named as not installed. smg's gRPC mode does our work: it tokenizes,
detokenizes and parses; in HTTP mode it passes the engine's chunks on, as LiteLLM's proxy does with more ado."""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from gateway.commands.paths import tiny_checkpoint

HTTP, GRPC = "http", "grpc"


@dataclass
class Contestant:
    """`command` with {port}, {engine} and {spare} (another free port) filled in; `engine`: which form of the engine it
    speaks to; `works`: does our work (detokenizing, parsing), or only passes bytes; `large`: the kinds of large requests it
    takes (stalls.py), `watched`: what its environment needs besides to tell its loop's stalls on {spare}."""

    name: str
    command: list[str]
    ready: str
    engine: str = HTTP
    works: bool = False
    environment: dict[str, str] = field(default_factory=dict)
    large: list[str] = field(default_factory=list)
    watched: dict[str, str] = field(default_factory=dict)
    figures: dict[str, list[float]] = field(default_factory=dict)

    def note(self, **values: float) -> None:
        for name, value in values.items():
            self.figures.setdefault(name, []).append(value)

    def medians(self) -> dict[str, float]:
        return {name: round(statistics.median(values), 3) for name, values in self.figures.items()}


@dataclass(frozen=True)
class Field:
    """engines   form of the engine -> its command, with {engine} filled in
    missing    peer -> why it does not take part
    """

    contestants: list[Contestant]
    engines: dict[str, list[str]]
    missing: dict[str, str]


def field_of(smg: Path | None, litellm: Path | None, rate: float, only: Sequence[str]) -> Field:
    python, model = sys.executable, str(tiny_checkpoint())
    engines = {HTTP: [python, "-m", "gateway.bench.engine", "--port", "{engine}", "--rate", str(rate)]}
    serve = [python, "-m", "gateway.cli", "gateway", "--model", model, "--engine", "http://127.0.0.1:{engine}"]
    relay = [python, "-m", "gateway.bench.relay", "--port", "{port}", "--target", "{engine}"]
    contestants = [
        Contestant("relay", relay, "/health", large=["images"]),
        Contestant(
            "catalejo",
            [*serve, "--port", "{port}"],
            "/ready",
            works=True,
            large=["images", "text", "ids", "bursts"],
            watched={"CATALEJO_OPERATIONS__PORT": "{spare}", "CATALEJO_OPERATIONS__DEBUG": "true"},
        ),
    ]
    missing: dict[str, str] = {}
    if found := _found("smg", smg):
        common = [found, "launch", "--port", "{port}", "--prometheus-port", "{spare}", "--policy", "round_robin"]
        common += ["--log-level", "warn", "--worker-urls"]
        parsers = ["--model-path", model, "--reasoning-parser", "minimax_m3", "--tool-call-parser", "minimax_m3"]
        contestants.append(Contestant("smg-http", [*common, "http://127.0.0.1:{engine}"], "/readiness"))
        own_python = Path(found).with_name("python")
        if _imports(own_python, "grpc, smg_grpc_proto"):
            script = str(Path(__file__).with_name("grpc_engine.py"))
            engines[GRPC] = [str(own_python), script, "--port", "{engine}", "--rate", str(rate), "--model", model]
            grpc = Contestant(
                "smg-grpc", [*common, "grpc://127.0.0.1:{engine}", *parsers], "/readiness", GRPC, works=True
            )
            contestants.append(grpc)
        else:
            missing["smg-grpc"] = f"{own_python} has no grpcio or no smg-grpc-proto, which its engine needs"
    else:
        missing["smg-http"] = missing["smg-grpc"] = "not installed: pip install smg, then --smg VENV/bin/smg"
    if found := _found("litellm", litellm):
        args = [
            "--drop_params",
            "--model",
            "openai/tiny",
            "--api_base",
            "http://127.0.0.1:{engine}/v1",
            "--port",
            "{port}",
        ]
        alone = {"LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY": "true", "OPENAI_API_KEY": "none"}
        alone |= {"LITELLM_LOG": "ERROR"}
        contestants.append(Contestant("litellm", [found, *args], "/health/liveliness", environment=alone))
    else:
        missing["litellm"] = "not installed: pip install 'litellm[proxy]', then --litellm VENV/bin/litellm"
    if only:
        contestants = [c for c in contestants if c.name in only]
        missing = {name: why for name, why in missing.items() if name in only}
    return Field(contestants, {k: v for k, v in engines.items() if any(c.engine == k for c in contestants)}, missing)


def _found(name: str, given: Path | None) -> str | None:
    if given and not os.access(given, os.X_OK):
        raise SystemExit(f"catalejo bench: {name}: {given} is no executable")
    return str(given) if given else shutil.which(name)


def _imports(python: Path, names: str) -> bool:
    if not os.access(python, os.X_OK):
        return False
    return subprocess.run([python, "-c", f"import {names}"], capture_output=True, check=False).returncode == 0
