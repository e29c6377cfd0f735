"""Chat requests for tests/sglang/live/test_side_by_side.py, by name: what is sent to both, less model and temperature."""

from __future__ import annotations

import base64
import io
from pathlib import Path
from typing import Any

from PIL import Image, ImageDraw

CLIPS = Path(__file__).parents[2] / "fixtures" / "demo"


def user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


def assistant(content: str | None, **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": content, **more}


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


def picture(shape: str, colour: str, size: tuple[int, int] = (224, 168), **more: Any) -> dict[str, Any]:
    drawn = Image.new("RGB", size, "white")
    draw = getattr(ImageDraw.Draw(drawn), shape)
    draw((size[0] // 4, size[1] // 4, size[0] // 4 + 90, size[1] // 4 + 90), fill=colour)
    buffer = io.BytesIO()
    drawn.save(buffer, "PNG")
    url = "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()
    return {"type": "image_url", "image_url": {"url": url, **more}}


def clip(name: str) -> dict[str, Any]:
    data = base64.b64encode((CLIPS / f"{name}.mp4").read_bytes()).decode()
    return {"type": "video_url", "video_url": {"url": f"data:video/mp4;base64,{data}"}}


def tool(name: str, **properties: Any) -> dict[str, Any]:
    parameters = {"type": "object", "properties": properties, "required": list(properties)}
    return {"type": "function", "function": {"name": name, "description": name, "parameters": parameters}}


def call(identity: str, name: str, arguments: str) -> dict[str, Any]:
    return {"id": identity, "type": "function", "function": {"name": name, "arguments": arguments}}


def result(identity: str, content: Any) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": identity, "content": content}


WEATHER = tool("get_weather", city={"type": "string"})
TIMER = tool("set_timer", minutes={"type": "integer"})
HELLO = [user("Hello!")]
SUM = [user("What is 27 + 58?")]
PARIS = [user("What is the weather in Paris?")]
ASKED = [*PARIS, assistant(None, tool_calls=[call("c1", "get_weather", '{"city": "Paris"}')])]
SUNNY = '{"temperature": 21, "condition": "sunny"}'
CITY = {
    "type": "object",
    "properties": {"city": {"enum": ["Rome", "Oslo"]}, "size": {"type": "integer"}},
    "required": ["city", "size"],
    "additionalProperties": False,
}
SCHEMA = {"type": "json_schema", "json_schema": {"name": "place", "schema": CITY, "strict": True}}
OFF, ON = {"type": "disabled"}, {"type": "enabled"}
STREAM = {"stream": True, "stream_options": {"include_usage": True}}

CASES: dict[str, dict[str, Any]] = {
    # ---- text and turns
    "greeting": {"messages": HELLO},
    "greeting streamed": {"messages": HELLO, **STREAM},
    "stream without usage": {"messages": HELLO, "stream": True},
    "content as parts": {"messages": [user([text("Hello"), text("!")])]},
    "system": {"messages": [{"role": "system", "content": "You are a pirate."}, *HELLO]},
    "developer": {"messages": [{"role": "developer", "content": "You are a pirate."}, *HELLO]},
    "root": {"messages": [{"role": "root", "content": "You are a lighthouse."}, *HELLO]},
    "root and system": {
        "messages": [{"role": "root", "content": "A."}, {"role": "system", "content": "B."}, *HELLO],
    },
    "system later": {"messages": [*HELLO, assistant("Hi."), {"role": "system", "content": "Be short."}, *SUM]},
    "several turns": {"messages": [user("My name is Ada."), assistant("Hello, Ada."), user("What is my name?")]},
    "past reasoning": {"messages": [*SUM, assistant("85", reasoning_content="27 + 58 = 85"), user("And 1 + 2?")]},
    "past thinking in the content": {"messages": [*SUM, assistant("<mm:think>27+58</mm:think>85"), *HELLO]},
    "unicode": {"messages": [user("Copy this: naïve café 日本 😀")], "max_tokens": 24},
    "control tokens in the text": {"messages": [user("Say [e~[ and ]~b]user please.")], "max_tokens": 12},
    "long prompt": {"messages": [user("The sky is blue. " * 300 + "What colour is the sky?")], "max_tokens": 16},
    # ---- thinking
    "thinking on": {"messages": HELLO, "thinking": ON},
    "thinking on streamed": {"messages": SUM, "thinking": ON, **STREAM},
    "thinking off": {"messages": SUM, "thinking": OFF},
    "thinking adaptive": {"messages": SUM, "thinking": {"type": "adaptive"}},
    "thinking adaptive streamed": {"messages": SUM, "thinking": {"type": "adaptive"}, **STREAM},
    "thinking by template": {"messages": SUM, "chat_template_kwargs": {"thinking_mode": "enabled"}},
    "effort none": {"messages": SUM, "reasoning_effort": "none"},
    "effort high": {"messages": HELLO, "reasoning_effort": "high"},
    "thinking cut off": {"messages": SUM, "thinking": ON, "max_tokens": 6},
    # ---- ends
    "max_tokens": {"messages": HELLO, "max_tokens": 5},
    "max_completion_tokens": {"messages": HELLO, "max_completion_tokens": 5, **STREAM},
    "stop": {"messages": HELLO, "stop": " tiny"},
    "stop list streamed": {"messages": HELLO, "stop": ["nothing", "model"], **STREAM},
    "stop inside the thinking": {"messages": SUM, "thinking": ON, "stop": ["5"]},
    # ---- several and logprobs
    "n": {"messages": HELLO, "n": 2},
    "n streamed": {"messages": HELLO, "n": 2, **STREAM},
    "logprobs": {"messages": HELLO, "logprobs": True, "top_logprobs": 2, "thinking": OFF},
    "logprobs streamed": {"messages": HELLO, "logprobs": True, "top_logprobs": 2, "thinking": OFF, **STREAM},
    "logprobs of thinking": {"messages": SUM, "logprobs": True, "thinking": ON},
    "logprobs of thinking streamed": {"messages": SUM, "logprobs": True, "thinking": ON, **STREAM},
    # ---- tools
    "tool": {"messages": PARIS, "tools": [TIMER, WEATHER]},
    "tool streamed": {"messages": PARIS, "tools": [TIMER, WEATHER], **STREAM},
    "integer argument": {"messages": [user("Set a timer for 25 minutes.")], "tools": [WEATHER, TIMER]},
    "tool not needed": {"messages": HELLO, "tools": [WEATHER]},
    "tool_choice none": {"messages": PARIS, "tools": [WEATHER], "tool_choice": "none", "max_tokens": 24},
    "tool_choice required": {"messages": PARIS, "tools": [WEATHER], "tool_choice": "required", "thinking": OFF},
    "tool_choice named": {
        "messages": PARIS, "tools": [TIMER, WEATHER], "thinking": OFF,
        "tool_choice": {"type": "function", "function": {"name": "get_weather"}},
    },
    "tool result": {"messages": [*ASKED, result("c1", SUNNY)], "tools": [WEATHER]},
    "tool result as parts": {"messages": [*ASKED, result("c1", [text(SUNNY)])], "tools": [WEATHER]},
    "past arguments not JSON": {
        "messages": [*PARIS, assistant(None, tool_calls=[call("c1", "get_weather", "{city")]), result("c1", SUNNY)],
        "tools": [WEATHER],
    },
    # ---- structure
    "json schema": {"messages": [user("A city?")], "response_format": SCHEMA, "thinking": OFF, "max_tokens": 60},
    "json schema streamed": {
        "messages": [user("A city?")], "response_format": SCHEMA, "thinking": OFF, "max_tokens": 60, **STREAM,
    },
    "json schema after thinking": {
        "messages": SUM, "response_format": SCHEMA, "thinking": ON, "max_tokens": 120,
    },
    "json object": {
        "messages": [user("A city?")], "response_format": {"type": "json_object"}, "thinking": OFF, "max_tokens": 40,
    },
    # ---- pictures
    "picture": {"messages": [user([picture("ellipse", "red"), text("What colour is the circle?")])]},
    "picture streamed": {"messages": [user([text("Describe the picture."), picture("rectangle", "blue")])], **STREAM},
    "two pictures": {
        "messages": [user([picture("ellipse", "red"), picture("rectangle", "green", (140, 280)),
                           text("What is in the second picture?")])],
    },
    "picture in a later turn": {
        "messages": [*HELLO, assistant("Hello."), user([picture("ellipse", "orange"), text("What colour is it?")])],
    },
    "video": {"messages": [user([clip("circle_red_then_blue"), text("What happens in the video?")])]},
    # ---- refusals
    "no messages": {"messages": []},
    "unknown role": {"messages": [{"role": "wizard", "content": "x"}]},
    "temperature too high": {"messages": HELLO, "temperature": 3},
    "top_p zero": {"messages": HELLO, "top_p": 0},
    "max_tokens zero": {"messages": HELLO, "max_tokens": 0},
    "n zero": {"messages": HELLO, "n": 0},
    "tool message alone": {"messages": [*HELLO, result("c9", "x")]},
    "tool message of another call": {"messages": [*ASKED, result("c2", SUNNY)], "tools": [WEATHER]},
    "tool_choice without tools": {"messages": HELLO, "tool_choice": "required"},
    "tool_choice of no tool": {
        "messages": HELLO, "tools": [WEATHER], "tool_choice": {"type": "function", "function": {"name": "nobody"}},
    },
    "bad schema": {
        "messages": HELLO,
        "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "wizard"}}},
    },
    "too long": {"messages": [user("word " * 70000)]},
    "picture that is none": {
        "messages": [user([{"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}])],
    },
    "top_logprobs without logprobs": {"messages": HELLO, "top_logprobs": 3},
    "other model": {"messages": HELLO, "model": "nobody/nothing"},
}  # fmt: skip
