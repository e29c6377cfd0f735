"""Text far above the context is refused before it is encoded, within little memory."""

from __future__ import annotations

import subprocess
import sys

import pytest

from gateway.prompt.json_text import SURROGATE
from gateway.prompt.shadow import _CHUNK, holds
from gateway.prompt.vocabulary import _SEARCHED_CHARS, TooLong
from tests.api.harness import ROOT, TINY
from tests.property.prompt.support import tiny

PROGRAM = """
import resource, sys
from gateway.prompt import Checkpoint, PromptBuilder
from gateway.prompt.json_text import SURROGATE
from gateway.prompt.shadow import _CHUNK, holds
from gateway.prompt.vocabulary import _SEARCHED_CHARS, TooLong

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


@pytest.mark.parametrize("before", range(-12, 13))
def test_a_long_text_is_cut_at_the_same_tokens_wherever_its_steps_end(before: int) -> None:
    """Searches go on in steps, so that other threads have their turn: a token may stand across the end of one."""
    vocabulary = tiny().vocabulary
    token = next(t.content for t in vocabulary.added if 6 < len(t.content) < 20)
    words = "a" * (_SEARCHED_CHARS + before) + token + "b" * _SEARCHED_CHARS + token * 2 + "c"
    [pattern] = [p for p, _ in vocabulary._passes if p.search(token)]
    assert [m.span() for m in vocabulary._matches(pattern, words)] == [m.span() for m in pattern.finditer(words)]
    assert "".join(p if isinstance(p, str) else p.content for p in vocabulary._cut(words)) == words


@pytest.mark.parametrize("at", [0, _CHUNK - 1, _CHUNK, 3 * _CHUNK, 3 * _CHUNK + 4])
def test_one_letter_is_found_anywhere_in_a_long_text(at: int) -> None:
    words = "a" * (3 * _CHUNK + 5)
    assert holds(SURROGATE, words[:at] + "\ud800" + words[at + 1 :])
    assert not holds(SURROGATE, words)
