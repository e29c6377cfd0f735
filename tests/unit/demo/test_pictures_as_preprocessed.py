"""Training pictures reach the model as the product's preprocessing would send them."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

from engine.checkpoints.demo import render
from engine.checkpoints.demo.scenes import sample_things, scene_rows
from engine.checkpoints.demo.sizing import area_rule, long_side_rule

preproc_rs = pytest.importorskip("preproc_rs")


@pytest.mark.parametrize(
    ("rule", "size", "expected"),
    [
        (area_rule, (20, 20), (56, 56)),
        (area_rule, (90, 150), (84, 140)),
        (area_rule, (480, 640), (476, 644)),
        (area_rule, (1080, 1920), (504, 896)),
        (area_rule, (2000, 100), (1988, 112)),
        (long_side_rule, (48, 64), (112, 140)),
        (long_side_rule, (480, 640), (476, 644)),
        (long_side_rule, (3000, 4000), (1512, 2016)),
    ],
)
def test_size_rules(rule, size: tuple[int, int], expected: tuple[int, int]) -> None:
    assert rule(*size) == expected


@pytest.mark.parametrize("size", [(112, 140), (100, 150)], ids=["no resize", "resized"])
def test_rows_equal_the_rust_preprocessing(size: tuple[int, int]) -> None:
    """Same patch order and values. The training resize does not clamp between its two passes: edges may differ."""
    from io import BytesIO

    from PIL import Image

    h, w = size
    rows = scene_rows([sample_things(random.Random(4), 2)], np.ones((8, 62), np.float32), size)
    things, bg, chars = (torch.tensor(rows[k]) for k in ("things", "bg", "chars"))
    picture = render.draw(things, bg, chars, torch.zeros(1, 48, 48), h, w, 0.0)
    data = BytesIO()
    Image.fromarray(picture[0].permute(1, 2, 0).numpy().astype("u1")).save(data, "PNG")
    ref = preproc_rs.prepare_image(data.getvalue(), rows="f32")
    _, gh, gw = ref.grid_thw
    mine = render.to_rows(picture, gh, gw)[0].reshape(-1, 3, 1, 196).repeat(1, 1, 2, 1).flatten(1).numpy()
    assert mine.shape == ref.patches.shape
    difference = np.abs(mine - np.asarray(ref.patches)) * 255 * 0.27  # in levels
    if (gh * 14, gw * 14) == size:
        assert difference.max() < 1e-3
    else:
        assert (difference < 1.5).mean() > 0.99
        assert difference.max() < 16.5
