"""What the mock needs of a model folder: tokenizer.json and a few ids from its JSON files. No torch."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

THINK_END = "</mm:think>"
THINK_START = "<mm:think>"


def _json(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


class MockCheckpoint:
    """`path` holds tokenizer.json and config.json (FileNotFoundError names what is missing)."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        for name in ("tokenizer.json", "config.json"):
            if not (self.path / name).exists():
                raise FileNotFoundError(f"{self.path / name}: a mock engine needs it")
        self.tokenizer = Tokenizer.from_file(str(self.path / "tokenizer.json"))
        config = _json(self.path / "config.json")
        text = config.get("text_config") or config
        self.added = {t.content: i for i, t in self.tokenizer.get_added_tokens_decoder().items()}
        self.added_ids = frozenset(self.added.values())
        self.vocab_size = max(self.tokenizer.get_vocab_size(), int(text.get("vocab_size") or 0))
        self.max_positions = int(text.get("max_position_embeddings") or 131072)
        self.image_token_id = self._id(config, "image", "]<]image[>[")
        self.video_token_id = self._id(config, "video", "]<]video[>[")
        eos = _json(self.path / "generation_config.json").get("eos_token_id", text.get("eos_token_id"))
        if eos is None:
            eos = self.added.get("[e~[", 0)
        self.eos_ids: tuple[int, ...] = tuple(eos) if isinstance(eos, list) else (eos,)
        self.think_start_id = self.added.get(THINK_START)

    def _id(self, config: dict[str, Any], kind: str, token: str) -> int:
        for key in (f"{kind}_token_id", f"{kind}_token_index"):
            if isinstance(config.get(key), int):
                return int(config[key])
        return self.added.get(token, -1)

    def encode(self, text: str) -> list[int]:
        """Added tokens in the text become their ids."""
        return list(self.tokenizer.encode(text, add_special_tokens=False).ids)

    def decode(self, ids: Sequence[int]) -> str:
        known = [int(i) for i in ids if int(i) >= 0]
        return str(self.tokenizer.decode(known, skip_special_tokens=False))
