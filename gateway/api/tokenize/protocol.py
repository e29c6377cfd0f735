"""POST /tokenize and /detokenize (also under /v1)."""

from __future__ import annotations

from pydantic import Field

from gateway.api.generation.protocol import Model, TokenId


class TokenizeText(Model):
    model: str | None = Field(default=None, min_length=1, max_length=512)
    prompt: str
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = None


class DetokenizeRequest(Model):
    model: str | None = Field(default=None, min_length=1, max_length=512)
    tokens: list[TokenId] = Field(max_length=4_194_304)
    skip_special_tokens: bool | None = None
