"""A model folder as the gateway needs it: tokenizer, template and the few numbers of its configuration. No weights."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import orjson
from tokenizers import Tokenizer

from gateway.prompt import markers
from gateway.prompt.shadow import Shadow
from gateway.prompt.template import ChatTemplate
from gateway.prompt.vocabulary import CheckpointError, Vocabulary

_NAMED: Final = ("bos_token", "eos_token", "pad_token", "unk_token", "sep_token", "cls_token")


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """Loaded once, then only read, from any thread."""

    path: Path
    vocabulary: Vocabulary = field(repr=False)
    template: ChatTemplate = field(repr=False)
    template_variables: Mapping[str, str]
    """Names of special tokens, which templates may print: bos_token, eos_token, ..."""
    config: Mapping[str, Any] = field(repr=False)
    added_tokens: Mapping[str, int] = field(repr=False)
    image_token_id: int
    video_token_id: int
    vision_start_id: int
    vision_end_id: int
    eos_ids: tuple[int, ...]
    """End of turn; for M3 also the role opener, which a model may only write after forgetting to end its turn."""
    think_start_id: int | None
    think_end_id: int | None
    namespace_id: int | None
    max_position_embeddings: int
    vocab_size: int
    model_type: str

    @classmethod
    def load(cls, path: str | Path) -> Checkpoint:
        """Raises CheckpointError."""
        folder = Path(path)
        config = _json(folder, "config.json")
        tokenizer_config = _json(folder, "tokenizer_config.json", {})
        generation = _json(folder, "generation_config.json", {})
        vocabulary = Vocabulary(_read(folder, "tokenizer.json"))
        added = {t.content: t.id for t in vocabulary.added}
        text = config.get("text_config") or config
        named = {k: v for k in _NAMED if (v := _content(tokenizer_config.get(k)))}
        image, video = (_media_id(config, kind) for kind in ("image", "video"))
        eos = _eos(generation, text, added.get(named.get("eos_token", "")), added.get(markers.ROLE_OPEN))
        return cls(
            path=folder,
            vocabulary=vocabulary,
            template=ChatTemplate(_template(folder, tokenizer_config), vocabulary.shadow),
            template_variables=named,
            config=config,
            added_tokens=added,
            image_token_id=image,
            video_token_id=video,
            vision_start_id=_token(added, markers.VISION_START),
            vision_end_id=_token(added, markers.VISION_END),
            eos_ids=eos,
            think_start_id=added.get(markers.THINK_START),
            think_end_id=added.get(markers.THINK_END),
            namespace_id=added.get(markers.NAMESPACE),
            max_position_embeddings=_positive(text, "max_position_embeddings"),
            vocab_size=_positive(text, "vocab_size"),
            model_type=str(config.get("model_type", "")),
        )

    @functools.cached_property
    def tokenizer(self) -> Tokenizer:
        """The whole tokenizer, added tokens included. Serving does not need it, so it is read when first asked for."""
        return Tokenizer.from_file(str(self.path / "tokenizer.json"))

    @property
    def shadow(self) -> Shadow:
        return self.vocabulary.shadow

    def encode_plain(self, text: str, most_tokens: int | None = None) -> list[int]:
        """No added token is recognised: the ids are those of ordinary text. Raises TooLong."""
        return self.vocabulary.encode_plain(text, most_tokens)

    def decode(self, ids: Iterable[int]) -> str:
        """Every token as its text, control tokens too; bytes that are no UTF-8 become U+FFFD."""
        table = self.vocabulary.token_bytes
        return b"".join(table[i] if 0 <= i < len(table) else b"" for i in ids).decode("utf-8", "replace")


def _read(folder: Path, name: str) -> bytes:
    try:
        return (folder / name).read_bytes()
    except FileNotFoundError:
        raise CheckpointError(f"{folder} has no {name}; a checkpoint folder with it is needed") from None
    except OSError as e:
        raise CheckpointError(f"{folder / name} cannot be read: {e.strerror}") from None


def _json(folder: Path, name: str, default: dict[str, Any] | None = None) -> dict[str, Any]:
    if default is not None and not (folder / name).exists():
        return default
    try:
        value = orjson.loads(_read(folder, name))
    except orjson.JSONDecodeError as e:
        raise CheckpointError(f"{folder / name} is not JSON: {e}") from None
    if not isinstance(value, dict):
        raise CheckpointError(f"{folder / name} must hold a JSON object")
    return value


def _template(folder: Path, tokenizer_config: Mapping[str, Any]) -> str:
    if (folder / "chat_template.jinja").exists():
        return _read(folder, "chat_template.jinja").decode("utf-8")
    found = tokenizer_config.get("chat_template") or _json(folder, "chat_template.json", {}).get("chat_template")
    if isinstance(found, list):  # several by name
        found = next((t.get("template") for t in found if t.get("name") == "default"), None)
    if not isinstance(found, str):
        raise CheckpointError(f"{folder} has no chat_template.jinja and no chat_template in tokenizer_config.json")
    return found


def _content(token: Any) -> str | None:
    value = token.get("content") if isinstance(token, dict) else token
    return value if isinstance(value, str) else None


def _media_id(config: Mapping[str, Any], kind: str) -> int:
    value = config.get(f"{kind}_token_index", config.get(f"{kind}_token_id"))
    if not isinstance(value, int):
        raise CheckpointError(f"config.json has neither {kind}_token_index nor {kind}_token_id")
    return value


def _token(added: Mapping[str, int], content: str) -> int:
    if content not in added:
        raise CheckpointError(f"tokenizer.json has no added token {content!r}")
    return added[content]


def _positive(text: Mapping[str, Any], name: str) -> int:
    value = text.get(name)
    if not isinstance(value, int) or value <= 0:
        raise CheckpointError(f"config.json: text_config.{name} must be a positive integer")
    return value


def _eos(generation: Mapping[str, Any], text: Mapping[str, Any], *more: int | None) -> tuple[int, ...]:
    ids: list[int] = []
    for value in (generation.get("eos_token_id"), text.get("eos_token_id"), *more):
        for one in value if isinstance(value, list) else [value]:
            if isinstance(one, int) and one not in ids:
                ids.append(one)
    if not ids:
        raise CheckpointError("no end-of-turn token: generation_config.json, config.json and tokenizer name none")
    return tuple(ids)
