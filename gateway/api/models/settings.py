"""Settings of the models behind one gateway: each with its own checkpoint and engines, and the names that lead to them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from pydantic import BaseModel, ConfigDict, Field, SecretStr, model_validator

from gateway.routing.discovery import DiscoverySettings
from gateway.routing.settings import EngineEndpoint, RoutingSettings

PRINTABLE: Final = re.compile(r"[!-~]([ -~]*[!-~])?")


class ModelSettings(BaseModel):
    """One model: a checkpoint for prompts and parsing, and the engines that run it."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False, protected_namespaces=())

    name: str | None = Field(
        default=None,
        min_length=1,
        max_length=512,
        description="Public name; absent: the checkpoint folder's (its parent's, if it is called `model`).",
    )
    aliases: list[str] = Field(default_factory=list, description="Other names clients may ask for.")
    model_path: Path = Field(description="Checkpoint folder: tokenizer, chat template, config.json.")
    context_length: int | None = Field(
        default=None,
        ge=1,
        description="Most tokens of prompt and answer; absent: the engines' or the checkpoint's own.",
    )
    engines: list[EngineEndpoint] = Field(default_factory=list, description="Engines that run this model.")
    discovery: DiscoverySettings = Field(
        default_factory=DiscoverySettings, description="Where more engines of this model are found."
    )
    engine_token: SecretStr | None = Field(default=None, description="Bearer token for engines that name none.")
    routing: RoutingSettings | None = Field(
        default=None, description="Routing of this model, whole; absent: the gateway's own `routing`."
    )
    max_in_flight: int | None = Field(
        default=None, ge=1, description="Generations of this model at the same time, of everybody; absent: no limit."
    )
    max_queue: int = Field(
        default=256, ge=0, description="Requests that wait for one of the model's `max_in_flight` places."
    )

    @property
    def served_name(self) -> str:
        return self.name or checkpoint_name(self.model_path)

    @property
    def names(self) -> tuple[str, ...]:
        """The served name first, then its aliases, each once."""
        return tuple(dict.fromkeys((self.served_name, *self.aliases)))


class RouteSettings(BaseModel):
    """A public name that is split over models by weight, and falls back to others in order."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    name: str = Field(min_length=1, max_length=512, description="Public name; it may not be a model's.")
    aliases: list[str] = Field(default_factory=list, description="Other names for the same route.")
    weights: dict[str, float] = Field(
        min_length=1, description="Model name: its share of the requests. Weights are relative; 0 takes a model out."
    )
    fallbacks: list[str] = Field(
        default_factory=list,
        description="Models to try in this order when those with a weight are unavailable or full, before the first token.",
    )

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys((self.name, *self.aliases)))

    @model_validator(mode="after")
    def _weights(self) -> RouteSettings:
        if wrong := [name for name, weight in self.weights.items() if not 0 <= weight < 1e9]:
            raise ValueError(f"weights.{wrong[0]} is {self.weights[wrong[0]]:g}; a weight is from 0 to below 1e9")
        if not any(self.weights.values()):
            raise ValueError("weights: at least one must be above 0")
        if twice := [n for i, n in enumerate(self.fallbacks) if n in self.fallbacks[:i] or self.weights.get(n)]:
            raise ValueError(f"fallbacks: {twice[0]} is in the route already")
        return self


def checkpoint_name(path: Path) -> str:
    """The folder's name; its parent's when the folder is called `model`, which says nothing."""
    path = path.resolve()
    return path.parent.name if path.name == "model" else path.name


def name_mistakes(models: list[ModelSettings], routes: list[RouteSettings]) -> Iterator[str]:
    """What is wrong with the names of models and routes taken together: one sentence each."""
    for name in (m.served_name for m in models):
        if not PRINTABLE.fullmatch(name):
            yield f"model name {name!r}: only printable ASCII characters are allowed, since it is sent in a header"
    owners: dict[str, str] = {}
    for kind, name, names in [
        *(("model", m.served_name, m.names) for m in models),
        *(("route", r.name, r.names) for r in routes),
    ]:
        for one in names:
            if one in owners:
                yield f"the name {one!r} is given to {owners[one]} and to the {kind} {name!r}"
            owners.setdefault(one, f"the {kind} {name!r}")
    known = {m.served_name for m in models}
    for route in routes:
        for named in (*route.weights, *route.fallbacks):
            if named not in known:
                yield f"routes: {route.name!r} names the model {named!r}; there are: {', '.join(sorted(known))}"
    engines: dict[str, str] = {}
    for model in models:
        for label in (e.name for e in model.engines if e.name):
            if label in engines:
                where = "there twice" if engines[label] == model.served_name else f"in {engines[label]!r} too"
                yield f"engines: names must differ; {label!r} of {model.served_name!r} is {where}"
            engines[label] = model.served_name
