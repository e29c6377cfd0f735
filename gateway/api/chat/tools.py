"""Which tools a request offers the model, and whether one must be called."""

from __future__ import annotations

from typing import Any

from gateway.api.chat.protocol import AllowedTools, ChatRequest, NamedTool
from gateway.api.settings import ApiSettings
from gateway.errors import ApiError

Tools = list[dict[str, Any]]


def check_tools(request: ChatRequest, settings: ApiSettings) -> None:
    """Raises ApiError for tools and choices that do not fit together."""
    if request.tools is not None and not request.tools and settings.empty_tools == "refuse":
        raise ApiError("invalid_value", "'tools' is an empty list; leave it out", param="tools")
    if len(request.tools or ()) > settings.max_tools:
        raise ApiError("invalid_value", f"at most {settings.max_tools} tools are allowed", param="tools")
    names: set[str] = set()
    for i, tool in enumerate(request.tools or ()):
        if tool.function.name in names:
            param = f"tools[{i}].function.name"
            message = f"'{param}': another tool is named {tool.function.name!r} too"
            raise ApiError("invalid_value", message, param=param)
        names.add(tool.function.name)
    choice = request.tool_choice
    if choice in (None, "none", "auto"):
        return
    if not names:
        raise ApiError("invalid_value", "'tool_choice' needs 'tools'", param="tool_choice")
    if isinstance(choice, NamedTool):
        _known(choice.function.name, names, "tool_choice.function.name")
    elif isinstance(choice, AllowedTools):
        for i, allowed in enumerate(choice.allowed_tools.tools):
            _known(allowed.function.name, names, f"tool_choice.allowed_tools.tools[{i}].function.name")


def _known(name: str, names: set[str], param: str) -> None:
    if name not in names:
        raise ApiError("invalid_value", f"'{param}' names {name[:128]!r}, which is not in 'tools'", param=param)


def offered(request: ChatRequest) -> tuple[Tools, str | dict[str, Any] | None]:
    """(the tools the model is shown, the choice among them as the grammar takes it)."""
    choice = request.tool_choice
    if choice == "none":
        return [], choice
    tools = [t.model_dump(exclude_none=True) for t in request.tools or ()]
    if isinstance(choice, AllowedTools):
        names = {t.function.name for t in choice.allowed_tools.tools}
        return [t for t in tools if t["function"]["name"] in names], choice.allowed_tools.mode
    return tools, choice.model_dump() if isinstance(choice, NamedTool) else choice
