"""TLS of the listening port: a certificate that is renewed while connections run, and the time a handshake has."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from typing import Any

import uvloop

from gateway.processes.settings import TlsSettings
from gateway.processes.sockets import ListenError, tls_context


class ServerTls:
    """`context` is what the server listens with; which certificate a client sees is decided at its handshake. (Loading another
    one into a context in use could leave it with half of a wrong pair.)"""

    def __init__(self, settings: TlsSettings) -> None:
        """`settings.enabled`. Raises ListenError when the files cannot be used."""
        self._settings = settings
        self._files = self._read()
        self.context = self._now = self._made()
        self.context.sni_callback = self._choose

    def renewed(self) -> Callable[[], None] | None:
        """What takes the files into use as they are now; None when they have not changed. Raises ListenError for files that
        cannot be used: those read before hold on."""
        files = self._read()
        if files == self._files:
            return None
        context = self._made()

        def use() -> None:
            self._files, self._now = files, context

        return use

    def _choose(self, connection: ssl.SSLObject | ssl.SSLSocket, name: str | None, context: ssl.SSLContext) -> None:
        """Also called for clients that name no server."""
        connection.context = self._now

    def _made(self) -> ssl.SSLContext:
        context = tls_context(self._settings)
        assert context is not None
        return context

    def _read(self) -> tuple[bytes, ...]:
        try:
            return tuple(p.read_bytes() for p in (self._settings.certificate, self._settings.key) if p is not None)
        except OSError as e:
            raise ListenError(f"tls: {e.filename} cannot be read ({e.strerror})") from None


def server_loop(handshake_s: float) -> Callable[[], asyncio.AbstractEventLoop]:
    """Makes event loops whose servers drop a client that has not finished its TLS handshake after so long; uvicorn passes on no
    such limit."""

    class ServerLoop(uvloop.Loop):
        async def create_server(self, *args: Any, **options: Any) -> Any:
            if options.get("ssl") is not None:
                options["ssl_handshake_timeout"] = handshake_s
            return await super().create_server(*args, **options)

    return ServerLoop
