"""OpenAI messages -> the plain dicts the prompt room renders, and the media parts in the order they stand.

Which field of a past turn's reasoning counts: `reasoning_content`, else `reasoning`, else the texts of
`reasoning_details` (how hosted endpoints give M3's thinking, and agents send it back). content null, "" and absent: one.
Not here: how roles, tools and past calls are rendered (gateway/prompt)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gateway.api.chat.protocol import (
    AssistantMessage,
    ChatRequest,
    FilePart,
    ImagePart,
    ImageUrl,
    RefusalPart,
    TextPart,
    ToolMessage,
    VideoPart,
    VideoUrl,
)
from gateway.api.large import Resolve, replace
from gateway.media.types import MediaPart

AnyPart = TextPart | ImagePart | VideoPart | FilePart | RefusalPart


def put_back(request: ChatRequest, resolve: Resolve) -> int:
    """Gives every media URL and every text of the messages to `resolve`; returns how many it changed."""
    changed = 0
    for message in request.messages:
        if isinstance(message.content, list):
            changed += sum(_put_back_part(part, resolve) for part in message.content)
        else:
            changed += replace(message, "content", resolve)
        if isinstance(message, AssistantMessage):
            changed += replace(message, "reasoning_content", resolve) + replace(message, "reasoning", resolve)
            changed += sum(replace(call.function, "arguments", resolve) for call in message.tool_calls or ())
    return changed


def _put_back_part(part: AnyPart, resolve: Resolve) -> int:
    match part:
        case TextPart():
            return replace(part, "text", resolve)
        case RefusalPart():
            return replace(part, "refusal", resolve)
        case ImagePart():
            is_text = isinstance(part.image_url, str)
            return replace(part, "image_url", resolve) if is_text else replace(part.image_url, "url", resolve)
        case VideoPart():
            is_text = isinstance(part.video_url, str)
            return replace(part, "video_url", resolve) if is_text else replace(part.video_url, "url", resolve)
    return 0


class MessageMapper:
    """One request's mapping. `messages` and `media` are the result."""

    def __init__(self, request: ChatRequest) -> None:
        self.messages: list[dict[str, Any]] = []
        self.media: list[MediaPart] = []
        for i, message in enumerate(request.messages):
            self.messages.append(self._message(f"messages[{i}]", message))

    def _message(self, where: str, message: Any) -> dict[str, Any]:
        out: dict[str, Any] = {"role": message.role, "content": self._content(where, message.content)}
        if message.name is not None:
            out["name"] = message.name
        if isinstance(message, AssistantMessage):
            if reasoning := _reasoning(message):
                out["reasoning_content"] = reasoning
            if message.tool_calls:
                out["tool_calls"] = [
                    {
                        "id": call.id,
                        "type": "function",
                        "function": {"name": call.function.name, "arguments": call.function.arguments},
                    }
                    for call in message.tool_calls
                ]
        elif isinstance(message, ToolMessage):
            out["tool_call_id"] = message.tool_call_id
        return out

    def _content(self, where: str, content: str | Sequence[AnyPart] | None) -> str | list[dict[str, Any]]:
        if content is None:
            return ""
        if isinstance(content, str):
            return content
        return [self._part(f"{where}.content[{j}]", part) for j, part in enumerate(content)]

    def _part(self, where: str, part: AnyPart) -> dict[str, Any]:
        match part:
            case TextPart(text=text) | RefusalPart(refusal=text):
                return {"type": "text", "text": text}
            case ImagePart(image_url=value):
                # Not validated again: that would make a plain string of a HeldUrl.
                image = ImageUrl.model_construct(url=value) if isinstance(value, str) else value
                media = MediaPart(
                    "image",
                    where,
                    url=image.url,
                    detail=image.detail or "auto",
                    max_long_side_pixel=image.max_long_side_pixel,
                )
            case VideoPart(video_url=given):
                video = VideoUrl.model_construct(url=given) if isinstance(given, str) else given
                media = MediaPart(
                    "video",
                    where,
                    url=video.url,
                    fps=video.fps,
                    max_frames=video.max_frames,
                    max_long_side_pixel=video.max_long_side_pixel,
                )
            case FilePart(image_file=FilePart.File(file_id=file_id), type="image_file"):
                media = MediaPart("image", where, file_id=file_id)
            case FilePart(video_file=FilePart.File(file_id=file_id)):
                media = MediaPart("video", where, file_id=file_id)
            case _:
                raise AssertionError(part)
        self.media.append(media)
        return {"type": media.modality}


def _reasoning(message: AssistantMessage) -> str | None:
    for given in (message.reasoning_content, message.reasoning):
        if given is not None:
            return given
    texts = [detail.get("text") for detail in message.reasoning_details or ()]
    return "".join(text for text in texts if isinstance(text, str))
