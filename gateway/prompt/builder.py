"""Conversation -> token ids. render: read messages, run the template, cut at its own control tokens, encode the rest.

Pure and synchronous; a long conversation takes a while, so callers run it in a thread. Nothing of a request is kept but
the ids of its text, for the same tenant (run_cache.py)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from jinja2 import TemplateError
from numpy.typing import NDArray

from gateway.errors import ApiError
from gateway.prompt.checkpoint import Checkpoint
from gateway.prompt.messages import MediaKind, MessageReader, refuse
from gateway.prompt.run_cache import RunCache
from gateway.prompt.settings import PromptSettings
from gateway.prompt.shadow import CUT, NotText
from gateway.prompt.vocabulary import Run

_RESERVED: Final = frozenset({"messages", "tools", "add_generation_prompt", "continue_final_message"})


@dataclass(frozen=True, slots=True)
class RenderedPrompt:
    """ids                one placeholder id per media part, in the order the parts were sent
    media_positions       (index into ids, "image" | "video") of each
    starts_in_reasoning   True: the prompt ends inside thinking; False: after it; None: the model decides (adaptive)
    runs                  the ordinary text between control tokens; video timestamps are merged into it (expand.py)
    """

    ids: list[int] | NDArray[np.uint32]
    media_positions: list[tuple[int, MediaKind]]
    starts_in_reasoning: bool | None
    runs: tuple[Run, ...] = ()


class PromptBuilder:
    """Thread-safe."""

    def __init__(self, checkpoint: Checkpoint, settings: PromptSettings | None = None) -> None:
        self._checkpoint = checkpoint
        self._settings = settings or PromptSettings()
        self._cache = RunCache(self._settings.run_cache_bytes)
        checkpoint.vocabulary.remember(self._fixed_runs())

    def _fixed_runs(self) -> set[str]:
        """The template's own sentences: what stays when everything a client says changes."""
        seen: list[set[str]] = []
        for word in ("x", "y"):
            messages = [
                {"role": "user", "content": word},
                {"role": "assistant", "content": word},
                {"role": "user", "content": word},
            ]
            runs: set[str] = set()
            for mode in (None, "enabled", "disabled", "adaptive"):
                try:
                    runs |= {run.text for run in self.render(messages, thinking_mode=mode).runs}
                except ApiError:  # not a conversation this template takes; nothing to remember then
                    continue
            seen.append(runs)
        return seen[0] & seen[1]

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        thinking_mode: str | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        template_kwargs: Mapping[str, Any] | None = None,
        scope: str | None = None,
        most_tokens: int | None = None,
    ) -> RenderedPrompt:
        """`scope` (the tenant) lets the ids of turns be kept for the next request of the same scope.

        Raises ApiError: invalid_messages, invalid_value (tools, chat_template_kwargs), media_limit_exceeded; TooLong for
        what is far above `most_tokens`."""
        reader = MessageReader(self._checkpoint.shadow, self._settings, continue_final=continue_final_message)
        conversation = reader.read(messages)
        variables = self._variables(reader, tools, thinking_mode, template_kwargs)
        text = self._run_template(
            {
                **variables,
                "messages": conversation.messages,
                "add_generation_prompt": add_generation_prompt and not continue_final_message,
            }
        )
        if continue_final_message:
            text, mark, _ = text.partition(CUT)
            if not mark:
                raise refuse("this model's chat template cannot continue the final message", "continue_final_message")
        ids, runs = self._checkpoint.vocabulary.encode_rendered(text, self._cache, scope, most_tokens)
        positions = self._media(ids, conversation.media)
        return RenderedPrompt(ids, positions, self._starts_in_reasoning(ids), tuple(runs))

    def _variables(
        self,
        reader: MessageReader,
        tools: Sequence[Mapping[str, Any]] | None,
        thinking_mode: str | None,
        template_kwargs: Mapping[str, Any] | None,
    ) -> dict[str, Any]:
        variables: dict[str, Any] = {**self._checkpoint.template_variables, "tools": None, "documents": None}
        try:
            for name, value in (template_kwargs or {}).items():
                param = f"chat_template_kwargs.{name}"
                if name in _RESERVED:
                    raise ApiError("invalid_value", f"{param} is set by the request's own field", param=param)
                variables[name] = reader.hide_json(value, param)
            for i, tool in enumerate(tools or ()):
                function = tool.get("function")
                if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
                    raise ApiError(
                        "invalid_value", f"tools[{i}].function.name must be a string", param=f"tools[{i}].function.name"
                    )
            if tools:
                variables["tools"] = [self._tool(reader, t, f"tools[{i}]") for i, t in enumerate(tools)]
        except NotText as e:
            raise ApiError("invalid_value", f"tools or chat_template_kwargs: {e}", param="tools") from None
        if thinking_mode is not None:
            variables["thinking_mode"] = thinking_mode
        return variables

    @staticmethod
    def _tool(reader: MessageReader, tool: Mapping[str, Any], param: str) -> dict[str, Any]:
        """The two outer levels keep the names a template asks for; all below them is the client's."""
        out = {k: reader.hide_json(v, param) for k, v in tool.items() if k != "function"}
        out["function"] = {k: reader.hide_json(v, f"{param}.function") for k, v in tool["function"].items()}
        return {k: out[k] for k in tool}

    def _run_template(self, variables: Mapping[str, Any]) -> str:
        try:
            return self._checkpoint.template.render(variables)
        except RecursionError:
            raise refuse("the conversation is nested too deeply for the model's chat template", "messages") from None
        except (TemplateError, TypeError, ValueError, LookupError, AttributeError, ArithmeticError) as e:
            said = self._checkpoint.shadow.reveal(str(e))[:300]
            raise refuse(f"the model's chat template refused the conversation: {said}", "messages") from None

    def _media(self, ids: list[int], sent: list[MediaKind]) -> list[tuple[int, MediaKind]]:
        if not sent:
            return []
        kinds: dict[int, MediaKind] = {
            self._checkpoint.image_token_id: "image",
            self._checkpoint.video_token_id: "video",
        }
        positions = [(i, kinds[t]) for i, t in enumerate(ids) if t in kinds]
        if [k for _, k in positions] != sent:
            raise refuse(
                f"the model's chat template placed {len(positions)} of {len(sent)} images and videos; "
                "media may stand in user and tool messages",
                "messages",
            )
        return positions

    def _starts_in_reasoning(self, ids: list[int]) -> bool | None:
        c = self._checkpoint
        if c.think_start_id is None or c.think_end_id is None:
            return False
        for token in reversed(ids):
            if token == c.think_start_id:
                return True
            if token == c.think_end_id:
                return False
            if token in c.eos_ids:
                return None
        return None
