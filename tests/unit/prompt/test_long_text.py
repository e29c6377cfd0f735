"""Text far above the context is refused before it is encoded, within little memory."""

from __future__ import annotations

import subprocess
import sys

import pytest

from gateway.prompt.vocabulary import TooLong
from tests.api.harness import ROOT, TINY
from tests.property.prompt.support import tiny

PROGRAM = """
import resource, sys
from gateway.prompt import Checkpoint, PromptBuilder
from gateway.prompt.vocabulary import TooLong

checkpoint = Checkpoint.load(sys.argv[1])
builder = PromptBuilder(checkpoint)
text = sys.argv[2] * ((12 << 20) // len(sys.argv[2].encode()))
limit = int(sys.argv[3])
assert (len(text.encode()) > limit * checkpoint.vocabulary.longest_token) == (limit == 131072)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for work in (
    lambda: checkpoint.encode_plain(text, limit),
    lambda: builder.render([{"role": "user", "content": text}], most_tokens=limit),
):
    try:
        work()
    except TooLong as e:
        assert e.tokens > limit
    else:
        raise AssertionError("not refused")
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) >> 10)
"""


@pytest.mark.parametrize("limit", [131_072, 1_200_000], ids=["by bytes", "by counting pieces"])
@pytest.mark.parametrize("text", ["a", "word <tool_call> ", "漢字 é"])
def test_refusing_12_mib_takes_little_memory(text: str, limit: int) -> None:
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(TINY), text, str(limit)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    assert int(run.stdout) < 350, f"{run.stdout} MiB"  # encoding it whole takes 1700


def test_what_may_fit_is_encoded_as_ever() -> None:
    text = "some words to count " * 500
    ids = tiny().encode_plain(text)
    assert tiny().encode_plain(text, len(ids)) == ids
    assert tiny().encode_plain(text, len(ids) // 2 + 1) == ids, "the exact limit is the caller's"
    with pytest.raises(TooLong) as caught:
        tiny().encode_plain(text, len(ids) // 8)
    assert len(ids) // 8 < caught.value.tokens <= len(ids)
