"""Whatever a client sends as a form, reading it ends in a form or a 4xx, and never takes more than the limit."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.api.files.multipart import Form, read_form
from gateway.errors import ApiError

LIMIT = 2000
LINES = st.sampled_from(
    [
        *(
            b"--b",
            b"--b--",
            b"--b\r\n",
            b"\r\n",
            b"\n",
            b"\r",
            b"--",
            b"-",
            b"\r\n--b",
            b"\r\n--b--\r\n",
            b"x" * 50,
            b"\xff\x00",
        ),
        *(
            b'Content-Disposition: form-data; name="file"; filename="a"\r\n',
            b'Content-Disposition: form-data; name="purpose"\r\n',
        ),
        *(
            b"Content-Disposition: form-data\r\n",
            b"Content-Disposition:\r\n",
            b'content-disposition: attachment; name="x"\r\n',
        ),
        *(
            b"Content-Disposition: form-data; name=\"\xff\"; filename*=utf-8''%ff\r\n",
            b"X" * 5000 + b": y\r\n",
            b":\r\n",
            b"A\r\n",
        ),
    ]
)
BODIES = st.lists(LINES, max_size=12)
TYPES = st.one_of(
    st.just("multipart/form-data; boundary=b"),
    st.sampled_from(
        [
            *(
                "",
                "multipart/form-data",
                'multipart/form-data; boundary=""',
                'multipart/form-data; boundary="b"',
                ";",
                "=;=",
            ),
            *(
                "multipart/form-data; boundary=" + "b" * 71,
                "multipart/form-data; boundary=\xff",
                "multipart/mixed; boundary=b",
            ),
        ]
    ),
    st.binary(max_size=30).map(lambda b: b.decode("latin-1")),  # as the server hands headers over
)


async def _read(pieces: list[bytes], content_type: str) -> tuple[Form | ApiError, int]:
    taken = 0

    async def sink(data: bytes) -> None:
        nonlocal taken
        taken += len(data)

    async def stream() -> AsyncIterator[bytes]:
        for piece in pieces:
            yield piece

    try:
        return await read_form(stream(), content_type, sink, LIMIT), taken
    except ApiError as error:
        return error, taken


@settings(max_examples=500)
@given(BODIES, TYPES)
def test_any_form_becomes_a_form_or_a_refusal(pieces: list[bytes], content_type: str) -> None:
    result, taken = asyncio.run(_read(pieces, content_type))
    assert taken <= LIMIT
    if isinstance(result, ApiError):
        assert 400 <= result.status < 500
    else:
        assert result.finished and len(result.filename or "") <= 255
