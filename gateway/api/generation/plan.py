"""What an endpoint family asks of the pipeline: everything decided, nothing done."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from engine.wire import Grammar
from gateway.media.types import MediaPart

if TYPE_CHECKING:
    from gateway.parsing import OutputParser
    from gateway.prompt import RenderedPrompt


@dataclass(frozen=True, slots=True)
class Plan:
    """model       what the answer calls the model that serves it
    render         gives the prompt; pure, may run in a thread
    parser         makes the output parser of one choice; called once per choice
    sampling       engine names; without max_new_tokens
    max_tokens     what the client asked for, or None
    grammar        what the answer must look like, once it is known whether the prompt ends inside thinking
    prompt_param   the field that over-long prompts are blamed on
    text_bytes     how much there is to render, or a little more
    session        stable key of the conversation or user, for routing; "" when the client gave none
    """

    route: str
    model: str
    render: Callable[[], RenderedPrompt]
    parser: Callable[[RenderedPrompt], OutputParser]
    sampling: Mapping[str, Any]
    max_tokens: int | None
    prompt_param: str
    media: Sequence[MediaPart] = ()
    n: int = 1
    logprobs: int | None = None
    grammar: Callable[[RenderedPrompt], Grammar | None] = lambda rendered: None
    priority: int = 0
    text_bytes: int = 0
    session: str = ""
