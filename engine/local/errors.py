"""The embedded engine's own errors. What it refuses by the contract is in engine/contract/errors.py."""

from __future__ import annotations


class CheckpointError(Exception):
    """The checkpoint cannot be served: a missing file, a tensor too many or too few. Ends the start-up."""
