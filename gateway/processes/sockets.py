"""Listening sockets, bound before anything slow starts, so that a taken port is one clear line."""

from __future__ import annotations

import socket
import ssl

from gateway.processes.settings import TlsSettings


class ListenError(Exception):
    """One line for the operator."""


def bind(host: str, port: int, *, shared: bool = False) -> list[socket.socket]:
    """One socket per address of `host`, bound and not listening yet; port 0 is the same free port for all.

    `shared`: with SO_REUSEPORT, so that several processes of one command may bind, each with a queue of its own: the kernel
    spreads connections over those that listen, and a process that dies takes only its own with it.
    Raises ListenError."""
    bound: list[socket.socket] = []
    try:
        found = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, kind, protocol, _, address in dict.fromkeys(found):
            s = socket.socket(family, kind, protocol)
            bound.append(s)
            s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if shared:
                s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            if family == socket.AF_INET6:
                s.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            s.bind((address[0], port, *address[2:]))
            s.setblocking(False)
            port = s.getsockname()[1]
    except OSError as e:
        close(bound)
        raise ListenError(f"cannot listen on {host} port {port} ({e.strerror or e})") from None
    return bound


def reserve(host: str, port: int) -> list[socket.socket]:
    """For a supervisor: keeps the port for processes that will bind it `shared`. A socket that never listens gets no
    connections. Raises ListenError, also when somebody else shares the port already."""
    alone = bind(host, port)
    port = port_of(alone)
    close(alone)
    return bind(host, port, shared=True)


def port_of(sockets: list[socket.socket]) -> int:
    return int(sockets[0].getsockname()[1])


def close(sockets: list[socket.socket]) -> None:
    for s in sockets:
        s.close()


def tls_context(settings: TlsSettings) -> ssl.SSLContext | None:
    """Raises ListenError when the files cannot be used."""
    if settings.certificate is None or settings.key is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = {"1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}[settings.minimum_version]
    context.set_alpn_protocols(["http/1.1"])
    password = settings.key_password.get_secret_value() if settings.key_password else ""
    try:
        # Without a password an encrypted key is an error, never a question on the terminal.
        context.load_cert_chain(settings.certificate, settings.key, password=password)
    except FileNotFoundError:
        missing = next(p for p in (settings.certificate, settings.key) if not p.is_file())
        raise ListenError(f"tls: there is no file {missing}") from None
    except (OSError, ssl.SSLError) as e:
        reason = e.reason if isinstance(e, ssl.SSLError) and e.reason else e.strerror or e
        raise ListenError(f"tls: {settings.certificate} and {settings.key} cannot be used ({reason})") from None
    return context
