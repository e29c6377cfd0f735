"""The front end: from an OpenAI request to the engine's contract and back. See docs/architecture.md."""

from __future__ import annotations


def version() -> str:
    """The installed distribution's version, or "0+unknown" when run from a bare checkout."""
    from importlib.metadata import PackageNotFoundError
    from importlib.metadata import version as of

    try:
        return of("catalejo")
    except PackageNotFoundError:
        return "0+unknown"
