"""instructor: forced named tool, JSON schema, asking again after a wrong answer, partial objects."""

from __future__ import annotations

import instructor
import pytest
from openai import OpenAI
from pydantic import BaseModel, field_validator

from tests.conformance.stack import Stack, call_block, says


class Person(BaseModel):
    name: str
    age: int

    @field_validator("age")
    @classmethod
    def plausible(cls, value: int) -> int:
        if value > 150:
            raise ValueError("nobody is that old")
        return value


ASK = [{"role": "user", "content": "Ada is 36."}]


def wrapped(stack: Stack, mode: instructor.Mode) -> instructor.Instructor:
    return instructor.from_openai(OpenAI(base_url=f"{stack.url}/v1", api_key=stack.key, max_retries=0), mode=mode)


def test_forced_tool(stack: Stack) -> None:
    stack.script(says(call_block(("Person", {"name": "Ada", "age": "36"}))))
    client = wrapped(stack, instructor.Mode.TOOLS)
    person = client.chat.completions.create(model=stack.model, messages=ASK, response_model=Person)
    assert person.model_dump() == {"name": "Ada", "age": 36}
    assert stack.requests()[0]["grammar"] is not None


def test_a_wrong_answer_is_asked_for_again(stack: Stack) -> None:
    stack.script(
        says(call_block(("Person", {"name": "Ada", "age": "360"}))),
        says(call_block(("Person", {"name": "Ada", "age": "36"}))),
    )
    client = wrapped(stack, instructor.Mode.TOOLS)
    person = client.chat.completions.create(model=stack.model, messages=ASK, response_model=Person, max_retries=2)
    assert person.age == 36
    assert "nobody is that old" in stack.requests()[1]["text"]


@pytest.mark.parametrize("mode", [instructor.Mode.JSON_SCHEMA, instructor.Mode.JSON])
def test_json(stack: Stack, mode: instructor.Mode) -> None:
    stack.script(says('{"name": "Ada", "age": 36}'))
    client = wrapped(stack, mode)
    person = client.chat.completions.create(model=stack.model, messages=ASK, response_model=Person)
    assert person.model_dump() == {"name": "Ada", "age": 36}
    assert stack.requests()[0]["grammar"] is not None


@pytest.mark.parametrize(
    ("mode", "text"),
    [
        (instructor.Mode.TOOLS, call_block(("Person", {"name": "Ada Lovelace", "age": "36"}))),
        (instructor.Mode.JSON, '{"name": "Ada Lovelace", "age": 36}'),
    ],
)
def test_partial_objects_grow(stack: Stack, mode: instructor.Mode, text: str) -> None:
    stack.script(says(text))
    client = wrapped(stack, mode)
    seen = list(client.chat.completions.create_partial(model=stack.model, messages=ASK, response_model=Person))
    assert seen[-1].model_dump() == {"name": "Ada Lovelace", "age": 36}
    assert len(seen) > 1
