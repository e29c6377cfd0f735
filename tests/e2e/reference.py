"""What transformers itself answers: the same messages through its own processor and `generate`."""

from __future__ import annotations

import io
from functools import cache
from typing import Any

import numpy as np
import torch
from PIL import Image
from transformers import AutoProcessor
from transformers.models.minimax_m3_vl import MiniMaxM3SparseForConditionalGeneration

from tests.e2e.conftest import TINY


@cache
def load() -> tuple[Any, Any]:
    processor = AutoProcessor.from_pretrained(TINY)
    model = MiniMaxM3SparseForConditionalGeneration.from_pretrained(TINY, dtype=torch.float32).eval()
    return processor, model


def picture(seed: int, width: int, height: int) -> tuple[bytes, Image.Image]:
    """A seeded picture as PNG bytes and as Pillow sees it."""
    rng = np.random.default_rng(seed)
    coarse = rng.integers(0, 256, (max(2, height // 16), max(2, width // 16), 3), dtype=np.uint8)
    image = Image.fromarray(coarse).resize((width, height), Image.Resampling.NEAREST)
    out = io.BytesIO()
    image.save(out, "PNG")
    return out.getvalue(), image


def greedy(messages: list[dict[str, Any]], images: list[Image.Image], new_tokens: int, **kwargs: Any) -> list[int]:
    """Ids of transformers' greedy answer; images in `messages` are {"type": "image"} parts, in order."""
    processor, model = load()
    text = processor.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True, **kwargs)
    inputs = processor(text=[text], images=images or None, return_tensors="pt")
    with torch.no_grad():
        out = model.generate(**inputs, max_new_tokens=new_tokens, do_sample=False)
    return [int(i) for i in out[0, inputs["input_ids"].shape[1] :]]
