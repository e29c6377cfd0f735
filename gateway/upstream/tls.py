"""TLS to engines: whose certificates are trusted, under which name, and what we show when asked."""

from __future__ import annotations

import logging
import ssl
from pathlib import Path

from gateway.upstream.settings import EngineTls

log = logging.getLogger("catalejo.upstream")


class BadTls(ValueError):
    """A file of the TLS settings cannot be used; the text names it."""


class TlsContexts:
    """One context per settings, shared by all engines that have them."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[EngineTls, ssl.SSLContext, tuple[int, ...]]] = {}

    def get(self, tls: EngineTls) -> ssl.SSLContext:
        """Raises BadTls."""
        key = tls.model_dump_json(exclude={"server_name"})
        if key not in self._known:
            stamp = _stamp(tls)
            self._known[key] = tls, client_context(tls), stamp
        return self._known[key][1]

    def refresh(self) -> None:
        """Takes up files that were replaced: connections made from now on use them. Short-lived certificates need this."""
        for key, (tls, context, stamp) in self._known.items():
            now = _stamp(tls)
            if now == stamp:
                continue
            self._known[key] = tls, context, now
            try:
                _load(context, tls)
            except BadTls as e:
                log.error("%s; the one read before stays in use", e)
            else:
                log.info("the TLS files for engines were replaced and are in use")


def client_context(tls: EngineTls) -> ssl.SSLContext:
    """Verifies chain and name, TLS 1.2 or newer. Raises BadTls."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if tls.ca is None:
        context.load_default_certs(ssl.Purpose.SERVER_AUTH)
    _load(context, tls)
    return context


def _load(context: ssl.SSLContext, tls: EngineTls) -> None:
    if tls.ca is not None:
        try:
            context.load_verify_locations(cafile=str(tls.ca))
        except (OSError, ssl.SSLError) as e:
            raise BadTls(f"TLS to engines: ca {tls.ca} cannot be used: {_reason(e)}") from None
    if tls.certificate is not None:
        # A key that is locked would ask at the terminal: refuse instead.
        try:
            context.load_cert_chain(str(tls.certificate), str(tls.key) if tls.key else None, password=lambda: "")
        except (OSError, ssl.SSLError, ValueError) as e:
            files = f"certificate {tls.certificate}" + (f" and key {tls.key}" if tls.key else "")
            raise BadTls(f"TLS to engines: {files} cannot be used: {_reason(e)}") from None


def _stamp(tls: EngineTls) -> tuple[int, ...]:
    return tuple(_changed(p) for p in (tls.ca, tls.certificate, tls.key) if p is not None)


def _changed(path: Path) -> int:
    try:
        status = path.stat()
    except OSError:
        return 0
    return status.st_mtime_ns ^ status.st_ino


def _reason(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) and error.strerror else str(error)) or type(error).__name__
