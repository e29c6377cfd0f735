"""Fields we do not know, and fields we know we cannot honour."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from gateway.api.generation.protocol import GenerationRequest
from gateway.errors import ApiError
from gateway.metrics import Metrics

REFUSED: Final[Mapping[str, str]] = {
    "functions": "use 'tools'",
    "function_call": "use 'tool_choice'",
    "audio": "this model writes text only",
    "prediction": "predicted outputs are not supported",
    "web_search_options": "web search is not supported",
    "best_of": "use 'n'",
    "suffix": "insertion is not supported",
    "use_beam_search": "beam search is not supported",
    "guided_json": "use 'response_format'",
    "guided_regex": "use 'response_format'",
    "guided_grammar": "use 'response_format'",
    "lora_path": "adapters are not served",
}
"""Ignoring these would give an answer the client did not ask for."""


def check_unknown(request: GenerationRequest, route: str, strict: bool, metrics: Metrics) -> None:
    """Raises ApiError for a field of REFUSED that is set, and for any unknown one when strict; counts the others."""
    if not request.model_extra:
        return
    for name, value in request.model_extra.items():
        if value is None:
            continue
        if name in REFUSED:
            raise ApiError("unsupported_parameter", f"'{name}' is not supported: {REFUSED[name]}", param=name)
        if strict or request.strict_fields:
            raise ApiError("unknown_parameter", f"unknown parameter: '{name[:80]}'", param=name[:80])
        metrics.unknown_fields.labels(route).inc()
