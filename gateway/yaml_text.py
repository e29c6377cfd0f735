"""YAML from outside: whatever is wrong with it, one error with one line."""

from __future__ import annotations

from typing import Any

import yaml


class _Loader(yaml.SafeLoader):
    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        """PyYAML's own raise whatever they meet: `!!bool x` KeyError, `!!int ""` IndexError, 2020-13-40 ValueError."""
        try:
            return super().construct_object(node, deep)
        except (yaml.YAMLError, RecursionError):
            raise
        except Exception:
            kind = node.tag.rpartition(":")[2]
            raise yaml.constructor.ConstructorError(None, None, f"this is no {kind}", node.start_mark) from None


def parse(text: str | bytes) -> Any:
    """The plain values in it. Raises ValueError; its text is one line and quotes no value."""
    try:
        return yaml.load(text, _Loader)  # noqa: S506 - it is a SafeLoader
    except yaml.MarkedYAMLError as e:
        at = e.problem_mark or e.context_mark
        place = f" at line {at.line + 1}, column {at.column + 1}" if at else ""
        raise ValueError(_one_line(f"{e.problem or e.context}{place}")) from None
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except (yaml.YAMLError, ValueError) as e:  # bytes that are no text, and the like
        raise ValueError(_one_line(str(e))) from None


def _one_line(text: str) -> str:
    return " ".join(text.split())[:300]
