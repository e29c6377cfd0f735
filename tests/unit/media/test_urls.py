"""Which URLs may be fetched, decided before any resolver or socket is asked."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gateway.media.problems import MediaProblem
from gateway.media.settings import FetchSettings
from gateway.media.urls import next_hop, parse_target, scheme_of

FIXTURES = Path(__file__).parents[2] / "fixtures" / "media"
CASES = json.loads((FIXTURES / "urls.json").read_text())
REFUSED = [case["url"] for case in CASES if case["expect"] == "400" and scheme_of(case["url"]) != "data"]
NEEDS_RESOLVER = "http://127.0.0.1.nip.io/"
SETTINGS = FetchSettings()


@pytest.mark.parametrize("url", [url for url in REFUSED if url != NEEDS_RESOLVER])
def test_forbidden_urls_of_the_case_list(url: str) -> None:
    with pytest.raises(MediaProblem):
        parse_target(url, SETTINGS)


@pytest.mark.parametrize("host", json.loads((FIXTURES / "refused_hosts.json").read_text()))
@pytest.mark.parametrize("scheme", ["http", "https"])
def test_spelling_of_a_forbidden_or_doubtful_host_is_refused(scheme: str, host: str) -> None:
    with pytest.raises(MediaProblem) as caught:
        parse_target(f"{scheme}://{host}/x.png", SETTINGS)
    assert caught.value.code in ("invalid_media_url", "media_url_forbidden")


@pytest.mark.parametrize(
    ("url", "host", "port", "sent"),
    [
        ("https://example.com", "example.com", 443, "https://example.com/"),
        ("HTTP://EXAMPLE.com:80/A", "example.com", 80, "http://example.com/A"),
        ("http://example.com?a=b#frag", "example.com", 80, "http://example.com/?a=b"),
        ("https://example.com:/x", "example.com", 443, "https://example.com/x"),
        ("https://example.com:80/x", "example.com", 80, "https://example.com:80/x"),
        ("http://8.8.8.8/x", "8.8.8.8", 80, "http://8.8.8.8/x"),
        ("http://[2606:4700:4700:0::1111]/x", "2606:4700:4700::1111", 80, "http://[2606:4700:4700::1111]/x"),
        (
            "https://xn--bcher-kva.example/é ".strip(),
            "xn--bcher-kva.example",
            443,
            "https://xn--bcher-kva.example/%C3%A9",
        ),
        ("https://b.s3.eu.example/a%2Fb?X-Sig=a%3D&c=d/e?", "b.s3.eu.example", 443, None),
        ("https://e.com/../../a//b/./c", "e.com", 443, "https://e.com/../../a//b/./c"),
        ("https://e.com/a@b:c", "e.com", 443, "https://e.com/a@b:c"),
        ("https://1.2.3.4.example/", "1.2.3.4.example", 443, "https://1.2.3.4.example/"),
    ],
)
def test_public_urls_are_sent_as_written(url: str, host: str, port: int, sent: str | None) -> None:
    target = parse_target(url, SETTINGS)
    assert (target.host, target.port) == (host, port)
    assert str(target.url()) == (sent or url)
    assert target.url().raw_host == host and target.url().port == port, "the client library sees the host we checked"


def test_every_character_that_could_split_a_request_is_refused() -> None:
    for code in [*range(0x21), 0x7F, 0x80, 0x85, 0xA0, 0x5C, 0x2028, 0x2029, 0xFEFF]:
        with pytest.raises(MediaProblem):
            parse_target(f"http://example.com/a{chr(code)}b", SETTINGS)


def test_lists_of_hosts_and_ports() -> None:
    settings = FetchSettings(
        allow_hosts=("cdn.example", "*.pictures.example"), deny_hosts=("bad.pictures.example",), ports=(443,)
    )
    parse_target("https://cdn.example/", settings)
    parse_target("https://a.b.pictures.example/", settings)
    for url in (
        "https://pictures.example/",
        "https://xcdn.example/",
        "https://a.cdn.example/",
        "https://bad.pictures.example/",
        "http://cdn.example/",
    ):
        with pytest.raises(MediaProblem) as caught:
            parse_target(url, settings)
        assert caught.value.code == "media_url_forbidden"


def test_private_endpoint_is_one_host_on_one_port() -> None:
    settings = FetchSettings(private_endpoints=("minio.internal:9000", "10.0.0.5:80"))
    parse_target("http://minio.internal:9000/bucket/a.png", settings)
    parse_target("http://10.0.0.5/a.png", settings)
    for url in ("http://minio.internal/", "http://10.0.0.5:9000/", "http://10.0.0.6/", "http://0x0a.0.0.5/"):
        with pytest.raises(MediaProblem):
            parse_target(url, settings)


def test_fetching_can_be_switched_off() -> None:
    with pytest.raises(MediaProblem) as caught:
        parse_target("https://example.com/", FetchSettings(enabled=False))
    assert "data: URL" in caught.value.message


def test_length_limit_names_itself() -> None:
    with pytest.raises(MediaProblem) as caught:
        parse_target("https://example.com/" + "a" * 8192, SETTINGS)
    assert "8192" in caught.value.message


def test_relative_redirects_keep_host_and_scheme() -> None:
    target = parse_target("https://example.com/a/b", SETTINGS)
    assert str(next_hop(target, "../c?d", SETTINGS).url()) == "https://example.com/c?d"
    assert next_hop(target, "//other.example/x", SETTINGS).scheme == "https"
    plain = parse_target("http://example.com/", SETTINGS)
    assert next_hop(plain, "https://example.com/", SETTINGS).port == 443


@pytest.mark.parametrize(
    "bad",
    [
        {"private_endpoints": ("nohost",)},
        {"private_endpoints": ("h:0",)},
        {"deny_networks": ("10.0.0.300/8",)},
        {"x": 1},
    ],
)
def test_settings_refuse_what_they_cannot_mean(bad: dict[str, object]) -> None:
    with pytest.raises(ValueError):
        FetchSettings.model_validate(bad)
