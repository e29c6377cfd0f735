"""Text or a conversation -> token ids, ids -> text. No engine takes part.

A conversation gives exactly the ids that /v1/chat/completions would send, but for media: each image or video part is
its one placeholder id here, since nothing is fetched."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from gateway.api.body import parse_off_loop
from gateway.api.chat.serving import ChatService
from gateway.api.generation.served import ServedModel
from gateway.api.large import Resolve, parse_any, replace
from gateway.api.models.catalogue import Catalogue
from gateway.api.tokenize.protocol import DetokenizeRequest, TokenizeText
from gateway.errors import ApiError

if TYPE_CHECKING:
    from gateway.prompt import Checkpoint


def _put_back(request: TokenizeText, resolve: Resolve) -> int:
    changed = replace(request, "prompt", resolve)
    return changed if isinstance(request.prompt, str) else -1  # ids are no text, however many


class TokenizeService:
    """Without a `model` the first one is meant; of a route, its first model."""

    def __init__(self, chat: ChatService, catalogue: Catalogue) -> None:
        self._chat = chat
        self._catalogue = catalogue

    async def tokenize(self, body: bytes, tenant: str, *, conversation: bool) -> dict[str, Any]:
        if conversation:
            request = await self._chat.read(body)
            model, ids = await self._chat.prompt_ids(request, len(body), tenant)
            want_texts = bool((request.model_extra or {}).get("return_token_strs"))
        else:
            text = await parse_any(TokenizeText, body, self._chat.settings.offload_bytes, _put_back)
            model = self._model(text.model, tenant)
            ids = await model.pipeline.text.encode(text.prompt, "prompt")
            want_texts = bool(text.return_token_strs)
        out: dict[str, Any] = {"count": len(ids), "max_model_len": model.pipeline.context_length, "tokens": ids}
        if want_texts:
            out["token_strs"] = [model.pipeline.texts.of(i)[0] for i in ids]
        return out

    async def detokenize(self, body: bytes, tenant: str) -> dict[str, Any]:
        request = await parse_off_loop(DetokenizeRequest, body, self._chat.settings.offload_bytes)
        checkpoint = self._model(request.model, tenant).checkpoint
        return {"prompt": await asyncio.to_thread(_decoded, request, checkpoint)}

    def _model(self, name: str | None, tenant: str) -> ServedModel:
        return self._catalogue.target(name or self._catalogue.default(tenant), tenant).first


def _decoded(request: DetokenizeRequest, checkpoint: Checkpoint) -> str:
    """Raises ApiError for an id that is no token."""
    added = set(checkpoint.added_tokens.values())
    for i, token in enumerate(request.tokens):
        if token >= checkpoint.vocab_size:
            message = f"token id {token} is outside the vocabulary of {checkpoint.vocab_size} tokens"
            raise ApiError("invalid_value", message, param=f"tokens[{i}]")
    ids = [i for i in request.tokens if i not in added] if request.skip_special_tokens else request.tokens
    return checkpoint.decode(ids)
