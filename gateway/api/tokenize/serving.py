"""Text or a conversation -> token ids, ids -> text. No engine takes part.

A conversation gives exactly the ids that /v1/chat/completions would send, but for media: each image or video part is
its one placeholder id here, since nothing is fetched."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from gateway.api.body import parse_off_loop
from gateway.api.chat.serving import ChatService
from gateway.api.generation.logprobs import TokenTexts
from gateway.api.generation.pipeline import Pipeline
from gateway.api.models.names import ModelNames
from gateway.api.tokenize.protocol import DetokenizeRequest, TokenizeText
from gateway.errors import ApiError

if TYPE_CHECKING:
    from gateway.prompt import Checkpoint


class TokenizeService:
    def __init__(self, chat: ChatService, names: ModelNames, checkpoint: Checkpoint, pipeline: Pipeline) -> None:
        self._chat = chat
        self._names = names
        self._checkpoint = checkpoint
        self._pipeline = pipeline
        self._texts = TokenTexts(checkpoint)

    async def tokenize(self, body: bytes, tenant: str, *, conversation: bool) -> dict[str, Any]:
        if conversation:
            request = await self._chat.read(body)
            ids = await self._chat.prompt_ids(request, len(body), tenant)
            want_texts = bool((request.model_extra or {}).get("return_token_strs"))
        else:
            text = await parse_off_loop(TokenizeText, body, self._chat.settings.offload_bytes)
            if text.model is not None:
                self._names.check(text.model)
            ids = await self._pipeline.text.encode(text.prompt, "prompt")
            want_texts = bool(text.return_token_strs)
        out: dict[str, Any] = {"count": len(ids), "max_model_len": self._pipeline.context_length, "tokens": ids}
        if want_texts:
            out["token_strs"] = [self._texts.of(i)[0] for i in ids]
        return out

    async def detokenize(self, body: bytes) -> dict[str, Any]:
        request = await parse_off_loop(DetokenizeRequest, body, self._chat.settings.offload_bytes)
        if request.model is not None:
            self._names.check(request.model)
        added = set(self._checkpoint.added_tokens.values())
        for i, token in enumerate(request.tokens):
            if token >= self._checkpoint.vocab_size:
                message = f"token id {token} is outside the vocabulary of {self._checkpoint.vocab_size} tokens"
                raise ApiError("invalid_value", message, param=f"tokens[{i}]")
        ids = [i for i in request.tokens if i not in added] if request.skip_special_tokens else request.tokens
        return {"prompt": await asyncio.to_thread(self._checkpoint.decode, ids)}
