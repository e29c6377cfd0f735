"""Checkpoints to render with, and an independent rendering to compare with: the template run plainly by jinja2, the
whole text given to the whole tokenizer."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import orjson
from jinja2 import Template
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from gateway.prompt import Checkpoint

ROOT = Path(__file__).resolve().parents[3]
TINY = ROOT / "engine" / "checkpoints" / "tiny"
O200K = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@functools.cache
def tiny() -> Checkpoint:
    return Checkpoint.load(TINY)


def write_real_shape(folder: Path) -> Path:
    """A checkpoint with a tokenizer of the released model's shape: o200k's pattern, added tokens with the released
    spelling, flags and order, some of them listed in the vocabulary too; the tiny template and configuration."""
    tokenizer = Tokenizer(models.BPE(ignore_merges=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(O200K), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    corpus = (TINY / "chat_template.jinja").read_text().splitlines() + (ROOT / "LICENSE").read_text().splitlines()
    corpus += ["<tool_call> </tool_call> <think> mm:think ]~b] [e~[ image video"] * 50
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator(
        corpus, trainers.BpeTrainer(vocab_size=1500, initial_alphabet=alphabet, show_progress=False)
    )
    tiny_added = orjson.loads((TINY / "tokenizer.json").read_bytes())["added_tokens"]
    for token in [*tiny_added, {"content": "<think>"}, {"content": "</think>"}, {"content": "]!p~["}]:
        special = bool(token.get("special", False))
        tokenizer.add_tokens([AddedToken(token["content"], special=special, normalized=False)])
    spec = json.loads(tokenizer.to_str())
    for token in spec["added_tokens"][-3:]:
        spec["model"]["vocab"][token["content"]] = token["id"]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tokenizer.json").write_text(json.dumps(spec))
    config = orjson.loads((TINY / "config.json").read_bytes())
    ids = {t["content"]: t["id"] for t in spec["added_tokens"]}
    config["image_token_index"], config["video_token_index"] = ids["]<]image[>["], ids["]<]video[>["]
    config["text_config"]["eos_token_id"] = ids["[e~["]
    (folder / "config.json").write_text(json.dumps(config))
    for name in ("chat_template.jinja", "tokenizer_config.json"):
        (folder / name).write_bytes((TINY / name).read_bytes())
    return folder


@functools.cache
def _reference_template(path: Path) -> Template:
    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
    env.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False)
    return env.from_string((path / "chat_template.jinja").read_text())


def reference_text(checkpoint: Checkpoint, messages: list[dict[str, Any]], **variables: Any) -> str:
    variables.setdefault("add_generation_prompt", True)
    return _reference_template(checkpoint.path).render(messages=messages, **variables)


def reference_ids(checkpoint: Checkpoint, text: str) -> list[int]:
    ids: list[int] = checkpoint.tokenizer.encode(text, add_special_tokens=False).ids
    return ids


def control_ids(checkpoint: Checkpoint, ids: list[int]) -> list[int]:
    added = set(checkpoint.added_tokens.values())
    return [i for i in ids if i in added]
