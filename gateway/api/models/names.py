"""The names a client may ask for: the served model and its aliases."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gateway.errors import ApiError


class ModelNames:
    """`entry(name)` is what /v1/models says of one name."""

    def __init__(self, names: Sequence[str], created: int) -> None:
        self.names = tuple(names)
        self.served = self.names[0]
        self._created = created

    def check(self, name: str) -> None:
        if name not in self.names:
            served = ", ".join(self.names)
            message = f"The model '{name[:200]}' does not exist. This server serves: {served}."
            raise ApiError("model_not_found", message, param="model")

    def entry(self, name: str, context_length: int) -> dict[str, Any]:
        return {
            "id": name,
            "object": "model",
            "created": self._created,
            "owned_by": "catalejo",
            "root": self.served,
            "parent": None if name == self.served else self.served,
            "max_model_len": context_length,
            "context_length": context_length,
            "input_modalities": ["text", "image", "video"],
            "output_modalities": ["text"],
        }
