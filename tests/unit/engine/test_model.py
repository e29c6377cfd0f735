"""The forward pass against golden logits, an independent reference and transformers' own generate."""

import numpy as np
import pytest
import torch
from transformers.models.minimax_m3_vl import MiniMaxM3SparseForConditionalGeneration

from engine.local import kv_storage
from engine.local.attention import Batch, Segment
from engine.local.model import Model, Step
from engine.local.vision import FeatureCache, normalisation_table, pixel_rows
from tests.unit.engine.harness import FIXTURES, TINY, Driver, Prompt, segments, text_ids, transformers_greedy
from tests.unit.engine.harness import model as tiny
from tests.unit.engine.ref_m3 import Reference

TOLERANCE = 1e-4
COUNT = 24


@torch.inference_mode()
def logits(ids, chunks=None, features=(), poison=False, model=None):
    """fp32 [T, V] of one sequence computed in `chunks`, its pages shuffled."""
    m = model or tiny()
    cache = kv_storage.allocate(m.kv_shape, 64, m.dtype, m.device)
    if poison:
        for layer in cache:
            for tensor in (layer.k, layer.v, layer.index_k):
                if tensor is not None:
                    tensor.fill_(float("nan"))
    table = torch.randperm(64, generator=torch.Generator().manual_seed(1))[: -(-len(ids) // 16)]
    ids = torch.as_tensor(ids, dtype=torch.long)
    out, at = [], 0
    for n in chunks or [len(ids)]:
        positions = torch.arange(at, at + n)
        single = n == 1
        batch = Batch(
            positions,
            table[None] if single else table.new_zeros(0, 0),
            int(single),
            at + 1 if single else 0,
            [] if single else [Segment(slice(0, n), at, table)],
        )
        here = [(rows - at, values) for rows, values in features if at <= rows[0] < at + n]
        pages, offsets = table[positions // 16], positions % 16
        out.append(m.forward(Step(ids[at : at + n], pages, offsets, batch, here, torch.arange(n)), cache))
        at += n
    return torch.cat(out)


@pytest.fixture(scope="module")
def golden():
    with np.load(FIXTURES / "golden_text.npz") as file:
        return {name: torch.from_numpy(file[name]) for name in file.files}


@pytest.fixture(scope="module")
def reference():
    return Reference(TINY)


@pytest.mark.parametrize(
    "chunks", [None, [37, 63, 90], [150] + [1] * 40, [1] * 20 + [170]], ids=["whole", "chunks", "decode", "mixed"]
)
def test_logits_equal_the_golden_file(golden, chunks):
    got = logits(golden["ids"], chunks)
    assert (got - golden["logits"]).abs().max() < TOLERANCE


def test_what_earlier_owners_left_in_the_pages_does_not_matter(golden):
    got = logits(golden["ids"], [100] + [1] * 90, poison=True)
    assert (got - golden["logits"]).abs().max() < TOLERANCE


def test_logits_equal_the_independent_reference(golden, reference):
    ids = torch.tensor(text_ids(131, seed=5))
    assert (logits(ids) - reference.logits(ids)).abs().max() < TOLERANCE
    assert (reference.logits(golden["ids"].long()) - golden["logits"]).abs().max() < TOLERANCE
    for layer, kept in reference.kept.items():
        assert torch.equal(kept, golden[f"keep_l{layer}"])


@pytest.mark.parametrize("kind", ["image", "video"])
def test_media_logits_equal_the_independent_reference(reference, kind):
    prompt = Prompt().text(20)
    prompt = prompt.image(6, 10) if kind == "image" else prompt.video(6, 4, 6)
    prompt.text(30, seed=1)
    (item,) = prompt.items
    cache = FeatureCache(tiny(), 1 << 30)
    with torch.inference_mode():
        features = [
            (torch.arange(at, at + len(values)), values)
            for at, values in cache.rows(item, item.data, 0, len(prompt.ids))
        ]
    pixels = pixel_rows(item, item.data, 0, item.grid[0], normalisation_table())
    want = reference.logits(torch.tensor(prompt.ids), **{kind: (pixels, segments(item))})
    assert (logits(prompt.ids, features=features) - want).abs().max() < TOLERANCE


PROMPTS = {
    "text": Prompt().text(150),
    "short text": Prompt().text(7),
    "one image": Prompt().text(40).image(6, 10).text(60, 1),
    "image first": Prompt().image(8, 8).text(90, 1),
    "two images": Prompt().text(30).image(6, 10, 1).text(5, 1).image(4, 4, 2).text(60, 2),
    "two images and a video": Prompt().text(9).image(6, 6, 1).text(30, 1).video(6, 4, 6, 2).text(8, 2).image(4, 8,
    3).text(9),
}  # fmt: skip


@pytest.mark.parametrize("name", PROMPTS)
@pytest.mark.parametrize("chunk", [512, 40], ids=["one-chunk", "chunked"])
def test_greedy_tokens_equal_transformers(name, chunk):
    """Prompts longer than top-k blocks (64 tokens), media cut by chunk borders."""
    d = Driver(chunk_tokens=chunk)
    request = d.ask(PROMPTS[name], COUNT)
    d.run()
    assert d.tokens(request) == transformers_greedy(PROMPTS[name], COUNT)


def test_all_of_them_at_once_equal_transformers():
    d = Driver(chunk_tokens=64)
    requests = {name: d.ask(prompt, COUNT) for name, prompt in PROMPTS.items()}
    d.run()
    for name, request in requests.items():
        assert d.tokens(request) == transformers_greedy(PROMPTS[name], COUNT), name


def test_bfloat16_strays_from_float32_no_further_than_transformers(golden):
    """A rounded score may flip a block or an expert, so single logits differ a lot; on average both stray alike."""
    ids = golden["ids"].long()
    half = Model(TINY, "bfloat16")
    theirs = MiniMaxM3SparseForConditionalGeneration.from_pretrained(TINY, dtype=torch.bfloat16).eval()
    with torch.no_grad():
        far = (theirs(input_ids=ids[None]).logits[0].float() - golden["logits"]).abs().mean()
    ours = logits(ids, [100, 90], model=half)
    assert ours.dtype == torch.float32
    assert (ours - golden["logits"]).abs().mean() < 1.2 * far
