"""POST /v1/completions: text or token ids continued as they are, without a chat template."""

from __future__ import annotations

from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from gateway.api.generation.protocol import GenerationRequest, TokenId
from gateway.api.large import Resolve, replace

MAX_PROMPTS = 128
Ids = Annotated[list[TokenId], Field(min_length=1)]
Texts = Annotated[list[str], Field(min_length=1, max_length=MAX_PROMPTS)]
IdLists = Annotated[list[Ids], Field(min_length=1, max_length=MAX_PROMPTS)]
TokenIds = list[int] | NDArray[np.uint32]
"""An array where they are many."""
Prompt = str | TokenIds


class CompletionRequest(GenerationRequest):
    prompt: str | Ids | Texts | IdLists
    echo: bool | None = None
    logprobs: int | None = Field(default=None, ge=0, le=20)

    def prompts(self) -> list[Prompt]:
        """One entry per prompt."""
        if isinstance(self.prompt, (str, np.ndarray)):
            return [self.prompt]
        if isinstance(self.prompt[0], int):
            return [self.prompt]
        return list(self.prompt)


def put_back(request: CompletionRequest, resolve: Resolve) -> int:
    """Gives every prompt to `resolve`; returns how many it changed, -1 when texts and ids would stand side by side."""
    if not isinstance(request.prompt, list) or isinstance(request.prompt[0], int):
        return replace(request, "prompt", resolve)
    before = request.prompt
    request.prompt = [resolve(one) for one in before]
    if len({isinstance(one, str) for one in request.prompt}) > 1:
        return -1
    return sum(a is not b for a, b in zip(before, request.prompt, strict=True))
