"""Whatever bytes a server answers, the fetcher returns a body or a named problem, and nothing else ever comes out."""

from __future__ import annotations

import asyncio

from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.errors import ERRORS
from gateway.media.fetch import Fetched, Fetcher
from gateway.media.inflight import BytesInFlight
from gateway.media.metrics import MediaMetrics
from gateway.media.problems import MediaProblem
from tests.fixtures.media.hostile import Server, Table, lifted

HOST = "pictures.example"
VALUES = st.one_of(
    st.sampled_from(
        [
            *(
                b"",
                b"0",
                b"5",
                b"-1",
                b"+5",
                b"1e3",
                b"\xb2",
                b"5, 5",
                b"5, 6",
                b"99999999999999999999999",
                b"0x5",
                b"gzip",
            ),
            *(
                b"identity",
                b"chunked",
                b"identity, chunked",
                b"max-age=5",
                b"max-age=" + b"9" * 500,
                b'max-age="5"',
                b"no-store",
            ),
            *(
                b"image/png",
                b"image/png; charset=\xff",
                b"text/html;;;=",
                b"/",
                b"*",
                b"\xff\xfe",
                b"\xf0\x9f\x98\x80",
                b"\x00",
            ),
            *(
                b"http://a.example/",
                b"//",
                b"?",
                b"http://[",
                b"https://\xff",
                b"a" * 9000,
                b"http://pictures.example:1/",
            ),
        ]
    ),
    st.binary(max_size=20),
)
NAMES = st.sampled_from(
    [
        *(
            b"Content-Length",
            b"Transfer-Encoding",
            b"Content-Encoding",
            b"Content-Type",
            b"Location",
            b"Cache-Control",
            b"Age",
        ),
        *(b"Vary", b"Set-Cookie", b"Connection", b"Upgrade", b"Trailer", b"Content-Range", b"", b"\xff", b"A B"),
    ]
)
STATUS = st.sampled_from(
    [
        *(
            b"HTTP/1.1 200 OK",
            b"HTTP/1.0 200 OK",
            b"HTTP/1.1 200",
            b"HTTP/1.1 302 Found",
            b"HTTP/1.1 301 \xff",
            b"HTTP/1.1 204 No",
        ),
        *(
            b"HTTP/1.1 304 Not",
            b"HTTP/1.1 101 Up",
            b"HTTP/1.1 100 Go",
            b"HTTP/1.1 999 X",
            b"HTTP/1.1 99 X",
            b"HTTP/9.9 200 OK",
        ),
        *(b"HTTP/1.1 abc", b"ICY 200 OK", b"", b"\x16\x03\x01"),
    ]
)
HEADERS = st.lists(st.tuples(NAMES, VALUES), max_size=5).map(
    lambda hs: b"".join(n + b": " + v + b"\r\n" for n, v in hs)
)
BODIES = st.one_of(
    st.sampled_from(
        [b"", b"hello", b"5\r\nhello\r\n0\r\n\r\n", b"5\r\nhel", b"FFFFFFFFFFFFFFFFF\r\n", b"\x1f\x8b\x08"]
    ),
    st.binary(max_size=40),
)
ANSWERS = st.one_of(
    st.builds(lambda s, h, b: s + b"\r\n" + h + b"\r\n" + b, STATUS, HEADERS, BODIES), st.binary(max_size=60)
)


async def _fetch(raw: bytes) -> Fetched | MediaProblem:
    async with Server(lambda c: c.send(raw)) as server:
        limits = lifted(f"{HOST}:{server.port}", idle_timeout_s=0.3, total_timeout_s=1.0)
        account = BytesInFlight(1 << 20)
        fetcher = Fetcher(limits, MediaMetrics(), account, lookup=Table(pictures_example=[["127.0.0.1"]]))
        await fetcher.start()
        try:
            return await fetcher.fetch(f"http://{HOST}:{server.port}/", "image", 1000)
        except MediaProblem as problem:
            return problem
        finally:
            await fetcher.close()
            assert account.used == 0


@settings(max_examples=300)
@given(ANSWERS)
def test_any_answer_becomes_a_body_or_a_problem(raw: bytes) -> None:
    answer = asyncio.run(_fetch(raw))
    if isinstance(answer, Fetched):
        assert len(answer.data) <= 1000 and answer.reusable_s >= 0
        assert b" 200" in raw
    else:
        assert ERRORS[answer.code][0] == 400 and "127.0.0.1" not in answer.message
