"""OpenAI-shaped messages in, what a chat template takes out: checked, hidden (shadow.py), and free of surprises.

Every refusal is ApiError("invalid_messages") with `param`. The rules, also in docs/prompt.md:
* `root` may only come first. The model has one developer turn: later system/developer messages join it, or are refused.
* Assistant content null, "" and absent are the same. Without a reasoning field, content is cut at the end-of-thinking
  marker (what the template would do itself, if it could see it).
* Arguments become a mapping whatever they are: {} for nothing, {"arguments": text} for what is no JSON object.
* A tool message must follow, other tool messages aside, an assistant message with tool calls.

Not here: fetching of media (a part is only {"type": "image" | "video"} here), limits on bytes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from gateway.errors import ApiError
from gateway.prompt import markers
from gateway.prompt.json_text import SURROGATE
from gateway.prompt.settings import PromptSettings
from gateway.prompt.shadow import CUT, NotText, Shadow

ROLES: Final = ("root", "system", "developer", "user", "assistant", "tool")
_DEVELOPER: Final = ("system", "developer")
MediaKind = Literal["image", "video"]


@dataclass
class Conversation:
    messages: list[dict[str, Any]] = field(default_factory=list)
    media: list[MediaKind] = field(default_factory=list)
    """In the order of the placeholders the template will print."""


def refuse(message: str, param: str | None) -> ApiError:
    return ApiError("invalid_messages", message, param=param)


class MessageReader:
    """Reads one conversation."""

    def __init__(self, shadow: Shadow, settings: PromptSettings, *, continue_final: bool = False) -> None:
        self._shadow = shadow
        self._settings = settings
        self._continue_final = continue_final

    def read(self, messages: Sequence[Any]) -> Conversation:
        if not messages:
            raise refuse("messages must hold at least one message", "messages")
        for i, m in enumerate(messages):
            if not isinstance(m, Mapping):
                raise refuse(f"messages[{i}] must be an object", f"messages[{i}]")
            if m.get("role") not in ROLES:
                raise refuse(
                    f"messages[{i}].role is {m.get('role')!r}; it must be one of {', '.join(ROLES)}",
                    f"messages[{i}].role",
                )
        if all(m["role"] == "assistant" for m in messages) and not self._continue_final:
            raise refuse(
                "the conversation has only assistant messages: add a user message, or set continue_final_message",
                "messages",
            )
        conversation = Conversation()
        developer: dict[str, Any] | None = None
        previous: Mapping[str, Any] | None = None  # the last message that is neither tool, system nor developer
        for i, m in enumerate(messages):
            role, param = m["role"], f"messages[{i}]"
            if role == "root" and i:
                raise refuse(f"{param}: a root message may only be the first", f"{param}.role")
            if role == "tool" and not (previous and previous["role"] == "assistant" and previous.get("tool_calls")):
                raise refuse(f"{param}: a tool message must follow an assistant message with tool_calls", param)
            try:
                read = self._message(m, param, conversation.media, final=i == len(messages) - 1)
            except NotText as e:
                raise refuse(f"{param}: {e}", param) from None
            if role not in _DEVELOPER:
                if role != "tool":
                    previous = m
                conversation.messages.append(read)
                continue
            leading = len(conversation.messages) == (1 if messages[0]["role"] == "root" else 0)
            if not (leading and developer is None) and self._settings.later_system == "refuse":
                raise refuse(f"{param}: this model takes one system or developer message, before all others", param)
            if developer is None:
                developer = read
            else:
                developer["content"] = _joined(developer["content"], read["content"])
        if developer is not None:
            conversation.messages.insert(1 if messages[0]["role"] == "root" else 0, developer)
        if len(conversation.media) > self._settings.max_media_parts:
            raise ApiError(
                "media_limit_exceeded",
                f"{len(conversation.media)} images and videos; the limit is {self._settings.max_media_parts}",
                param="messages",
            )
        return conversation

    def _message(self, m: Mapping[str, Any], param: str, found: list[MediaKind], *, final: bool) -> dict[str, Any]:
        role = m["role"]
        out: dict[str, Any] = {"role": role}
        if isinstance(m.get("name"), str):
            out["name"] = self._shadow.hide(m["name"])
        if role == "assistant":
            return self._assistant(m, out, param, found, cut=final and self._continue_final)
        if final and self._continue_final:
            raise refuse("continue_final_message needs an assistant message at the end", f"{param}.role")
        if role == "tool" and isinstance(m.get("tool_call_id"), str):
            out["tool_call_id"] = self._shadow.hide(m["tool_call_id"])
        if m.get("content") is None:
            raise refuse(f"{param}.content must be a string or a list of parts", f"{param}.content")
        before = len(found)
        out["content"] = self._content(m["content"], f"{param}.content", found)
        if role in ("root", *_DEVELOPER) and len(found) > before:
            raise refuse(f"{param}.content: a {role} message holds text only", f"{param}.content")
        return out

    def _content(self, content: Any, param: str, found: list[MediaKind]) -> str | list[dict[str, Any]]:
        if isinstance(content, str):
            return self._shadow.hide(content)
        if not isinstance(content, (list, tuple)):
            raise refuse(f"{param} must be a string or a list of parts", param)
        out: list[dict[str, Any]] = []
        for j, part in enumerate(content):
            where = f"{param}[{j}]"
            kind = part.get("type") if isinstance(part, Mapping) else None
            if isinstance(part, str):
                out.append({"type": "text", "text": self._shadow.hide(part)})
            elif isinstance(part, Mapping) and kind in ("text", "refusal"):
                if not isinstance(part.get(kind), str):
                    raise refuse(f"{where}.{kind} must be a string", f"{where}.{kind}")
                out.append({"type": "text", "text": self._shadow.hide(part[kind])})
            elif kind in ("image", "video"):
                found.append("image" if kind == "image" else "video")
                out.append({"type": kind})
            else:
                raise refuse(f"{where}.type is {kind!r}; it must be text, image or video", f"{where}.type")
        return out

    def _assistant(
        self, m: Mapping[str, Any], out: dict[str, Any], param: str, found: list[MediaKind], *, cut: bool
    ) -> dict[str, Any]:
        content = m.get("content")
        reasoning = next((m[k] for k in ("reasoning_content", "reasoning") if m.get(k) is not None), None)
        if reasoning is not None and not isinstance(reasoning, str):
            raise refuse(f"{param}.reasoning_content must be a string", f"{param}.reasoning_content")
        if reasoning is None and content:
            reasoning, content = _cut_reasoning(content)
        calls = m.get("tool_calls")
        if cut and calls:
            raise refuse(f"{param}: a message with tool_calls cannot be continued", f"{param}.tool_calls")
        text = "" if content is None else self._content(content, f"{param}.content", found)
        if reasoning is not None:
            reasoning = self._shadow.hide(reasoning)
        if cut and not text and reasoning:
            reasoning += CUT
        elif cut:
            text = text + CUT if isinstance(text, str) else [*text, {"type": "text", "text": CUT}]
        out["content"] = text
        if reasoning is not None:
            out["reasoning_content"] = reasoning
        if calls:
            if not isinstance(calls, (list, tuple)):
                raise refuse(f"{param}.tool_calls must be a list", f"{param}.tool_calls")
            out["tool_calls"] = [self._call(c, f"{param}.tool_calls[{j}]") for j, c in enumerate(calls)]
        return out

    def _call(self, call: Any, param: str) -> dict[str, Any]:
        function = call.get("function") if isinstance(call, Mapping) else None
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str) or not function["name"]:
            raise refuse(f"{param}.function.name must be a string", f"{param}.function.name")
        arguments = self._arguments(function.get("arguments"), f"{param}.function.arguments")
        out = {"type": "function", "function": {"name": self._shadow.hide(function["name"]), "arguments": arguments}}
        if isinstance(call.get("id"), str):
            out["id"] = self._shadow.hide(call["id"])
        return out

    def _arguments(self, given: Any, param: str) -> Any:
        """Never refuses: what is nested too deeply for templates, or holds what is no character, is shown as text."""
        try:
            return self.hide_json(as_mapping(given), param)
        except (NotText, ApiError):
            text = given if isinstance(given, str) else json.dumps(given, ensure_ascii=True)
            return {self._shadow.hide("arguments"): self._shadow.hide(SURROGATE.sub("\ufffd", text))}

    def hide_json(self, value: Any, param: str, depth: int = 0) -> Any:
        """`value` with every string and key hidden. Raises NotText."""
        if depth > self._settings.max_json_depth:
            raise refuse(f"{param} is nested deeper than {self._settings.max_json_depth} levels", param)
        if isinstance(value, str):
            return self._shadow.hide(value)
        if isinstance(value, Mapping):
            return {self._shadow.hide(str(k)): self.hide_json(v, param, depth + 1) for k, v in value.items()}
        if isinstance(value, (list, tuple)):
            return [self.hide_json(v, param, depth + 1) for v in value]
        return value


def as_mapping(arguments: Any) -> dict[str, Any]:
    """Past arguments as the mapping templates need. Never raises: a broken past call must not end a conversation."""
    if arguments is None:
        return {}
    if isinstance(arguments, str):
        if not arguments.strip():
            return {}
        try:
            arguments = json.loads(arguments, parse_constant=_no_constant)
        except (ValueError, RecursionError):
            return {"arguments": arguments}
    return dict(arguments) if isinstance(arguments, Mapping) else {"arguments": arguments}


def _no_constant(name: str) -> Any:
    raise ValueError(name)


def _joined(first: Any, second: Any) -> str | list[dict[str, Any]]:
    """Two developer texts as one, a blank line between."""
    if isinstance(first, str) and isinstance(second, str):
        return f"{first}\n\n{second}"
    parts = [[{"type": "text", "text": c}] if isinstance(c, str) else c for c in (first, second)]
    return [*parts[0], {"type": "text", "text": "\n\n"}, *parts[1]]


def _cut_reasoning(content: Any) -> tuple[str | None, Any]:
    """(reasoning, content) of a past turn that holds both in its content; reasoning None when it does not."""
    if isinstance(content, str):
        if markers.THINK_END not in content:
            return None, content
        before, _, after = content.partition(markers.THINK_END)
        return before.rpartition(markers.THINK_START)[2].strip("\n"), after.strip("\n")
    if isinstance(content, (list, tuple)) and all(isinstance(p, Mapping) and p.get("type") == "text" for p in content):
        whole = "".join(str(p.get("text", "")) for p in content)
        return _cut_reasoning(whole) if markers.THINK_END in whole else (None, content)
    return None, content
