"""Places per model, before those of the whole gateway: a model whose engines are slow does not take everybody's places.

Per process, also when other limits are shared: each of several processes has its part of the places. A request that waits
here holds no place of the gateway."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from gateway.admission.gate import Gate


def no_place() -> None:
    """Gives back the place at a model that has no limit."""


class ModelPlaces:
    """A model without a limit has no gate. What `enter` and `take` return gives the place back, also after its gate has
    left the table."""

    def __init__(self, process: tuple[int, int] = (0, 1)) -> None:
        """`process`: the number of this one, and how many have the limits together."""
        self._number, self._processes = process
        self._gates: dict[str, Gate] = {}

    def apply(self, limits: Mapping[str, tuple[int, int]]) -> None:
        """model -> (places, waiting). Running requests keep their places."""
        for model, (all_places, waiting) in limits.items():
            places = self._part(all_places)
            if model in self._gates:
                self._gates[model].resize(places, waiting)
            else:
                self._gates[model] = Gate(places, waiting)
        for model in set(self._gates) - set(limits):
            self._gates.pop(model).resize(1 << 31, 0)  # whoever waits goes in

    def _part(self, places: int) -> int:
        """All parts together are `places`, but no process is left without one."""
        return max(1, places // self._processes + (self._number < places % self._processes))

    def full(self, model: str) -> bool:
        gate = self._gates.get(model)
        return gate is not None and gate.full

    async def enter(self, model: str, tenant: str, priority: int) -> Callable[[], None]:
        """Waits for a place. Raises GateFull when too many wait already."""
        gate = self._gates.get(model)
        return no_place if gate is None else await gate.enter(tenant, priority=priority)

    def take(self, model: str, tenant: str) -> Callable[[], None] | None:
        """A place at once, or None."""
        gate = self._gates.get(model)
        return no_place if gate is None else gate.try_enter(tenant)
