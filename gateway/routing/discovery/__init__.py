"""Where engines are found: one file per source. A source tells the whole list whenever it changed, and never an error: what
it cannot read now it reads later, and the last good list holds meanwhile."""

from __future__ import annotations

from gateway.metrics import Metrics
from gateway.routing.discovery.base import Source
from gateway.routing.discovery.settings import DiscoverySettings

__all__ = ["DiscoverySettings", "Source", "make_source"]


def make_source(settings: DiscoverySettings, metrics: Metrics) -> Source | None:
    """None for static: there is nothing to watch. Raises ValueError for a source that cannot work here."""
    from gateway.routing.discovery.dns import DnsSource
    from gateway.routing.discovery.endpoint_slices import EndpointSliceSource
    from gateway.routing.discovery.file import FileSource

    def failed(source: str) -> None:
        metrics.discovery_failures.labels(source).inc()

    match settings.source:
        case "static":
            return None
        case "file":
            assert settings.file is not None
            return FileSource(settings.file, failed)
        case "dns":
            assert settings.dns is not None
            return DnsSource(settings.dns, failed)
        case "endpointslices":
            assert settings.endpointslices is not None
            return EndpointSliceSource(settings.endpointslices, failed)
