"""What both engines accept as sampling parameters: one table, one check."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from engine.wire.errors import BadSampling
from engine.wire.messages import is_int


@dataclass(frozen=True, slots=True)
class SamplingField:
    kind: type
    low: float | None = None
    high: float | None = None
    low_open: bool = False


SAMPLING_FIELDS: Final[Mapping[str, SamplingField]] = {
    "max_new_tokens": SamplingField(int, 0),
    "min_new_tokens": SamplingField(int, 0),
    "temperature": SamplingField(float, 0),
    "top_p": SamplingField(float, 0, 1, low_open=True),
    "top_k": SamplingField(int, -1),
    "min_p": SamplingField(float, 0, 1),
    "repetition_penalty": SamplingField(float, 0, 2, low_open=True),
    "frequency_penalty": SamplingField(float, -2, 2),
    "presence_penalty": SamplingField(float, -2, 2),
    "logit_bias": SamplingField(dict),
    "sampling_seed": SamplingField(int),
    "stop_token_ids": SamplingField(list),
    "ignore_eos": SamplingField(bool),
}
"""The one table of what both engines accept (SGLang's names). `top_k` -1 means off; `temperature` 0 means greedy."""


def check_sampling(sampling: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a checked copy. Raises BadSampling naming the parameter and its bounds."""
    out: dict[str, Any] = {}
    for name, given in sampling.items():
        value: Any = given
        spec = SAMPLING_FIELDS.get(name)
        where = f"sampling.{name}"
        if spec is None:
            raise BadSampling(f"sampling parameter {name!r} is not supported by this engine", param=where)
        if value is None:
            continue
        if spec.kind is float and isinstance(value, int) and not isinstance(value, bool):
            value = float(value)
        if not _has_kind(value, spec.kind):
            raise BadSampling(f"{name} must be {spec.kind.__name__}, got {type(value).__name__}", param=where)
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            _check_bounds(name, value, spec)
        elif name == "stop_token_ids":
            if not all(is_int(v) and v >= 0 for v in value):
                raise BadSampling("stop_token_ids must be a list of token ids", param=where)
        elif name == "logit_bias":
            value = _check_logit_bias(value)
        out[name] = value
    return out


def _has_kind(value: Any, kind: type) -> bool:
    return isinstance(value, kind) and not (kind is int and isinstance(value, bool))


def _check_bounds(name: str, value: float, spec: SamplingField) -> None:
    too_low = spec.low is not None and (value < spec.low or (spec.low_open and value == spec.low))
    too_high = spec.high is not None and value > spec.high
    if too_low or too_high or not math.isfinite(value):
        edge = "(" if spec.low_open else "["
        bounds = (
            f"{edge}{spec.low if spec.low is not None else '-inf'}, {spec.high if spec.high is not None else 'inf'}]"
        )
        raise BadSampling(f"{name} is {value}; it must lie in {bounds}", param=f"sampling.{name}")


def _check_logit_bias(value: Mapping[str, Any]) -> dict[str, float]:
    out: dict[str, float] = {}
    for key, bias in value.items():
        number = isinstance(bias, (int, float)) and not isinstance(bias, bool)
        if not str(key).isascii() or not str(key).isdigit() or not number or not -100 <= bias <= 100:
            raise BadSampling(
                "logit_bias must map token ids to numbers in [-100, 100]", param=f"sampling.logit_bias.{key}"
            )
        out[str(int(key))] = float(bias)
    return out
