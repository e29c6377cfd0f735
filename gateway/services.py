"""Everything a running gateway holds, made once by `start` and taken down by `close`. app.py ties it to HTTP."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from time import time
from typing import TYPE_CHECKING

from starlette.requests import Request

from gateway.admission.admission import Admission
from gateway.config import Settings
from gateway.metrics import Metrics
from gateway.routing.router import Router

if TYPE_CHECKING:
    from gateway.api.chat.serving import ChatService
    from gateway.api.completions.serving import CompletionService
    from gateway.api.generation.pipeline import Pipeline
    from gateway.api.models.names import ModelNames
    from gateway.api.tokenize.serving import TokenizeService
    from gateway.media.service import MediaService
    from gateway.prompt import Checkpoint, PromptBuilder


@dataclass(slots=True)
class Services:
    settings: Settings
    metrics: Metrics
    admission: Admission
    router: Router
    media: MediaService
    checkpoint: Checkpoint
    builder: PromptBuilder
    names: ModelNames
    pipeline: Pipeline
    chat: ChatService
    completions: CompletionService
    tokenize: TokenizeService

    @property
    def ready(self) -> bool:
        return self.router.ready

    async def close(self) -> None:
        self.pipeline.text.close()
        await asyncio.gather(self.media.close(), self.router.close())


def services_of(request: Request) -> Services:
    services: Services = request.app.state.services
    return services


async def start(settings: Settings, metrics: Metrics, admission: Admission) -> Services:
    """Loads the checkpoint, starts the rooms. Raises what the rooms raise for a wrong configuration."""
    from gateway.api.chat.serving import ChatService
    from gateway.api.completions.serving import CompletionService
    from gateway.api.generation.pipeline import Pipeline
    from gateway.api.generation.sampling import generation_defaults
    from gateway.api.models.names import ModelNames
    from gateway.api.tokenize.serving import TokenizeService
    from gateway.media.service import MediaService
    from gateway.prompt import Checkpoint, PromptBuilder

    checkpoint = await asyncio.to_thread(Checkpoint.load, settings.model_path)
    builder = PromptBuilder(checkpoint, settings.prompt)
    names = ModelNames(settings.model_names, int(time()))
    token = settings.engine_token.get_secret_value() if settings.engine_token else None
    router = Router(settings.engines, token, settings.routing, settings.upstream, metrics, checkpoint.vocab_size)
    media = MediaService(settings.media, metrics.media)
    pipeline = Pipeline(
        checkpoint,
        admission,
        media,
        router,
        metrics,
        model_name=names.served,
        context_length=settings.context_length,
        api=settings.api,
        abort_wait_s=settings.upstream.abort_wait_s,
        record_blocks=settings.observability.record_blocks,
        log_prompt_characters=settings.observability.log_prompt_characters,
    )
    defaults = generation_defaults(settings.model_path) if settings.api.use_generation_config else {}
    chat = ChatService(settings.api, names, checkpoint, builder, pipeline, defaults, metrics)
    completions = CompletionService(settings.api, names, checkpoint, pipeline, defaults, metrics)
    tokenize = TokenizeService(chat, names, checkpoint, pipeline)
    await media.start()
    await router.start()
    return Services(
        settings, metrics, admission, router, media, checkpoint, builder, names, pipeline, chat, completions, tokenize
    )
