"""What the names clients ask for stand for: a model, or a route that is split over models and falls back to others.

A route's split is weighted rendezvous hashing (Schindelhauer & Schomaker 2005): each model scores -weight / ln(u), the
highest wins; u in (0, 1) comes from hash(route, session, model), so a conversation stays with its model and a changed
weight moves only as many sessions as it must. Without a session u is drawn: then it is weighted sampling without
replacement (Efraimidis & Spirakis 2006)."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from blake3 import blake3

from gateway.admission.settings import AdmissionSettings
from gateway.api.generation.served import ServedModel
from gateway.api.models.settings import ModelSettings, RouteSettings
from gateway.errors import ApiError


@dataclass(frozen=True, slots=True, eq=False)
class Target:
    """`root`: the model's or route's own name, of which `name` may be an alias. `split`: models with a weight above 0."""

    name: str
    root: str
    split: tuple[tuple[ServedModel, float], ...]
    fallbacks: tuple[ServedModel, ...] = ()
    is_route: bool = False

    @property
    def first(self) -> ServedModel:
        """Whose tokens are meant when a client sends or asks for token ids."""
        return self.split[0][0]

    @property
    def context_length(self) -> int:
        """What fits whichever model the split draws."""
        return min(model.pipeline.context_length for model, _ in self.split)

    def chain(self, session: str, *, with_ids: bool) -> Sequence[ServedModel]:
        """Models in the order they are to be tried. `with_ids`: the request holds token ids, so only models with the
        first one's tokenizer will do."""
        if not self.is_route:
            return (self.first,)
        drawn = sorted(self.split, key=lambda one: self._score(session, *one), reverse=True)
        models = [model for model, _ in drawn] + list(self.fallbacks)
        return [m for m in models if m.tokenizer == self.first.tokenizer] if with_ids else models

    def _score(self, session: str, model: ServedModel, weight: float) -> float:
        if session:
            digest = blake3(f"{self.root}\x00{session}\x00{model.name}".encode()).digest(length=8)
            u = (int.from_bytes(digest, "big") + 0.5) / 2**64
        else:
            u = random.random()
        return -weight / math.log(min(max(u, 1e-300), 1 - 1e-16))

    def told(self, model: ServedModel) -> str:
        """The `model` of an answer: the name that was asked for, or of a route the model that served."""
        return model.name if self.is_route else self.name


class Catalogue:
    """`apply` swaps everything at once; requests under way keep the target they have."""

    def __init__(self, models: Sequence[ServedModel], created: int) -> None:
        self.models: Mapping[str, ServedModel] = {m.name: m for m in models}
        self._created = created
        self._targets: dict[str, Target] = {}
        self._allowed: dict[str, frozenset[str]] = {}

    def apply(
        self, models: Sequence[ModelSettings], routes: Sequence[RouteSettings], admission: AdmissionSettings
    ) -> None:
        """Names, routes and who may use which. The settings are valid, and name no model that is not served here."""
        targets: dict[str, Target] = {}
        for route in routes:
            split = tuple((self.models[name], weight) for name, weight in route.weights.items() if weight)
            fallbacks = tuple(self.models[name] for name in route.fallbacks)
            targets |= {name: Target(name, route.name, split, fallbacks, is_route=True) for name in route.names}
        for model in models:
            only = ((self.models[model.served_name], 1.0),)
            targets |= {name: Target(name, model.served_name, only) for name in model.names}
        self._targets = targets
        self._allowed = {t.name: self._expanded(t.models) for t in admission.tenants if t.models is not None}

    def _expanded(self, names: Iterable[str]) -> frozenset[str]:
        """An own name stands for its aliases too; an alias for itself alone."""
        given = set(names)
        return frozenset(n for n, target in self._targets.items() if n in given or target.root in given)

    def target(self, name: str, tenant: str) -> Target:
        """Raises ApiError("model_not_found"), the same for a name that is not there and one the tenant may not use."""
        found = self._targets.get(name)
        allowed = self._allowed.get(tenant)
        if found is not None and (allowed is None or name in allowed):
            return found
        names = ", ".join(t.name for t in self.targets(tenant))
        if allowed is None:
            message = f"The model '{name[:200]}' does not exist. This server serves: {names}."
        else:
            message = f"The model '{name[:200]}' does not exist, or this key may not use it. It may use: {names}."
        raise ApiError("model_not_found", message, param="model")

    def targets(self, tenant: str) -> list[Target]:
        """What the tenant may use, routes first."""
        allowed = self._allowed.get(tenant)
        return [t for t in self._targets.values() if allowed is None or t.name in allowed]

    def default(self, tenant: str) -> str:
        """For requests that may leave `model` out: the first model's name, or the first name that the tenant may use."""
        first = next(iter(self.models))
        allowed = self._allowed.get(tenant)
        if allowed is None or first in allowed:
            return first
        return next((name for name in self._targets if name in allowed), first)

    def entry(self, target: Target) -> dict[str, Any]:
        """What /v1/models says of one name."""
        context = target.context_length
        return {
            "id": target.name,
            "object": "model",
            "created": self._created,
            "owned_by": "catalejo",
            "root": target.root,
            "parent": None if target.name == target.root else target.root,
            "max_model_len": context,
            "context_length": context,
            "input_modalities": ["text", "image", "video"],
            "output_modalities": ["text"],
        }
