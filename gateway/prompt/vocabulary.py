"""What tokenizer.json says, in three forms: ids of text without control tokens, ids of a rendered prompt, bytes of ids.

* The plain tokenizer is the checkpoint's own with its added tokens taken out, also out of the vocabulary and merges,
  so that no text whatever can give one of their ids.
* `Vocabulary.encode_rendered` cuts a rendered prompt at the added tokens (leftmost, then longest, as the reference
  matches them) and encodes what lies between. Twins (shadow.py) never match, and are characters again in the runs.
* `token_bytes` are the bytes a byte-level token stands for.

Only byte-level BPE is supported (o200k, GPT-2 and Llama 3 style files); anything else is refused when loaded.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import orjson
from tokenizers import Tokenizer

from gateway.prompt.run_cache import MIN_CHARS, RunCache
from gateway.prompt.shadow import Shadow

_PROBE_CHARS: Final = 1 << 16
_SEARCHED_CHARS: Final = 1 << 18
_SURE_BYTES_PER_TOKEN: Final = 4
"""Texts of fewer bytes per allowed token are encoded without asking first whether they are too long."""
_BATCH_FROM_CHARS: Final = 4096
"""Runs longer than this in all are encoded by one batch call, which gives the GIL back."""


class CheckpointError(ValueError):
    """The folder cannot be served. The message names the file, and the entry in it, that is missing or wrong."""


class TooLong(ValueError):
    """The text has more tokens than it may have; `tokens` is how many it has at least."""

    def __init__(self, tokens: int) -> None:
        super().__init__(f"at least {tokens} tokens")
        self.tokens = tokens


class UnsupportedTokenizer(CheckpointError):
    """tokenizer.json is not of a kind this gateway can serve. The message says what is missing."""


@dataclass(frozen=True, slots=True)
class AddedToken:
    id: int
    content: str
    special: bool
    single_word: bool
    lstrip: bool
    rstrip: bool
    normalized: bool


class Run(NamedTuple):
    """Ordinary text between two control tokens; its ids are [start, end) of the prompt's."""

    start: int
    end: int
    text: str


def byte_of_char() -> dict[str, int]:
    """The byte-level alphabet: printable Latin-1 stands for itself, the other 68 bytes for U+0100 and on, in order."""
    own = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    table = {chr(b): b for b in own}
    rest = [b for b in range(256) if b not in set(own)]
    return table | {chr(0x100 + i): b for i, b in enumerate(rest)}


