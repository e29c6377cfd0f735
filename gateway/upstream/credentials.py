"""User and password in an engine's URL, as a proxy in front of it may ask for."""

from __future__ import annotations

from base64 import b64encode
from urllib.parse import unquote, urlsplit, urlunsplit


def split_credentials(url: str) -> tuple[str, str]:
    """(the URL without user and password, what the header Authorization says; "" when the URL has none)."""
    parts = urlsplit(url)
    given, _, place = parts.netloc.rpartition("@")
    if not given:
        return url, ""
    user, _, password = given.partition(":")
    pair = f"{unquote(user)}:{unquote(password)}".encode()
    return urlunsplit(parts._replace(netloc=place)), f"Basic {b64encode(pair).decode()}"
