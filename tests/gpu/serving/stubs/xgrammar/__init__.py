"""Stand-in for xgrammar (44 MB): tool-call parsers import its classes by name; --grammar-backend none uses none."""

from pydantic import BaseModel, ConfigDict

__version__ = "0.2.1"
_made: dict[str, type] = {}


class _Any(BaseModel):
    model_config = ConfigDict(arbitrary_types_allowed=True, extra="allow")


def __getattr__(name: str) -> type:
    if name.startswith("__"):
        raise AttributeError(name)
    return _made.setdefault(name, type(name, (_Any,), {}))
