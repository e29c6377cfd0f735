"""Constrained decoding by xgrammar: compile once per request, one state per choice, a mask per step.

A constraint may begin only after one of `after_ids` has been generated (the end of thinking). Special tokens (role
markers, placeholders) are never part of what a grammar accepts, whatever their text looks like. Added tokens that are not
special are text to a grammar (M3 writes tool calls with them).
"""

from __future__ import annotations

import re
import threading
from pathlib import Path
from typing import Any

import xgrammar
from tokenizers import Tokenizer
from tokenizers.pre_tokenizers import ByteLevel
from torch import Tensor

from engine.contract.errors import BadGrammar
from engine.wire import Grammar

CACHE_BYTES = 256 << 20
PLACE_IN_COMPILER = re.compile(r"\[[\d:]+\] \S+:\d+: ")
"""How its messages begin: a clock, a source file."""
MAX_WHITESPACE = 1
"""White space in a row that JSON may hold: small models fill the answer with it where more is allowed."""


class Constraint:
    """State of one choice."""

    def __init__(self, compiled: Any, after_ids: tuple[int, ...], stop_ids: tuple[int, ...], vocab_size: int) -> None:
        self._compiled = compiled
        self._after = frozenset(after_ids)
        self.stop_ids = stop_ids
        self._vocab_size = vocab_size
        self._matcher: Any = None
        if not self._after:
            self._begin()

    def _begin(self) -> None:
        self._matcher = xgrammar.GrammarMatcher(self._compiled, override_stop_tokens=list(self.stop_ids))

    def fork(self) -> Constraint:
        """A fresh state for another choice."""
        return Constraint(self._compiled, tuple(self._after), self.stop_ids, self._vocab_size)

    @property
    def finished(self) -> bool:
        """The text is complete and closed by a stop id; nothing may follow."""
        return self._matcher is not None and self._matcher.is_terminated()

    def mask(self, row: Tensor) -> None:
        """-inf on every id of `row` [V] that cannot come next."""
        if self._matcher is None or self.finished:
            return
        bits = xgrammar.allocate_token_bitmask(1, self._vocab_size)
        self._matcher.fill_next_token_bitmask(bits)
        xgrammar.apply_token_bitmask_inplace(row[None, : self._vocab_size], bits.to(row.device))

    def accept(self, token: int) -> None:
        """Advances past a generated token."""
        if self._matcher is not None:
            if not self.finished and not self._matcher.accept_token(token):
                raise RuntimeError(f"grammar refused token {token} that its own mask allowed")
        elif token in self._after:
            self._begin()


class GrammarCompiler:
    """Compiles in the caller's thread; safe from several. The tokenizer is read at first use."""

    def __init__(self, folder: Path, vocab_size: int, eos_ids: tuple[int, ...]) -> None:
        self._folder = folder
        self._vocab_size = vocab_size
        self._eos_ids = eos_ids
        self._lock = threading.Lock()
        self._compiler: Any = None

    def _ready(self) -> Any:
        with self._lock:
            if self._compiler is None:
                path = self._folder / "tokenizer.json"
                if not path.is_file():
                    raise BadGrammar(f"{self._folder} has no tokenizer.json, so no grammars", param="grammar")
                tokenizer = Tokenizer.from_file(str(path))
                added = tokenizer.get_added_tokens_decoder()
                spell = ByteLevel(add_prefix_space=False, use_regex=False).pre_tokenize_str
                entries = [""] * self._vocab_size  # an empty entry is never accepted
                for text, i in tokenizer.get_vocab(with_added_tokens=True).items():
                    if i < self._vocab_size and not (i in added and added[i].special):
                        entries[i] = spell(text)[0][0] if i in added else text
                info = xgrammar.TokenizerInfo(
                    entries,
                    xgrammar.VocabType.BYTE_LEVEL,
                    vocab_size=self._vocab_size,
                    stop_token_ids=list(self._eos_ids),
                    add_prefix_space=False,
                )
                self._compiler = xgrammar.GrammarCompiler(info, max_threads=2, cache_limit_bytes=CACHE_BYTES)
        return self._compiler

    def compile(self, grammar: Grammar, stop_ids: frozenset[int]) -> Constraint:
        """Raises BadGrammar with the compiler's complaint."""
        compiler = self._ready()
        make = {
            "json_schema": lambda schema: compiler.compile_json_schema(schema, max_whitespace_cnt=MAX_WHITESPACE),
            "regex": compiler.compile_regex,
            "ebnf": compiler.compile_grammar,
            "structural_tag": compiler.compile_structural_tag,
        }[grammar.type]
        stops = tuple(stop_ids) or self._eos_ids
        try:
            return Constraint(make(grammar.value), tuple(grammar.after_ids or ()), stops, self._vocab_size)
        except Exception as error:
            said = PLACE_IN_COMPILER.sub("", str(error)).strip()
            raise BadGrammar(f"{grammar.type} does not compile: {said}", param="grammar.value") from None
