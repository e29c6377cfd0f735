"""Places per model, before those of the whole gateway: a model whose engines are slow does not take everybody's places.

Of one command, also when other limits are shared by several. A request that waits here holds no place of the gateway."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from gateway.admission.gate import Gate, GateFull
from gateway.admission.places import Leave, Places


class ModelGate(Places, Protocol):
    @property
    def full(self) -> bool:
        """Whoever comes now would wait."""


MakeGate = Callable[[str, int, int], ModelGate]
"""(model, places, waiting)."""


def no_place() -> None:
    """Gives back the place at a model that has no limit."""


class ModelPlaces:
    """A model without a limit has no gate. What `enter`, `take` and `take_now` return gives the place back, also after its gate
    has left the table."""

    def __init__(self, make: MakeGate | None = None) -> None:
        """`make`: where the places are not this process's own."""
        self._make: MakeGate = make or (lambda model, places, waiting: Gate(places, waiting))
        self._gates: dict[str, ModelGate] = {}

    def apply(self, limits: Mapping[str, tuple[int, int]]) -> None:
        """model -> (places, waiting). Running requests keep their places."""
        for model, (places, waiting) in limits.items():
            if model in self._gates:
                self._gates[model].resize(places, waiting)
            else:
                self._gates[model] = self._make(model, places, waiting)
        for model in set(self._gates) - set(limits):
            self._gates.pop(model).resize(1 << 31, 0)  # whoever waits goes in

    def full(self, model: str) -> bool:
        gate = self._gates.get(model)
        return gate is not None and gate.full

    async def enter(self, model: str, tenant: str, priority: int) -> Leave:
        """Waits for a place. Raises GateFull when too many wait already."""
        gate = self._gates.get(model)
        return no_place if gate is None else await gate.enter(tenant, priority=priority)

    def take(self, model: str, tenant: str) -> Leave | None:
        """A place at once; None: none is free, or somebody must be asked."""
        gate = self._gates.get(model)
        return no_place if gate is None else gate.try_enter(tenant)

    async def take_now(self, model: str, tenant: str) -> Leave | None:
        """A place, or None when none is free: waits for the answer of whoever hands them out, never for a place."""
        gate = self._gates.get(model)
        if gate is None:
            return no_place
        try:
            return await gate.enter(tenant, max_queue=0)
        except GateFull:
            return None
