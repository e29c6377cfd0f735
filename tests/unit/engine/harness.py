"""Drives the engine's core step by step, and asks transformers the same."""

from __future__ import annotations

import itertools
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from engine import wire
from engine.local.core import Core
from engine.local.grammar import GrammarCompiler
from engine.local.model import Model
from engine.local.options import EngineOptions
from engine.local.sampling import Sampling
from engine.local.sequence import Request
from engine.local.vision import normalisation_table, pixel_rows

ROOT = Path(__file__).resolve().parents[3]
TINY = ROOT / "engine" / "checkpoints" / "tiny"
FIXTURES = ROOT / "tests" / "fixtures" / "engine"
PAGE = 16
IMAGE, VIDEO, START, END = 500, 501, 502, 503
_rids = itertools.count()


@cache
def model() -> Model:
    return Model(TINY)


@cache
def grammars() -> GrammarCompiler:
    return GrammarCompiler(TINY, model().text_config.vocab_size, model().eos_ids)


def text_ids(count: int, seed: int = 0) -> list[int]:
    """Ordinary tokens only."""
    return torch.randint(0, 480, (count,), generator=torch.Generator().manual_seed(seed)).tolist()


class Prompt:
    """Ids with media in them, and what the reference needs to see the same."""

    def __init__(self) -> None:
        self.ids: list[int] = []
        self.items: list[wire.Item] = []

    def text(self, count: int, seed: int = 0) -> Prompt:
        self.ids += text_ids(count, seed)
        return self

    def image(self, height: int, width: int, seed: int = 0) -> Prompt:
        """`height` x `width` patches of noise, as uint8 rows."""
        rows = np.random.default_rng(seed).integers(0, 256, (height * width, 588), dtype=np.uint8).tobytes()
        grid = (1, height, width)
        digest = wire.item_hash("image", grid, "u8", 1, rows)
        self.ids.append(START)
        where = (len(self.ids), height * width // 4)
        self.ids += [IMAGE] * where[1]
        self.ids.append(END)
        self.items.append(wire.Item("image", digest, "u8", 1, grid, (where,), rows))
        return self

    def video(self, patches: int, height: int, width: int, seed: int = 0) -> Prompt:
        """`patches` temporal patches, each after two tokens of 'timestamp'."""
        shape = (patches * height * width, 1176)
        rows = np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8).tobytes()
        grid = (patches, height, width)
        digest = wire.item_hash("video", grid, "u8", 0, rows)
        ranges = []
        for k in range(patches):
            self.ids += [40 + k, 41, START]
            ranges.append((len(self.ids), height * width // 4))
            self.ids += [VIDEO] * ranges[-1][1] + [END]
        self.items.append(wire.Item("video", digest, "u8", 0, grid, tuple(ranges), rows))
        return self

    def inputs(self) -> dict[str, torch.Tensor]:
        """What transformers' model takes. It wants videos cut into segments of 4 temporal patches."""
        out = {"input_ids": torch.tensor([self.ids])}
        for modality, pixels, grids in (
            ("image", "pixel_values", "image_grid_thw"),
            ("video", "pixel_values_videos", "video_grid_thw"),
        ):
            mine = [i for i in self.items if i.modality == modality]
            if mine:
                out[pixels] = torch.cat([pixel_rows(i, i.data, 0, i.grid[0], normalisation_table()) for i in mine])
                out[grids] = torch.tensor([segment for i in mine for segment in segments(i)])
        return out


def segments(item: wire.Item) -> list[tuple[int, int, int]]:
    t, h, w = item.grid
    return [(min(4, t - k), h, w) for k in range(0, t, 4)]


@cache
def transformers_greedy(prompt: Prompt, count: int) -> list[int]:
    """transformers' own `generate` with its own cache and attention; it does not stop early."""
    with torch.no_grad():
        out = hf().generate(
            **prompt.inputs(), max_new_tokens=count, min_new_tokens=count, do_sample=False, eos_token_id=None
        )
    return out[0, len(prompt.ids) :].tolist()


@cache
def hf() -> Any:
    from transformers.models.minimax_m3_vl import MiniMaxM3SparseForConditionalGeneration

    return MiniMaxM3SparseForConditionalGeneration.from_pretrained(TINY, dtype=torch.float32).eval()


class Driver:
    """A core and what it said."""

    def __init__(self, *, check: bool = True, **options: Any) -> None:
        self.core = Core(model(), EngineOptions(model=TINY, **({"kv_pages": 256} | options)))
        self.replies: dict[Request, list[wire.Reply]] = {}
        self.check = check

    def ask(
        self,
        ids: Prompt | list[int],
        count: int = 8,
        *,
        n: int = 1,
        logprobs: int | None = None,
        grammar: wire.Grammar | None = None,
        salt: str = "",
        priority: int = 0,
        **sampling: Any,
    ) -> Request:
        prompt = ids if isinstance(ids, Prompt) else Prompt()
        if not isinstance(ids, Prompt):
            prompt.ids = list(ids)
        fields = {"max_new_tokens": count, "temperature": 0.0, "ignore_eos": True} | sampling
        values = Sampling.of(wire.check_sampling(fields), model().eos_ids, model().text_config.vocab_size)
        request = Request(
            rid=f"r{next(_rids)}",
            prompt=np.array(prompt.ids, dtype=np.uint32),
            sampling=values,
            n=n,
            logprobs=logprobs,
            constraint=None if grammar is None else grammars().compile(grammar, values.stop_ids),
            salt=salt,
            priority=priority,
            items=tuple(prompt.items),
        )
        self.replies[request] = []
        self.core.add(request, {i.hash: bytes(i.data) for i in prompt.items if i.data is not None})
        return request

    def step(self) -> None:
        for request, replies in self.core.step():
            self.replies[request] += replies
        if self.check:
            self.core.scheduler.check()

    def abort(self, request: Request) -> None:
        self.replies[request] += self.core.abort(request)

    def run(self) -> Driver:
        while self.core.busy:
            self.step()
        return self

    def tokens(self, request: Request, index: int = 0) -> list[int]:
        return [
            i for r in self.replies[request] if isinstance(r, wire.Tokens) and r.index == index for i in r.output_ids
        ]

    def rows(self, request: Request, index: int = 0) -> list[wire.LogprobRow]:
        tokens = [r for r in self.replies[request] if isinstance(r, wire.Tokens) and r.index == index]
        return [row for r in tokens for row in r.logprobs or []]

    def finish(self, request: Request, index: int = 0) -> wire.Finish:
        (one,) = [r for r in self.replies[request] if isinstance(r, wire.Finish) and r.index == index]
        return one

    def pages_used(self) -> int:
        return self.core.cache.used
