"""Places per model, before those of the whole gateway: a model whose engines are slow does not take everybody's places.

Per process, also when other limits are shared. A request that waits here holds no place of the gateway."""

from __future__ import annotations

from collections.abc import Mapping

from gateway.admission.gate import Gate


class ModelPlaces:
    """Models without a limit have no entry and cost a look into a dict."""

    def __init__(self) -> None:
        self._gates: dict[str, Gate] = {}

    def apply(self, limits: Mapping[str, tuple[int, int]]) -> None:
        """model -> (places, waiting). Running requests keep their places, also those of a gate that is dropped."""
        for model, (places, waiting) in limits.items():
            if (gate := self._gates.get(model)) is not None:
                gate.resize(places, waiting)
            else:
                self._gates[model] = Gate(places, waiting)
        for model in set(self._gates) - set(limits):
            self._gates.pop(model).resize(1 << 31, 0)  # whoever waits goes in

    def full(self, model: str) -> bool:
        gate = self._gates.get(model)
        return gate is not None and gate.full

    async def enter(self, model: str, tenant: str, priority: int) -> ModelPlace:
        """Waits for a place. Raises GateFull when too many wait already."""
        gate = self._gates.get(model)
        if gate is not None:
            await gate.enter(tenant, priority=priority)
        return ModelPlace(gate, tenant)

    def take(self, model: str, tenant: str) -> ModelPlace | None:
        """A place at once, or None."""
        gate = self._gates.get(model)
        if gate is not None and not gate.try_enter(tenant):
            return None
        return ModelPlace(gate, tenant)


class ModelPlace:
    """A place held. It belongs to the gate it was taken from, even if that one is no longer in the table."""

    def __init__(self, gate: Gate | None, tenant: str) -> None:
        self._gate = gate
        self._tenant = tenant

    def leave(self) -> None:
        gate, self._gate = self._gate, None
        if gate is not None:
            gate.leave(self._tenant)