class Vocabulary:
    def __init__(self, tokenizer_json: bytes) -> None:
        spec: dict[str, Any] = orjson.loads(tokenizer_json)
        _check_kind(spec)
        self.added = tuple(
            AddedToken(
                t["id"], t["content"], bool(t.get("special")), bool(t.get("single_word")), bool(t.get("lstrip")),
                bool(t.get("rstrip")), bool(t.get("normalized")),
            )
            for t in spec.get("added_tokens") or ()
        )  # fmt: skip
        self.shadow = Shadow(t.content for t in self.added)
        self.token_bytes = _token_bytes(spec, self.added)
        special = {t.id for t in self.added}
        self.longest_token = max((len(b) for i, b in enumerate(self.token_bytes) if i not in special), default=1)
        """Bytes of the longest token that text can become."""
        self._plain = Tokenizer.from_str(orjson.dumps(_without_added(spec, self.added)).decode())
        self._longest_added = max((len(t.content) for t in self.added), default=0)
        self._by_content = {t.content: t for t in self.added}
        self._fixed: dict[str, list[int]] = {}
        # The reference matches tokens marked `normalized` only in what the others leave over.
        matched = [t for t in self.added if t.content]
        passes = ([t for t in matched if not t.normalized], [t for t in matched if t.normalized])
        self._passes = [(_pattern(tokens), all(map(_cuts_anywhere, tokens))) for tokens in passes if tokens]

    def encode_plain(self, text: str, most_tokens: int | None = None) -> list[int]:
        """Raises TooLong; see `check_length`."""
        if most_tokens is not None:
            self.check_length([text], most_tokens)
        return self._encode_all([text])[0]

    def check_length(self, texts: Sequence[str], most_tokens: int) -> None:
        """Raises TooLong for what is far above `most_tokens`, before encoding it whole, which takes 140 bytes of memory
        per byte. Pieces are encoded one by one until the count is certain: cuts change it by a token or two each."""
        size = sum(map(utf8_bytes, texts))
        if size <= most_tokens * _SURE_BYTES_PER_TOKEN:
            return
        if size > most_tokens * self.longest_token:
            raise TooLong(-(-size // self.longest_token))
        tokens = 0
        for text in texts:
            for start in range(0, len(text), _PROBE_CHARS):
                tokens += len(self._encode_all([text[start : start + _PROBE_CHARS]])[0])
                if tokens > 2 * most_tokens:
                    raise TooLong(most_tokens + 1)

    def remember(self, runs: Iterable[str]) -> None:
        """Ordinary runs that come from the template alone: their ids are kept. Never text of a request."""
        self._fixed |= {text: self.encode_plain(text) for text in runs}

    def encode_rendered(
        self, text: str, cache: RunCache | None = None, scope: str | None = None, most_tokens: int | None = None
    ) -> tuple[list[int], list[Run]]:
        """The ids of a rendered prompt and its ordinary runs. With a cache and a scope, runs seen before are not
        encoded again. Raises TooLong; see `check_length`."""
        pieces = self._cut(text)
        texts = [self.shadow.reveal(p) for p in pieces if isinstance(p, str)]
        if most_tokens is not None:
            self.check_length(texts, most_tokens)
        encoded = iter(self._encode_known(texts, cache, scope))
        plain = iter(texts)
        ids: list[int] = []
        runs: list[Run] = []
        for piece in pieces:
            if isinstance(piece, str):
                start = len(ids)
                ids += next(encoded)
                runs.append(Run(start, len(ids), next(plain)))
            else:
                ids.append(piece.id)
        return ids, runs

    def _encode_known(self, texts: Sequence[str], cache: RunCache | None, scope: str | None) -> list[list[int]]:
        known: list[list[int] | None] = [self._fixed.get(t) for t in texts]
        if cache is not None and scope is not None:
            for i, text in enumerate(texts):
                if known[i] is None and len(text) >= MIN_CHARS:
                    known[i] = cache.get(scope, text)
        missing = [i for i, ids in enumerate(known) if ids is None]
        for i, ids in zip(missing, self._encode_all([texts[i] for i in missing]), strict=True):
            known[i] = ids
            if cache is not None and scope is not None:
                cache.put(scope, texts[i], ids)
        return [ids for ids in known if ids is not None]

    def _encode_all(self, texts: Sequence[str]) -> list[list[int]]:
        if sum(map(len, texts)) < _BATCH_FROM_CHARS:
            return [self._plain.encode(t, add_special_tokens=False).ids for t in texts]
        return [e.ids for e in self._plain.encode_batch_fast(list(texts), add_special_tokens=False)]

    def _cut(self, text: str) -> list[str | AddedToken]:
        pieces: list[str | AddedToken] = [text]
        for pattern, anywhere in self._passes:
            cut = self._cut_all if anywhere and len(text) <= _SEARCHED_CHARS else self._cut_once
            pieces = [q for p in pieces for q in (cut(pattern, p) if isinstance(p, str) else (p,))]
        return [p for p in pieces if p != ""]

    def _cut_all(self, pattern: re.Pattern[str], text: str) -> Iterable[str | AddedToken]:
        """Where every match is a cut."""
        pieces: list[str] = pattern.split(text)
        out: list[str | AddedToken] = [*pieces]
        out[1::2] = [self._by_content[token] for token in pieces[1::2]]
        return out

    def _cut_once(self, pattern: re.Pattern[str], text: str) -> Iterator[str | AddedToken]:
        position = 0
        for match in pattern.finditer(text) if len(text) <= _SEARCHED_CHARS else self._matches(pattern, text):
            token = self._by_content[match[0]]
            start, end = match.span()
            if start < position or (token.single_word and _inside_word(text, start, end)):
                continue
            if token.lstrip:
                start = position + len(text[position:start].rstrip())
            yield text[position:start]
            yield token
            if token.rstrip:
                end = len(text) - len(text[end:].lstrip())
            position = end
        yield text[position:]

    def _matches(self, pattern: re.Pattern[str], text: str) -> Iterator[re.Match[str]]:
        """`pattern.finditer(text)`, but a long text in steps, since a search holds the interpreter lock to its end. Each sees
        as far beyond its own end as a token reaches."""
        start = 0
        while start < len(text):
            step_end = start + _SEARCHED_CHARS
            for match in pattern.finditer(text, start, step_end + self._longest_added):
                if match.start() >= step_end:
                    break
                start = match.end()
                yield match
            start = max(start, step_end)


def utf8_bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))


