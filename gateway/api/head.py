"""HEAD: what GET would answer, without the body."""

from __future__ import annotations

from starlette.types import Scope


def as_get(scope: Scope) -> Scope:
    """The scope for the application. The server knows its own, where it is a HEAD, and sends no body."""
    return {**scope, "method": "GET"} if scope.get("method") == "HEAD" else scope
