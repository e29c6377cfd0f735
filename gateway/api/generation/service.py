"""What the endpoint families that generate have in common: the model a request goes to, and where it goes else."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial

from gateway.api.context import RequestContext
from gateway.api.generation.fallback import Alternative
from gateway.api.generation.plan import Plan
from gateway.api.generation.protocol import GenerationRequest
from gateway.api.generation.run import Run
from gateway.api.generation.served import ServedModel
from gateway.api.models.catalogue import Catalogue
from gateway.api.settings import ApiSettings
from gateway.metrics import Metrics, child


class GenerationService:
    """`catalogue`: what names stand for; it may change between two requests."""

    def __init__(self, settings: ApiSettings, catalogue: Catalogue, metrics: Metrics) -> None:
        self.settings = settings
        self._catalogue = catalogue
        self._metrics = metrics

    async def _open(
        self,
        request: GenerationRequest,
        context: RequestContext,
        session: str,
        plans_of: Callable[[ServedModel, str], Awaitable[Sequence[Plan]]],
        *,
        with_ids: bool = False,
    ) -> list[Run]:
        """`plans_of(model, what the answer calls it)`: the request as this model takes it. `with_ids`: it holds token ids
        besides stop_token_ids and logit_bias. Raises ApiError for every refusal."""
        target = self._catalogue.target(request.model, context.tenant)
        with_ids = with_ids or bool(request.stop_token_ids or request.logit_bias)
        chain = target.chain(session, with_ids=with_ids)
        wanted = context.notes["model"] = chain[0].name
        if len(chain) > 1:
            chain = sorted(chain, key=lambda m: not m.pipeline.available)
        first, *rest = chain
        others = [Alternative(m.pipeline, partial(plans_of, m, target.told(m))) for m in rest]
        runs = await first.pipeline.open_all(await plans_of(first, target.told(first)), context, others)
        if runs[0].opened.model != wanted:
            child(self._metrics.model_fallbacks, wanted, runs[0].opened.model).inc()
        return runs