def _inside_word(text: str, start: int, end: int) -> bool:
    return bool(re.match(r"\w", text[end : end + 1]) or re.match(r"\w", text[max(0, start - 1) : start]))


def _cuts_anywhere(token: AddedToken) -> bool:
    return not (token.single_word or token.lstrip or token.rstrip)


def _pattern(tokens: Sequence[AddedToken]) -> re.Pattern[str]:
    """Its one group is the whole match, so that `split` keeps what it cuts at."""
    contents = sorted((t.content for t in tokens), key=len, reverse=True)
    return re.compile("(" + "|".join(map(re.escape, contents)) + ")")


def _check_kind(spec: Mapping[str, Any]) -> None:
    model = spec.get("model") or {}
    if model.get("type") != "BPE":
        raise UnsupportedTokenizer(f"tokenizer.json holds a {model.get('type')!r} model; byte-level BPE is supported")
    decoder = spec.get("decoder") or {}
    kinds = [d.get("type") for d in decoder.get("decoders", [decoder])]
    if "ByteLevel" not in kinds:
        raise UnsupportedTokenizer(f"tokenizer.json decodes by {kinds}; a ByteLevel decoder is needed")


def _token_bytes(spec: Mapping[str, Any], added: Sequence[AddedToken]) -> list[bytes]:
    """bytes by id; ids without an entry stand for nothing."""
    vocab: Mapping[str, int] = spec["model"]["vocab"]
    size = 1 + max([*vocab.values(), *(t.id for t in added)], default=-1)
    table = [b""] * size
    # str.translate to Latin-1 and one encode is far quicker than a lookup per character, for 200,000 entries.
    to_latin = {ord(c): chr(b) for c, b in byte_of_char().items()}
    for token, token_id in vocab.items():
        try:
            table[token_id] = token.translate(to_latin).encode("latin-1")
        except UnicodeEncodeError:  # not of the alphabet: an added token listed in the vocabulary
            table[token_id] = token.encode()
    for t in added:
        table[t.id] = t.content.encode()
    return table


def _without_added(spec: Mapping[str, Any], added: Sequence[AddedToken]) -> dict[str, Any]:
    gone = {t.id for t in added}
    model = dict(spec["model"])
    vocab = model["vocab"]
    kept = {token: i for token, i in vocab.items() if i not in gone}
    if len(kept) != len(vocab):
        dropped = vocab.keys() - kept.keys()
        model["merges"] = [m for m in model["merges"] if not _touches(m, dropped)]
        model["vocab"] = kept
    return {**spec, "model": model, "added_tokens": [], "post_processor": None, "truncation": None, "padding": None}


def _touches(merge: str | list[str], dropped: set[str]) -> bool:
    left, right = merge.split(" ") if isinstance(merge, str) else merge
    return left in dropped or right in dropped or left + right in dropped
