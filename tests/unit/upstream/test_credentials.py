"""User and password in an engine's URL."""

from __future__ import annotations

from base64 import b64encode

import pytest

from gateway.upstream.credentials import split_credentials
from tests.api.harness import TINY, Stack
from tests.mock_engine import MockEngine


@pytest.mark.parametrize(
    ("url", "bare", "pair"),
    [
        ("http://h:1", "http://h:1", None),
        ("http://u:p@h:1/base", "http://h:1/base", "u:p"),
        ("https://u@[::1]:8443", "https://[::1]:8443", "u:"),
        ("http://u%3A:p%40%C3%A9:x@h", "http://h", "u::p@é:x"),
        ("http://u:p@ss@h", "http://h", "u:p@ss"),
    ],
)
def test_they_are_taken_out_of_the_url(url: str, bare: str, pair: str | None) -> None:
    header = "" if pair is None else "Basic " + b64encode(pair.encode()).decode()
    assert split_credentials(url) == (bare, header)


async def test_generations_carry_them_too() -> None:
    """Symptom: health checks sent them, requests did not, so an engine behind such a proxy was up and refused everything."""
    async with MockEngine(TINY) as engine:
        url = engine.url.replace("://", "://u:p@")
        async with Stack(engines=[{"url": url}]) as stack:
            assert (await stack.chat("Hi", max_tokens=1)).status == 200
        assert engine.requests()[-1]["headers"]["authorization"] == "present"
        async with Stack(engines=[{"url": url, "token": "t"}]) as stack:
            assert (await stack.chat("Hi", max_tokens=1)).status == 200, "a token goes before them"
