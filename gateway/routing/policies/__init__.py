"""The table of routing policies: name in the configuration -> how to make it."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic

from gateway.routing.known_prefixes import KnownPrefixes
from gateway.routing.policies.base import Candidate, Choice, Policy, RouteRequest
from gateway.routing.policies.consistent_hash import ConsistentHash
from gateway.routing.policies.prefix_aware import PrefixAware
from gateway.routing.policies.simple import LeastLoad, PowerOfTwo, RoundRobin
from gateway.routing.settings import RoutingSettings

__all__ = ["Candidate", "Choice", "Policy", "RouteRequest", "make_policy"]


def make_policy(settings: RoutingSettings, clock: Callable[[], float] = monotonic) -> Policy:
    match settings.policy:
        case "round_robin":
            return RoundRobin()
        case "power_of_two":
            return PowerOfTwo()
        case "least_load":
            return LeastLoad()
        case "consistent_hash":
            return ConsistentHash(settings.hash_load_bound)
        case "prefix_aware":
            blocks = settings.index_tokens_per_worker // settings.block_tokens
            return PrefixAware(
                KnownPrefixes(max(1, blocks), clock),
                new_weight=settings.new_weight,
                resident_weight=settings.resident_weight,
                recent_weight=settings.recent_weight,
                recent_s=settings.recent_s,
                imbalance=settings.imbalance,
                clock=clock,
            )
