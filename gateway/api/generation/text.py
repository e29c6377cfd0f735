"""How much text a request may bring, and where it becomes tokens: the dearest step of a request's life in the gateway.

Small texts are handled at once, larger ones in a thread, the largest by two threads in the order they came, so that no
number of them can take the memory or the processors. A waiting request that is cancelled leaves the queue."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final, TypeVar

from gateway.api.settings import ApiSettings
from gateway.errors import ApiError

if TYPE_CHECKING:
    from gateway.prompt import Checkpoint

T = TypeVar("T")
HUGE_BYTES: Final = 256 << 10
HUGE_AT_ONCE: Final = 2


class TextWork:
    def __init__(
        self, settings: ApiSettings, checkpoint: Checkpoint, context_length: Callable[[], int], huge: Executor
    ) -> None:
        self._settings = settings
        self._checkpoint = checkpoint
        self._longest_token = checkpoint.vocabulary.longest_token
        self._context_length = context_length
        self._huge = huge

    def check(self, size: int, values: Sequence[Any], param: str) -> None:
        """Raises ApiError when the strings in `values` are more than can be a prompt. `size`: what they are not above, so
        that most requests need no count."""
        limit = self._context_length()
        if size > limit * self._longest_token and (size := sum(map(text_bytes, values))) > limit * self._longest_token:
            raise context_exceeded(limit, -(-size // self._longest_token), param, at_least=True)
        self.check_total(size, values, param)

    def check_total(self, size: int, values: Sequence[Any], param: str) -> None:
        """The same without regard to the context: for several prompts of one request."""
        most = self._settings.max_text_bytes
        if size > most and (size := sum(map(text_bytes, values))) > most:
            message = f"'{param}': {size} bytes of text; at most {most} are allowed"
            raise ApiError("string_above_max_length", message, param=param)

    async def encode(self, text: str, param: str) -> list[int]:
        """Ids of plain text. Raises ApiError."""
        from gateway.prompt.vocabulary import utf8_bytes

        size, limit = utf8_bytes(text), self._context_length()
        self.check(size, [text], param)
        return await self.run(size, lambda: self._checkpoint.encode_plain(text, limit), param)

    async def run(self, size: int, work: Callable[[], T], param: str) -> T:
        """`work()` on text of `size` bytes. Its TooLong becomes context_length_exceeded."""
        from gateway.prompt.vocabulary import TooLong

        try:
            if size <= self._settings.offload_prompt_bytes:
                return work()
            if size <= HUGE_BYTES:
                return await asyncio.to_thread(work)
            return await asyncio.get_running_loop().run_in_executor(self._huge, work)
        except TooLong as e:
            raise context_exceeded(self._context_length(), e.tokens, param, at_least=True) from None


def huge_texts() -> ThreadPoolExecutor:
    """The two threads all models share."""
    return ThreadPoolExecutor(HUGE_AT_ONCE, thread_name_prefix="huge-text")


def context_exceeded(limit: int, tokens: int, param: str, *, at_least: bool = False) -> ApiError:
    many = f"at least {tokens}" if at_least else str(tokens)
    message = (
        f"This model's maximum context length is {limit} tokens. However, your prompt has {many} tokens. "
        "Shorten the prompt; at least one token must be left for the answer."
    )
    return ApiError("context_length_exceeded", message, param=param)


def text_bytes(value: Any) -> int:
    """UTF-8 bytes of all strings in a JSON value, keys too."""
    from gateway.prompt.vocabulary import utf8_bytes

    size, left = 0, [value]
    while left:
        one = left.pop()
        if isinstance(one, str):
            size += utf8_bytes(one)
        elif isinstance(one, Mapping):
            left += one.keys()
            left += one.values()
        elif isinstance(one, (list, tuple)):
            left += one
    return size
