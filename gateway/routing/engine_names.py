"""Engine names are one set for all models of a gateway: labels of metrics, and what an administrator calls an engine by."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from gateway.routing.settings import EngineEndpoint

Owners = dict[str, tuple[str, bool]]
"""Engine -> its model, and whether discovery found it."""


class EngineNames:
    """Those of `model`'s engines; `owners` is one for all models.

    That configured names differ is the configuration's own rule, which looks at all of it at once: here it would forbid a
    reload to move a name from one model to another."""

    def __init__(self, model: str, owners: Owners) -> None:
        self.model = model
        self._owners = owners

    @contextmanager
    def claimed(self, configured: Sequence[EngineEndpoint], found: Sequence[EngineEndpoint]) -> Iterator[None]:
        """These are the model's engines, and no others, if the body ends well. Raises ValueError for a name that is another
        model's."""
        mine = {e.name: (self.model, True) for e in found if e.name}
        mine |= {e.name: (self.model, False) for e in configured if e.name}
        for name, (model, is_found) in mine.items():
            other, other_is_found = self._owners.get(name, (model, False))
            if other != model and (is_found or other_is_found):
                raise ValueError(f"engines: names must differ; {name!r} of {model!r} is in {other!r} too")
        yield
        for name in [n for n, (model, _) in self._owners.items() if model == self.model]:
            del self._owners[name]
        self._owners.update(mine)
