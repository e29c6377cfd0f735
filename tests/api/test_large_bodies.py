"""A large body is answered as a small one with the same content."""

from __future__ import annotations

from gateway.api.settings import ApiSettings
from tests.api.harness import MODEL, Stack


async def test_ids_are_no_text_to_tokenize_however_many(stack: Stack) -> None:
    few, many = [1] * 3, [1] * ApiSettings().offload_bytes
    small, large = [await stack.post("/tokenize", {"model": MODEL, "prompt": ids}) for ids in (few, many)]
    assert (small.status, small.error["param"]) == (400, "prompt")
    assert (large.status, large.error) == (small.status, small.error)
