"""Answers in M3's own syntax, and tools to ask with."""

from __future__ import annotations

from typing import Any

N = "]<]minimax[>["


def invoke(name: str, **arguments: str) -> str:
    params = "".join(f"{N}<{k}>{v}{N}</{k}>" for k, v in arguments.items())
    return f'{N}<invoke name="{name}">{params}{N}</invoke>\n'


def calls(*invokes: str) -> str:
    return f"{N}<tool_call>\n{''.join(invokes)}{N}</tool_call>"


def tool(name: str, **properties: str) -> dict[str, Any]:
    """A function tool; `properties` gives each argument's JSON type."""
    schema = {"type": "object", "properties": {k: {"type": t} for k, t in properties.items()}}
    return {"type": "function", "function": {"name": name, "description": name, "parameters": schema}}


TEMP_NOW = tool("temp_now", city="string")
TEMP_ON_DATE = tool("temp_on_date", city="string", date="string")
SUM = tool("sum", a="integer", b="integer")
TWO_CALLS = calls(invoke("temp_on_date", city="Rome", date="tomorrow"), invoke("temp_now", city="Rome"))
