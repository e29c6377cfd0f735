"""Random quantities of a scenario: sizes, lengths, gaps. Every draw comes from the run's seed."""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, model_validator


class _Distribution(BaseModel):
    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)


class Constant(_Distribution):
    kind: Literal["constant"] = "constant"
    value: float

    def draw(self, rng: np.random.Generator) -> float:
        return self.value

    def mean_value(self) -> float:
        return self.value


class Uniform(_Distribution):
    kind: Literal["uniform"] = "uniform"
    low: float
    high: float

    @model_validator(mode="after")
    def _ordered(self) -> Uniform:
        if self.high < self.low:
            raise ValueError("low is above high")
        return self

    def draw(self, rng: np.random.Generator) -> float:
        return float(rng.uniform(self.low, self.high))

    def mean_value(self) -> float:
        return (self.low + self.high) / 2


class Lognormal(_Distribution):
    """Given by median and mean, as traffic studies report it: mu = ln(median), sigma^2 = 2 ln(mean / median)."""

    kind: Literal["lognormal"] = "lognormal"
    median: float = Field(gt=0)
    mean: float = Field(gt=0)
    min: float = 0
    max: float = math.inf

    @model_validator(mode="after")
    def _ordered(self) -> Lognormal:
        if self.mean < self.median:
            raise ValueError("a lognormal's mean is at least its median")
        if self.max < self.min:
            raise ValueError("min is above max")
        return self

    def draw(self, rng: np.random.Generator) -> float:
        sigma = math.sqrt(2 * math.log(self.mean / self.median))
        return float(min(self.max, max(self.min, rng.lognormal(math.log(self.median), sigma))))

    def mean_value(self) -> float:
        return min(self.mean, self.max)


class Exponential(_Distribution):
    kind: Literal["exponential"] = "exponential"
    mean: float = Field(ge=0)
    max: float = math.inf

    def draw(self, rng: np.random.Generator) -> float:
        return float(min(self.max, rng.exponential(self.mean)))

    def mean_value(self) -> float:
        return min(self.mean, self.max)


class Mixture(_Distribution):
    """One of `parts`, with probability proportional to `weights`."""

    kind: Literal["mixture"] = "mixture"
    parts: list[Distribution]
    weights: list[float]

    @model_validator(mode="after")
    def _matching(self) -> Mixture:
        if len(self.parts) != len(self.weights) or not self.parts or min(self.weights) < 0 or sum(self.weights) <= 0:
            raise ValueError("a mixture needs as many weights as parts, not negative and not all zero")
        return self

    def draw(self, rng: np.random.Generator) -> float:
        weights = np.asarray(self.weights) / sum(self.weights)
        return self.parts[int(rng.choice(len(self.parts), p=weights))].draw(rng)

    def mean_value(self) -> float:
        total = sum(self.weights)
        return sum(w / total * p.mean_value() for w, p in zip(self.weights, self.parts, strict=True))


def _from_number(value: Any) -> Any:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return {"kind": "constant", "value": value} if number else value


Distribution = Annotated[Constant | Uniform | Lognormal | Exponential | Mixture, Field(discriminator="kind")]
Mixture.model_rebuild()


class Quantity(BaseModel):
    """A distribution written as a number or as {kind: ...}."""

    model_config = ConfigDict(extra="forbid")
    of: Distribution

    @model_validator(mode="before")
    @classmethod
    def _wrap(cls, value: Any) -> Any:
        if isinstance(value, dict) and set(value) == {"of"}:
            return value
        return {"of": _from_number(value)}

    def draw(self, rng: np.random.Generator) -> float:
        return self.of.draw(rng)

    def draw_int(self, rng: np.random.Generator, least: int = 0) -> int:
        return max(least, round(self.of.draw(rng)))

    def mean_value(self) -> float:
        return self.of.mean_value()


def zipf_index(rng: np.random.Generator, count: int, exponent: float) -> int:
    """An index in [0, count) with probability proportional to 1 / (rank ** exponent)."""
    weights = 1.0 / np.arange(1, count + 1) ** exponent
    return int(rng.choice(count, p=weights / weights.sum()))
