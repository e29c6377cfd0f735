"""A URL that is accepted is read alike by everybody who could read it: us, the HTTP client, Python's own parser."""

from __future__ import annotations

from urllib.parse import urlsplit

from hypothesis import example, given, settings
from hypothesis import strategies as st

from gateway.media.problems import MediaProblem
from gateway.media.settings import FetchSettings
from gateway.media.urls import parse_target

SETTINGS = FetchSettings()
PIECES = st.sampled_from(
    [
        *(
            "http",
            "https",
            "HTTP",
            ":",
            "/",
            "//",
            "@",
            "#",
            "?",
            "[",
            "]",
            "%",
            "%2f",
            "%40",
            "%00",
            ".",
            "..",
            "-",
            "_",
        ),
        *("example.com", "127.0.0.1", "::1", "localhost", "80", "443", "8080", "0x7f", "1", "a", "xn--bcher-kva"),
        *("Ａ", "。", "ß", "é", "\u200d", "\t", "\n", "\r", " ", "\0", "\\", '"', "<", "|", "^", "`", "{", "}"),
        *(";", ",", "&", "=", "+", "~", "!", "*", "'", "(", ")"),
    ]
)
ANYTHING = st.lists(PIECES, max_size=12).map("".join)
MOSTLY_URLS = st.builds("{}://{}{}".format, st.sampled_from(["http", "https"]), ANYTHING, ANYTHING)
NEARLY_GOOD = st.builds(
    "{}://{}example.com{}{}".format,
    st.sampled_from(["http", "https"]),
    st.sampled_from(["", "a.", "a-b.", "a_b."]),
    st.sampled_from(["", ":80", ":443", ":", ".", ":x"]),
    st.one_of(
        st.just(""), ANYTHING.map(lambda t: "/" + t), ANYTHING.map(lambda t: "?" + t), ANYTHING.map(lambda t: "#" + t)
    ),
)


@settings(max_examples=600)
@given(st.one_of(ANYTHING, MOSTLY_URLS, NEARLY_GOOD))
@example("http://example.com:80#@127.0.0.1/")
@example("http://example.com?@127.0.0.1/")
@example("http://example.com;@127.0.0.1/")
@example("https://example.com/%0d%0aHost:%20127.0.0.1")
def test_accepted_urls_have_one_reading(url: str) -> None:
    try:
        target = parse_target(url, SETTINGS)
    except MediaProblem:
        return
    sent = target.url()
    plain = urlsplit(url)
    assert plain.hostname == target.host == sent.raw_host
    assert (plain.port or {"http": 80, "https": 443}[plain.scheme]) == target.port == sent.port
    assert plain.scheme == target.scheme == sent.scheme
    assert sent.user is None and sent.password is None
    line = sent.raw_path_qs
    assert line.startswith("/") and line.isascii() and line.isprintable() and " " not in line
    assert parse_target(str(sent), SETTINGS).url() == sent, "reading it again changes nothing"
