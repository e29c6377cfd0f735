"""The client of an engine, as configuration or discovery describes it."""

from __future__ import annotations

import aiohttp

from gateway.metrics import Metrics
from gateway.routing.settings import EngineEndpoint
from gateway.upstream.client import EngineClient
from gateway.upstream.settings import UpstreamSettings
from gateway.upstream.tls import TlsContexts


def engine_client(
    name: str,
    endpoint: EngineEndpoint,
    default_token: str | None,
    session: aiohttp.ClientSession,
    upstream: UpstreamSettings,
    metrics: Metrics,
    contexts: TlsContexts,
) -> EngineClient:
    """`default_token`: for an endpoint that has none. Raises BadTls (a ValueError) for TLS files that cannot be used."""
    token = endpoint.token.get_secret_value() if endpoint.token else default_token
    tls = endpoint.tls or upstream.tls
    name_in_certificate = tls.server_name or endpoint.server_name
    secure = contexts.get(tls) if endpoint.url.startswith("https:") else None
    return EngineClient(name, endpoint.url, token, session, upstream, metrics, secure, name_in_certificate)
