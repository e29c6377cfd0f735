"""The usage object, the same for stream and plain answers."""

from __future__ import annotations

from typing import Any

from gateway.api.generation.run import Run


def usage_of(run: Run) -> dict[str, Any]:
    completion = run.completion_tokens
    return {
        "prompt_tokens": run.prompt_tokens,
        "completion_tokens": completion,
        "total_tokens": run.prompt_tokens + completion,
        "prompt_tokens_details": {"cached_tokens": run.cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": run.reasoning_tokens},
    }
