"""What the routes of one mock engine share."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from aiohttp import web

from engine import wire
from tests.mock_engine.checkpoint import MockCheckpoint
from tests.mock_engine.prefix_cache import PrefixCache, RowStore
from tests.mock_engine.recorder import Recorder
from tests.mock_engine.script import Answer, Script
from tests.mock_engine.streaming import Registry


@dataclass(frozen=True)
class Options:
    model: str | Path
    host: str = "127.0.0.1"
    port: int = 0
    token: str | None = None
    page_size: int = 64
    vocab_size: int | None = None  # None: not told
    keep_alive_s: float = wire.KEEP_ALIVE_S
    max_body_bytes: int = wire.DEFAULT_MAX_BODY_BYTES
    incremental: bool = False
    """Stock /generate streams only what is new, as SGLang does when told to at start; otherwise everything so far."""
    step_ms: float = 0
    """Pause before each token of the built-in echo."""
    stock_only: bool = False
    """No contract route: an SGLang server without the plugin."""


class State:
    def __init__(self, options: Options, script: Script) -> None:
        self.options = options
        self.checkpoint = MockCheckpoint(options.model)
        self.recorder = Recorder(self.checkpoint)
        self.registry = Registry(self.recorder)
        self.prefixes = PrefixCache(options.page_size)
        self.rows = RowStore()
        self.script = script
        self._echo = Answer(delay_ms=options.step_ms)

    @staticmethod
    def of(request: web.Request) -> State:
        return request.app[STATE]

    def pick(self, request: wire.GenerateRequest) -> Answer:
        text = self.checkpoint.decode(request.input_ids.tolist()) if self.script.needs_text else ""
        return self.script.pick(text) or self._echo

    def put_back(self, answer: Answer) -> None:
        if answer is not self._echo:
            self.script.put_back(answer)

    def cached_tokens(self, request: wire.GenerateRequest, answer: Answer) -> int:
        found = self.prefixes.match_and_insert(request)
        return found if answer.cached_tokens is None else answer.cached_tokens


STATE: web.AppKey[State] = web.AppKey("state", State)
