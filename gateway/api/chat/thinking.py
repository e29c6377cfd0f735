"""Which thinking mode a request asks for. First that is given wins:
`thinking` ({"type": mode} or mode) > `chat_template_kwargs` (thinking_mode, or enable_thinking true/false)
> `reasoning_effort` (none, minimal: disabled; low and above: enabled; M3 has no levels) > the configured default.
"""

from __future__ import annotations

from typing import Any, Final

from gateway.api.chat.protocol import ChatRequest, ThinkingObject
from gateway.errors import ApiError

MODES: Final = ("enabled", "disabled", "adaptive")


def thinking_mode(request: ChatRequest, default: str | None) -> str | None:
    """None: the template's own default, adaptive for M3."""
    return _asked(request) or default


def template_kwargs(request: ChatRequest) -> dict[str, Any] | None:
    """What is left for the template: the mode travels by its own way."""
    kwargs = request.chat_template_kwargs
    return {k: v for k, v in kwargs.items() if k not in ("thinking_mode", "enable_thinking")} if kwargs else None


def _asked(request: ChatRequest) -> str | None:
    if request.thinking is not None:
        return request.thinking.type if isinstance(request.thinking, ThinkingObject) else request.thinking
    kwargs = request.chat_template_kwargs or {}
    if (mode := kwargs.get("thinking_mode")) is not None:
        if mode not in MODES:
            param = "chat_template_kwargs.thinking_mode"
            raise ApiError("invalid_value", f"'{param}' must be one of {', '.join(MODES)}", param=param)
        return str(mode)
    if (enable := kwargs.get("enable_thinking")) is not None:
        if not isinstance(enable, bool):
            param = "chat_template_kwargs.enable_thinking"
            raise ApiError("invalid_value", f"'{param}' must be true or false", param=param)
        return "enabled" if enable else "disabled"
    if request.reasoning_effort is not None:
        return "disabled" if request.reasoning_effort in ("none", "minimal") else "enabled"
    return None
