"""The training model and transformers' MiniMax-M3 classes are the same function of the same exported weights."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from engine.checkpoints.demo import tokenizer as demo_tokenizer
from engine.checkpoints.demo.export import write
from engine.checkpoints.demo.model import Net
from engine.checkpoints.demo.sizes import SIZES

pytest.importorskip("transformers.models.minimax_m3_vl")


def scrambled() -> Net:
    """Random weights in which every norm, bias and expert choice matters, rounded to what the files hold (bf16)."""
    torch.manual_seed(3)
    net = Net(SIZES).eval()
    with torch.no_grad():
        for p in net.parameters():
            if p.ndim == 1:
                p.add_(0.2 * torch.randn_like(p))
        net.head.normal_(0, 0.06)
        for layer in net.layers[SIZES.dense_layers :]:
            layer.mlp.bias.normal_(0, 0.1)
        for name, p in net.named_parameters():
            if "router" not in name and not name.endswith("vision.patch"):
                p.copy_(p.bfloat16())
    return net


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory):
    from transformers.models.minimax_m3_vl import MiniMaxM3SparseForConditionalGeneration

    out = tmp_path_factory.mktemp("export")
    tk = out / "tk.json"
    demo_tokenizer.build(["a b c"]).save(str(tk))
    net = scrambled()
    write(net, tk, out / "model")
    hf, info = MiniMaxM3SparseForConditionalGeneration.from_pretrained(
        out / "model", dtype=torch.float32, output_loading_info=True
    )
    assert not info["missing_keys"] and not info["unexpected_keys"], info
    assert all(f.stat().st_size < 15_000_000 for f in Path(out / "model").glob("*.safetensors"))
    return net, hf.eval(), tk


def ids_with(tokens: int, run: int, token: int) -> torch.Tensor:
    g = torch.Generator().manual_seed(tokens)
    ids = torch.randint(0, 4000, (1, tokens), generator=g)
    ids[0, 10 : 10 + run] = token
    return ids


@torch.no_grad()
def test_sparse_text_logits(pair) -> None:
    """Twice as many tokens as the chosen blocks hold: selection, own block and group-wise choice all matter."""
    net, hf, _ = pair
    ids = ids_with(2 * SIZES.block * SIZES.topk + 37, 0, 0)
    mine = net.logits(net.hidden(ids, [], "sparse")[0])
    dense = net.logits(net.hidden(ids, [], "short")[0])
    ref = hf(input_ids=ids).logits
    assert (mine - ref).abs().max() < 1e-4
    assert (dense - ref).abs().max() > 1e-2  # and the sparse path is really another function


@torch.no_grad()
def test_image_logits(pair) -> None:
    net, hf, _ = pair
    rows = torch.randn(1, 6 * 10, 588)
    ids = ids_with(64, 15, hf.config.image_token_id)
    f = net.vision(rows, 1, 6, 10)
    mine = net.logits(net.hidden(ids, [(torch.arange(10, 25), f[0])], "short")[0])
    pixels = rows[0].view(-1, 3, 1, 196).repeat(1, 1, 2, 1).flatten(1)
    ref = hf(input_ids=ids, pixel_values=pixels, image_grid_thw=torch.tensor([[1, 6, 10]])).logits
    assert (mine - ref).abs().max() < 1e-4


@torch.no_grad()
def test_video_logits(pair) -> None:
    """Six temporal patches: one full segment and one short one, each with time counted from zero."""
    net, hf, _ = pair
    rows = torch.randn(6, 4 * 6, 1176)
    ids = ids_with(80, 36, hf.config.video_token_id)
    f = torch.cat([net.vision(rows[a : a + 4].reshape(1, -1, 1176), len(rows[a : a + 4]), 4, 6)[0] for a in (0, 4)])
    mine = net.logits(net.hidden(ids, [(torch.arange(10, 46), f)], "short")[0])
    ref = hf(
        input_ids=ids, pixel_values_videos=rows.flatten(0, 1), video_grid_thw=torch.tensor([[4, 4, 6], [2, 4, 6]])
    ).logits
    assert (mine - ref).abs().max() < 1e-4
