"""Which metric names a PromQL text uses, and which the code exports."""

from __future__ import annotations

import re
from pathlib import Path

from prometheus_client import CollectorRegistry

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "deploy" / "helm" / "catalejo"
NAME = re.compile(r"\b(?:catalejo_|sglang:)[a-z0-9_:]+")


def used(text: str) -> set[str]:
    return set(NAME.findall(text))


def exported(registry: CollectorRegistry) -> dict[str, set[str]]:
    """Sample name -> its label names. `le` belongs to buckets."""
    out: dict[str, set[str]] = {}
    for metric in registry.collect():
        labels = set(getattr(_owner(registry, metric.name), "_labelnames", ()))
        for sample in metric.samples:
            labels |= set(sample.labels)
        suffixes = {
            "counter": ["_total"],
            "histogram": ["_bucket", "_sum", "_count"],
            "info": ["_info"],
        }.get(metric.type, [""])
        for suffix in suffixes:
            out[metric.name + suffix] = labels | ({"le"} if suffix == "_bucket" else set())
    return out


def _owner(registry: CollectorRegistry, name: str) -> object:
    collectors = registry._names_to_collectors  # the only way from a name to its declared labels
    return collectors.get(name) or collectors.get(f"{name}_total")
