"""The shipped checkpoint is complete, small enough, and carries M3's control tokens with the right flags."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from engine.checkpoints.demo import export
from engine.checkpoints.demo.sizes import SIZES
from engine.checkpoints.demo.tokenizer import SPECIAL, TEXTUAL
from gateway.api.generation.sampling import generation_defaults

HERE = Path(export.__file__).parent
MODEL = HERE / "model"


def test_files_and_sizes() -> None:
    index = json.loads((MODEL / "model.safetensors.index.json").read_text())
    shards = {MODEL / name for name in index["weight_map"].values()}
    assert all(s.is_file() for s in shards)
    assert all(s.stat().st_size < 15_000_000 for s in shards)
    assert sum(f.stat().st_size for f in MODEL.iterdir()) <= 25_000_000


def test_the_index_names_exactly_the_tensors_the_maker_writes() -> None:
    from engine.checkpoints.demo.model import Net

    index = json.loads((MODEL / "model.safetensors.index.json").read_text())
    assert set(index["weight_map"]) == set(export.released(Net(SIZES)))


def test_an_answer_is_greedy_unless_a_client_asks_otherwise() -> None:
    """The quick start must not draw its answer by lot: at OpenAI's default temperature of 1 it was wrong now and then."""
    assert generation_defaults(MODEL) == {"temperature": 0.0}


def test_template_is_the_makers() -> None:
    assert (MODEL / "chat_template.jinja").read_text() == (HERE / "chat_template.jinja").read_text()


@pytest.mark.parametrize("text", SPECIAL)
def test_control_tokens(text: str) -> None:
    tk = Tokenizer.from_file(str(MODEL / "tokenizer.json"))
    assert tk.encode(text, add_special_tokens=False).ids == [tk.token_to_id(text)]
    assert tk.decode([tk.token_to_id(text)], skip_special_tokens=True) == (text if text in TEXTUAL else "")


def test_digits_are_single_tokens() -> None:
    tk = Tokenizer.from_file(str(MODEL / "tokenizer.json"))
    assert len(tk.encode("48213", add_special_tokens=False).ids) == 5
    assert tk.get_vocab_size() == SIZES.vocab
