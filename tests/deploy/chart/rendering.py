"""Renders the chart with the real helm. Cached: many tests look at the same render."""

from __future__ import annotations

import json
import os
import re
import subprocess
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml

from tests.deploy.metric_names import CHART

Object = dict[str, Any]


class RenderError(Exception):
    """helm refused; the text is its last lines."""


def helm() -> Path:
    return Path(os.environ["CATALEJO_TOOLS"]) / "helm"


@dataclass(frozen=True)
class Render:
    objects: tuple[Object, ...]

    def all(self, kind: str) -> list[Object]:
        return [o for o in self.objects if o["kind"] == kind]

    def one(self, kind: str, ending: str = "") -> Object:
        found = [o for o in self.all(kind) if o["metadata"]["name"].endswith(ending)]
        assert len(found) == 1, (
            f"{len(found)} objects {kind} *{ending}: {[o['metadata']['name'] for o in self.objects]}"
        )
        return found[0]


def pod_of(workload: Object) -> Object:
    if workload["kind"] == "Pod":
        return workload["spec"]
    if workload["kind"] == "LeaderWorkerSet":
        return workload["spec"]["leaderWorkerTemplate"]["leaderTemplate"]["spec"]
    return workload["spec"]["template"]["spec"]


def container(workload: Object) -> Object:
    return pod_of(workload)["containers"][0]


def render(
    *sets: str, files: tuple[str, ...] = ("values-cpu-demo.yaml",), extra: str = "", kube: str = "1.36.0"
) -> Render:
    """`sets` are `a.b=c` or JSON (`a.b:={...}`); `files` are the chart's own; `extra` is YAML text."""
    return _render(sets, files, extra, kube)


def set_arguments(sets: tuple[str, ...]) -> list[str]:
    """Every value as --set-json: helm applies all of those before any --set, so mixing the two would reorder them."""
    out = []
    for text in sets:
        key, json_mark, raw = text.partition(":=")
        if not json_mark:
            key, _, raw = text.partition("=")
            raw = raw if re.fullmatch(r"true|false|null|-?\d+", raw) else json.dumps(raw)
        out += ["--set-json", f"{key}={raw}"]
    return out


@lru_cache(maxsize=256)
def _render(sets: tuple[str, ...], files: tuple[str, ...], extra: str, kube: str) -> Render:
    command = [str(helm()), "template", "m3", str(CHART), "--namespace", "serving", "--kube-version", kube]
    for name in files:
        command += ["-f", str(CHART / name)]
    if extra:
        command += ["-f", "-"]
    command += set_arguments(sets)
    done = subprocess.run(command, input=extra, capture_output=True, text=True)
    if done.returncode:
        raise RenderError(done.stderr.strip())
    return Render(tuple(o for o in yaml.safe_load_all(done.stdout) if o))
