"""POST /v1/chat/completions: every field a client may send, with its limits. docs/api.md shows one example of each."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from pydantic import Field, model_validator

from gateway.api.generation.protocol import GenerationRequest, Model

MAX_PARTS: Final = 4096
FUNCTION_NAME: Final = r"^[^\s\"<>]{1,128}$"
"""Wider than OpenAI's letters, digits, _ and -: the M3 tool syntax allows all but white space, quotes and brackets."""

Thinking = Literal["enabled", "disabled", "adaptive"]


# ------------------------------------------------------------------------------------------- messages
class TextPart(Model):
    type: Literal["text"]
    text: str


class ImageUrl(Model):
    url: str = Field(min_length=1)
    detail: Literal["auto", "low", "high"] | None = None
    max_long_side_pixel: int | None = Field(default=None, ge=112, le=3584, multiple_of=28)


class VideoUrl(Model):
    url: str = Field(min_length=1)
    fps: float | None = Field(default=None, gt=0, le=60)
    max_frames: int | None = Field(default=None, ge=1, le=4096)
    max_long_side_pixel: int | None = Field(default=None, ge=112, le=3584, multiple_of=28)


class ImagePart(Model):
    type: Literal["image_url"]
    image_url: ImageUrl | Annotated[str, Field(min_length=1)]


class VideoPart(Model):
    type: Literal["video_url"]
    video_url: VideoUrl | Annotated[str, Field(min_length=1)]


class FilePart(Model):
    """An uploaded image or video, see /v1/files."""

    class File(Model):
        file_id: str = Field(min_length=1, max_length=256)

    type: Literal["image_file", "video_file"]
    image_file: File | None = None
    video_file: File | None = None

    @model_validator(mode="after")
    def _names_its_file(self) -> FilePart:
        if (self.image_file if self.type == "image_file" else self.video_file) is None:
            raise ValueError(f"needs an object {self.type!r} with a file_id")
        return self


class RefusalPart(Model):
    type: Literal["refusal"]
    refusal: str


Part = Annotated[TextPart | ImagePart | VideoPart | FilePart, Field(discriminator="type")]
AssistantPart = Annotated[TextPart | RefusalPart, Field(discriminator="type")]
Text = str | Annotated[list[TextPart], Field(max_length=MAX_PARTS)]
Parts = str | Annotated[list[Part], Field(max_length=MAX_PARTS)]


class CalledFunction(Model):
    name: str = Field(min_length=1, max_length=256)
    arguments: str | dict[str, Any] | None = None


class PastCall(Model):
    id: str | None = None
    type: Literal["function"] | None = None
    index: int | None = None
    function: CalledFunction


class SystemMessage(Model):
    role: Literal["system", "developer", "root"]
    content: Text
    name: str | None = None


class UserMessage(Model):
    role: Literal["user"]
    content: Parts
    name: str | None = None


class AssistantMessage(Model):
    role: Literal["assistant"]
    content: str | Annotated[list[AssistantPart], Field(max_length=MAX_PARTS)] | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    reasoning_details: list[dict[str, Any]] | None = Field(default=None, max_length=MAX_PARTS)
    tool_calls: list[PastCall] | None = Field(default=None, max_length=1024)
    refusal: str | None = None
    name: str | None = None


class ToolMessage(Model):
    role: Literal["tool"]
    content: Parts | None = None
    tool_call_id: str | None = None
    name: str | None = None


Message = Annotated[SystemMessage | UserMessage | AssistantMessage | ToolMessage, Field(discriminator="role")]


# ---------------------------------------------------------------------------------------------- tools
class FunctionSpec(Model):
    name: str = Field(pattern=FUNCTION_NAME)
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(Model):
    type: Literal["function"]
    function: FunctionSpec


class NamedTool(Model):
    class Function(Model):
        name: str

    type: Literal["function"]
    function: Function


class AllowedTools(Model):
    """Of the tools only these; `mode` is what a plain tool_choice would be."""

    class Allowed(Model):
        mode: Literal["auto", "required"]
        tools: list[NamedTool] = Field(min_length=1)

    type: Literal["allowed_tools"]
    allowed_tools: Allowed


ToolChoice = Annotated[NamedTool | AllowedTools, Field(discriminator="type")]


class ThinkingObject(Model):
    type: Thinking


# --------------------------------------------------------------------------------------------- request
class ChatRequest(GenerationRequest):
    messages: list[Message] = Field(min_length=1)
    max_completion_tokens: int | None = Field(default=None, ge=1)
    logprobs: bool | None = None
    top_logprobs: int | None = Field(default=None, ge=0, le=20)
    tools: list[Tool] | None = None
    tool_choice: Literal["none", "auto", "required"] | ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    thinking: ThinkingObject | Thinking | None = None
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh"] | None = None
    chat_template_kwargs: dict[str, Any] | None = Field(default=None, max_length=32)
    continue_final_message: bool | None = None
    add_generation_prompt: bool | None = None
    include_reasoning: bool | None = None
    separate_reasoning: bool | None = None
    # Accepted for OpenAI clients; they change nothing here.
    store: bool | None = None
    prompt_cache_key: str | None = Field(default=None, max_length=1024)
    safety_identifier: str | None = Field(default=None, max_length=512)
    verbosity: Literal["low", "medium", "high"] | None = None
    modalities: list[Literal["text"]] | None = None
