"""Everything a running gateway holds, made once by `start` and taken down by `close`. app.py ties it to HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from time import time
from typing import TYPE_CHECKING

from starlette.requests import Request

from gateway.admission.admission import Admission
from gateway.config import Settings
from gateway.metrics import Metrics
from gateway.routing.engine_names import EngineNames, Owners
from gateway.routing.router import Router

if TYPE_CHECKING:
    from gateway.api.chat.serving import ChatService
    from gateway.api.completions.serving import CompletionService
    from gateway.api.generation.served import ServedModel
    from gateway.api.models.catalogue import Catalogue
    from gateway.api.models.settings import ModelSettings
    from gateway.api.tokenize.serving import TokenizeService
    from gateway.media.service import MediaService
    from gateway.processes.client import HubClient


@dataclass(slots=True)
class Services:
    settings: Settings
    metrics: Metrics
    admission: Admission
    media: MediaService
    catalogue: Catalogue
    chat: ChatService
    completions: CompletionService
    tokenize: TokenizeService
    huge_texts: Executor
    hub: HubClient | None = None
    """Of the supervisor, when this is one of several processes."""

    @property
    def routers(self) -> Sequence[Router]:
        return [model.router for model in self.catalogue.models.values()]

    @property
    def ready(self) -> bool:
        """One model that can answer is enough: a gateway that takes itself out for one lost model takes all of them out."""
        return any(router.ready for router in self.routers)

    async def close(self) -> None:
        self.huge_texts.shutdown(wait=False, cancel_futures=True)
        await asyncio.gather(self.media.close(), *(router.close() for router in self.routers))


def services_of(request: Request) -> Services:
    services: Services = request.app.state.services
    return services


async def start(settings: Settings, metrics: Metrics, admission: Admission) -> Services:
    """Loads the checkpoints, starts the rooms. Raises what the rooms raise for a wrong configuration."""
    from gateway.api.chat.serving import ChatService
    from gateway.api.completions.serving import CompletionService
    from gateway.api.generation.text import huge_texts
    from gateway.api.models.catalogue import Catalogue
    from gateway.api.tokenize.serving import TokenizeService
    from gateway.media.service import MediaService

    media = MediaService(settings.media, metrics.media)
    huge = huge_texts()
    owners: Owners | None = {} if len(settings.served) > 1 else None
    models = [await _served(m, settings, metrics, admission, media, huge, owners) for m in settings.served]
    catalogue = Catalogue(models, int(time()))
    catalogue.apply(settings.served, settings.routes, settings.admission)
    admission.models.apply(model_limits(settings))
    chat = ChatService(settings.api, catalogue, metrics)
    completions = CompletionService(settings.api, catalogue, metrics)
    tokenize = TokenizeService(chat, catalogue)
    services = Services(settings, metrics, admission, media, catalogue, chat, completions, tokenize, huge)
    try:
        await media.start()
        for router in services.routers:
            await router.start()
    except BaseException:
        await services.close()
        raise
    return services


def model_limits(settings: Settings) -> dict[str, tuple[int, int]]:
    """model -> (places, waiting), of those that have a limit."""
    return {m.served_name: (m.max_in_flight, m.max_queue) for m in settings.served if m.max_in_flight is not None}


async def _served(
    model: ModelSettings,
    settings: Settings,
    metrics: Metrics,
    admission: Admission,
    media: MediaService,
    huge: Executor,
    owners: Owners | None,
) -> ServedModel:
    """`owners`: of engine names, when there are several models."""
    from gateway.api.generation.pipeline import Pipeline
    from gateway.api.generation.sampling import generation_defaults
    from gateway.api.generation.served import ServedModel, tokenizer_digest
    from gateway.prompt import Checkpoint, PromptBuilder

    checkpoint = await asyncio.to_thread(Checkpoint.load, model.model_path)
    token = model.engine_token.get_secret_value() if model.engine_token else None
    routing = model.routing or settings.routing
    router = Router(
        model.engines,
        token,
        routing,
        settings.upstream,
        metrics,
        checkpoint.vocab_size,
        model.discovery,
        None if owners is None else EngineNames(model.served_name, owners),
    )
    pipeline = Pipeline(
        checkpoint,
        admission,
        media,
        router,
        metrics,
        model_name=model.served_name,
        context_length=model.context_length,
        api=settings.api,
        abort_wait_s=settings.upstream.abort_wait_s,
        record_blocks=settings.observability.record_blocks,
        log_prompt_characters=settings.observability.log_prompt_characters,
        huge_texts=huge,
    )
    return ServedModel(
        name=model.served_name,
        checkpoint=checkpoint,
        builder=PromptBuilder(checkpoint, settings.prompt),
        router=router,
        pipeline=pipeline,
        defaults=generation_defaults(model.model_path) if settings.api.use_generation_config else {},
        tokenizer=await asyncio.to_thread(tokenizer_digest, model.model_path),
    )
