"""One strict reading of a media URL, and the rules that need no resolver.

The text is read once, here; the request is built from the pieces (`Target.url`), so no second parser can see another
host in it. Whatever two parsers could disagree about is refused: white space and control characters, backslashes,
user information, percent signs or non-ASCII letters in the host (IDN must come in its xn-- form), a trailing dot, a
numeric last label that is not a canonical dotted quad (2130706433, 0x7f000001, 127.1, 0177.0.0.1), IPv6 zones.

Not here: what the host's addresses are (resolve.py, addresses.py).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote, urljoin

from yarl import URL

from gateway.media.addresses import IPAddress, is_metadata, is_public, parse_address
from gateway.media.problems import MediaProblem
from gateway.media.settings import FetchSettings

DEFAULT_PORT: Final = {"http": 80, "https": 443}
_SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):")
_FORBIDDEN_CHARACTER: Final = re.compile(r"[\x00-\x20\x7f-\xa0\\\u2028\u2029\ufeff\ud800-\udfff]")
_LABEL: Final = re.compile(r"(?!-)[a-z0-9_-]{1,63}(?<!-)")
_NUMERIC_LABEL: Final = re.compile(r"[0-9]+|0x[0-9a-f]*")
# Names that mean a machine of ours wherever they resolve to.
_LOCAL_SUFFIXES: Final = ("localhost", "localdomain", "local", "internal", "intranet", "lan", "home.arpa", "svc")
# Kept as they are in a path or query; everything else is percent-encoded as UTF-8.
_SAFE: Final = "/?:@!$&'()*+,;=-._~%[]|^`{}"


@dataclass(frozen=True, slots=True)
class Target:
    """Where one hop goes. `host` is lower-case ASCII without brackets; `address` is set when the host is a literal."""

    scheme: str
    host: str
    port: int
    path_and_query: str
    address: IPAddress | None

    @property
    def endpoint(self) -> str:
        return f"{self.host}:{self.port}"

    def url(self) -> URL:
        path, _, query = self.path_and_query.partition("?")
        host = f"[{self.host}]" if ":" in self.host else self.host
        port = "" if DEFAULT_PORT[self.scheme] == self.port else f":{self.port}"
        return URL(f"{self.scheme}://{host}{port}{path}" + (f"?{query}" if query else ""), encoded=True)


def _refused(message: str, reason: str = "url_refused") -> MediaProblem:
    return MediaProblem("media_url_forbidden", message, reason=reason)


def scheme_of(url: str) -> str:
    """Lower-case scheme, or "" when there is none."""
    found = _SCHEME.match(url[:32])
    return found.group(1).lower() if found else ""


def parse_target(url: str, settings: FetchSettings) -> Target:
    """Raises MediaProblem: `invalid_media_url` for what cannot be read, `media_url_forbidden` for what may not be."""
    if len(url) > settings.max_url_bytes:
        raise MediaProblem("invalid_media_url", f"the URL is longer than {settings.max_url_bytes} characters")
    scheme = scheme_of(url)
    if scheme not in DEFAULT_PORT:
        raise MediaProblem("invalid_media_url", "the URL must begin with https:, http: or data:")
    if _FORBIDDEN_CHARACTER.search(url):
        raise MediaProblem("invalid_media_url", "the URL holds white space, a control character or a backslash")
    rest = url[len(scheme) + 1 :]
    if not rest.startswith("//"):
        raise MediaProblem("invalid_media_url", f"the URL must begin with {scheme}://")
    authority, tail = _split(rest[2:])
    if "@" in authority:
        raise _refused("a URL with user information is not fetched; remove everything before the @")
    host, port = _host_and_port(authority, DEFAULT_PORT[scheme])
    target = Target(scheme, host, port, quote(tail, safe=_SAFE), _literal(host))
    check_target(target, settings)
    return target


def next_hop(target: Target, location: str, settings: FetchSettings) -> Target:
    """The target of a redirect, checked like a first URL; https never leads to http."""
    try:
        joined = urljoin(str(target.url()), location)
    except ValueError:
        raise MediaProblem("invalid_media_url", "the server redirects to a URL that cannot be read") from None
    new = parse_target(joined, settings)
    if target.scheme == "https" and new.scheme == "http":
        raise _refused("the server redirects from https to http", "redirect_downgrade")
    return new


def check_target(target: Target, settings: FetchSettings) -> None:
    if not settings.enabled:
        raise _refused("this server fetches no URLs; send the picture as a data: URL or upload it")
    if matches(target.host, settings.deny_hosts):
        raise _refused("this host is on the server's deny list", "host_denied")
    if target.endpoint in settings.private_endpoints:
        if target.address is not None and is_metadata(target.address):
            raise _refused("the URL does not point to a public address", "address_forbidden")
        return
    if settings.allow_hosts and not matches(target.host, settings.allow_hosts):
        raise _refused("this host is not on the server's allow list", "host_not_allowed")
    if target.port not in settings.ports:
        allowed = ", ".join(map(str, settings.ports))
        raise _refused(f"port {target.port} is not fetched from; allowed: {allowed}", "port_forbidden")
    if target.address is not None:
        if not is_public(target.address):
            raise _refused("the URL does not point to a public address", "address_forbidden")
    elif "." not in target.host or any(target.host == s or target.host.endswith("." + s) for s in _LOCAL_SUFFIXES):
        raise _refused("the URL does not point to a public host", "address_forbidden")


def matches(host: str, patterns: tuple[str, ...]) -> bool:
    """ "example.com" matches itself; "*.example.com" matches its subdomains only."""
    return any(host.endswith(p[1:]) if p.startswith("*.") else host == p for p in patterns)


def _split(text: str) -> tuple[str, str]:
    """(authority, path and query); the fragment is dropped, an empty path becomes "/"."""
    text = text.partition("#")[0]
    found = re.search(r"[/?]", text)
    authority, tail = (text, "") if found is None else (text[: found.start()], text[found.start() :])
    return authority, tail if tail.startswith("/") else "/" + tail


def _host_and_port(authority: str, default_port: int) -> tuple[str, int]:
    if authority.startswith("["):
        host, closed, port_text = authority[1:].partition("]")
        if not closed or (port_text and not port_text.startswith(":")):
            raise MediaProblem("invalid_media_url", "the URL's IPv6 address cannot be read")
        port_text = port_text[1:]
        try:
            host = str(parse_address(host))
        except ValueError:
            raise MediaProblem("invalid_media_url", "the URL's IPv6 address cannot be read") from None
        if ":" not in host:
            raise MediaProblem("invalid_media_url", "only an IPv6 address stands in brackets")
    else:
        host, _, port_text = authority.partition(":")
        host = _checked_name(host)
    if not port_text:
        return host, default_port
    if not (port_text.isascii() and port_text.isdigit() and len(port_text) <= 5 and 0 < int(port_text) < 65536):
        raise MediaProblem("invalid_media_url", "the URL's port is not a number from 1 to 65535")
    return host, int(port_text)


def _checked_name(host: str) -> str:
    if not host:
        raise MediaProblem("invalid_media_url", "the URL has no host")
    if not host.isascii():
        raise _refused("the URL's host holds letters that are not ASCII; write it in its xn-- form", "host_spelling")
    host = host.lower()
    if host.endswith("."):
        raise _refused("the URL's host ends in a dot; remove it", "host_spelling")
    labels = host.split(".")
    if len(host) > 253 or not all(_LABEL.fullmatch(label) for label in labels):
        raise MediaProblem("invalid_media_url", "the URL's host is not a host name")
    if _NUMERIC_LABEL.fullmatch(labels[-1]):
        try:
            parse_address(host)
        except ValueError:
            raise _refused("the URL's host is an IP address in an unusual spelling", "host_spelling") from None
    return host


def _literal(host: str) -> IPAddress | None:
    try:
        return parse_address(host)
    except ValueError:
        return None
