"""Another model for a request that the first one cannot serve: its engines are gone, sick or full, before any token.

The prompt is rendered again with the other model's template; media are prepared once. A model that would refuse the
request itself (a shorter context, say) is passed over: the client then hears what the first model had to say, since
nobody told it that there is another."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gateway.admission.admission import Permit
from gateway.api.context import RequestContext
from gateway.api.generation.plan import Plan
from gateway.api.generation.run import MOVABLE, Opened
from gateway.errors import ApiError

if TYPE_CHECKING:
    from gateway.api.generation.pipeline import Inputs, Pipeline


@dataclass(frozen=True, slots=True)
class Alternative:
    """`plans` makes the request's plans for this model. Raises ApiError."""

    pipeline: Pipeline
    plans: Callable[[], Awaitable[Sequence[Plan]]]


async def elsewhere(
    failure: ApiError,
    others: Sequence[Alternative],
    inputs: Sequence[Inputs],
    context: RequestContext,
    permit: Permit,
) -> list[Opened]:
    """The request on the first of `others` that takes it, with the media of `inputs`. `failure` is raised when none does,
    or when it is of the client's own making."""
    if failure.code not in MOVABLE:
        raise failure
    for i, other in enumerate(others):
        if not other.pipeline.available or not await permit.move(other.pipeline.model_name):
            continue
        try:
            return await other.pipeline.start(await other.plans(), inputs, context, permit, others[i + 1 :])
        except ApiError:
            continue
    raise failure
