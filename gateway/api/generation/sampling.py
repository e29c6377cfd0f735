"""Request fields -> the engine's sampling names. What the client did not set is not sent, except the checkpoint's own
defaults (generation_config.json: temperature, top_p, top_k, ...) and the ids that end a turn."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import orjson

from gateway.api.generation.protocol import GenerationRequest
from gateway.errors import ApiError

DEFAULTS_TAKEN: Final = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
SMALLEST_TOP_P: Final = 1e-6
PRIORITY_OF_TIER: Final[Mapping[str, int]] = {"priority": 10, "flex": -10}


def generation_defaults(model_path: Path) -> dict[str, Any]:
    """Sampling defaults of a checkpoint. An absent or broken file means none. do_sample is not read: transformers
    writes it as false into every file that nobody wrote by hand."""
    try:
        config = orjson.loads((model_path / "generation_config.json").read_bytes())
    except (OSError, orjson.JSONDecodeError):
        return {}
    if not isinstance(config, dict):
        return {}
    return {k: config[k] for k in DEFAULTS_TAKEN if isinstance(config.get(k), (int, float))}


def sampling_of(
    request: GenerationRequest, defaults: Mapping[str, Any], eos_ids: tuple[int, ...], vocab_size: int
) -> dict[str, Any]:
    """Raises ApiError for token ids outside the vocabulary."""
    out: dict[str, Any] = dict(defaults)
    for name, value in (
        ("temperature", request.temperature),
        ("top_p", None if request.top_p is None else max(request.top_p, SMALLEST_TOP_P)),
        ("top_k", None if request.top_k is None else request.top_k or -1),
        ("min_p", request.min_p),
        ("repetition_penalty", request.repetition_penalty),
        ("frequency_penalty", request.frequency_penalty),
        ("presence_penalty", request.presence_penalty),
        ("logit_bias", _logit_bias(request.logit_bias, vocab_size)),
        ("sampling_seed", request.seed),
        ("min_new_tokens", request.min_tokens),
        ("ignore_eos", request.ignore_eos),
    ):
        if value is not None:
            out[name] = value
    more = request.stop_token_ids or []
    if wrong := [i for i in more if i >= vocab_size]:
        raise _outside(wrong[0], vocab_size, "stop_token_ids")
    out["stop_token_ids"] = list(dict.fromkeys((*eos_ids, *more)))
    return out


def _logit_bias(bias: Mapping[str, float] | None, vocab_size: int) -> dict[str, float] | None:
    if not bias:
        return None
    for key in bias:
        if not key.isascii() or not key.isdigit():
            raise ApiError("invalid_value", f"logit_bias: {key[:40]!r} is not a token id", param="logit_bias")
        if len(key) > 10 or int(key) >= vocab_size:
            raise _outside(key[:40], vocab_size, "logit_bias")
    return {str(int(k)): v for k, v in bias.items()}


def _outside(token: object, vocab_size: int, param: str) -> ApiError:
    message = f"{param}: token id {token} is outside the vocabulary of {vocab_size} tokens"
    return ApiError("invalid_value", message, param=param)


def priority_of(priority: int | None, tier: str | None) -> int:
    """An explicit priority wins over the service tier's."""
    return priority if priority is not None else PRIORITY_OF_TIER.get(tier or "", 0)
