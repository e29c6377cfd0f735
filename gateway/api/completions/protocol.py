"""POST /v1/completions: text or token ids continued as they are, without a chat template."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from gateway.api.generation.protocol import GenerationRequest, TokenId

MAX_PROMPTS = 128
Ids = Annotated[list[TokenId], Field(min_length=1)]
Texts = Annotated[list[str], Field(min_length=1, max_length=MAX_PROMPTS)]
IdLists = Annotated[list[Ids], Field(min_length=1, max_length=MAX_PROMPTS)]


class CompletionRequest(GenerationRequest):
    prompt: str | Ids | Texts | IdLists
    echo: bool | None = None
    logprobs: int | None = Field(default=None, ge=0, le=20)

    def prompts(self) -> list[str | list[int]]:
        """One entry per prompt."""
        if isinstance(self.prompt, str):
            return [self.prompt]
        if isinstance(self.prompt[0], int):
            return [self.prompt]
        return list(self.prompt)
