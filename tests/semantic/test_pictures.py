"""Does the model see the picture that was sent? Shape, colour, place, writing; both size rules; any orientation."""

from __future__ import annotations

import random
from typing import Any

import pytest
from PIL import Image, ImageDraw, ImageFont

from tests.e2e.conftest import ROOT

from .conftest import Model, image
from .drawing import Item, draw, items


def test_the_quick_start_picture_is_described_right(demo: Model) -> None:
    """The README's first curl."""
    sample = Image.open(ROOT / "engine/checkpoints/demo/sample.png")
    answer = demo.ask("What is in this picture?", image(sample), thinking="adaptive")
    assert "red circle on the left" in answer
    assert "blue square on the right" in answer


@pytest.mark.parametrize("detail", ["high", "low"])
def test_shapes_and_colours(demo: Model, detail: str) -> None:
    """detail low is the area rule, high the long-side rule; below 112 px they give different pictures. Chance: 1 in 32."""
    rng = random.Random(7)
    right = 0
    for size in ((64, 64), (96, 80), (112, 112), (150, 100), (90, 160), (200, 200), (224, 160), (131, 97)):
        (t,) = items(rng, 1)
        answer = demo.ask("What is in this picture?", image(draw(t, size=size), detail=detail))
        right += t.name in answer
    assert right >= 7


def test_a_screenshot_sized_picture_under_the_area_rule(demo: Model) -> None:
    picture = draw(Item("red", "circle", 0.25, 0.5, 0.2), Item("blue", "square", 0.75, 0.5, 0.2), size=(1200, 700))
    answer = demo.ask(image(picture, "JPEG", detail="low"), "Which shapes do you see?")
    assert "red circle" in answer
    assert "blue square" in answer


def test_places_of_two_things(demo: Model) -> None:
    """Mirrored pictures must give mirrored answers. Chance: 1 in 16 for all four."""
    a, b = Item("green", "triangle", 0.25, 0.5, 0.18), Item("purple", "star", 0.75, 0.5, 0.18)
    across = draw(a, b, size=(240, 140))
    for picture, first, second in (
        (across, "on the left", "on the right"),
        (across.transpose(Image.Transpose.FLIP_LEFT_RIGHT), "on the right", "on the left"),
    ):
        answer = demo.ask(image(picture), "What do you see?")
        assert f"green triangle {first}" in answer
        assert f"purple star {second}" in answer


ORIENTATIONS = {1: None, 3: Image.Transpose.ROTATE_180, 6: Image.Transpose.ROTATE_90, 8: Image.Transpose.ROTATE_270}


@pytest.mark.parametrize("orientation", sorted(ORIENTATIONS))
def test_exif_orientation_is_applied_before_the_model_sees_the_picture(demo: Model, orientation: int) -> None:
    """The stored pixels are turned, the tag says how: the model must see the upright picture every time."""
    upright = draw(Item("red", "circle", 0.25, 0.5, 0.18), Item("blue", "square", 0.75, 0.5, 0.18), size=(224, 112))
    turn = ORIENTATIONS[orientation]
    stored = upright.transpose(turn) if turn is not None else upright
    exif = Image.Exif()
    exif[0x0112] = orientation
    answer = demo.ask(image(stored, "JPEG", quality=95, exif=exif), "What is in this picture?")
    assert "red circle on the left" in answer
    assert "blue square on the right" in answer


def test_transparency_is_put_on_white(demo: Model) -> None:
    """The hidden colour of transparent pixels is blue; it must not show."""
    picture = draw(Item("red", "star"), background=(0, 0, 255, 0), mode="RGBA")
    part = image(picture)
    assert "white" in demo.ask(part, "What colour is the background?")
    assert "red" in demo.ask(part, "What colour is the star?")
    opaque = image(picture.convert("RGB"))
    assert "white" not in demo.ask(opaque, "What colour is the background?")


@pytest.mark.parametrize(("text", "question"), [("427", "What number is this?"), ("CAT", "What does it say?")])
def test_writing_is_read(demo: Model, text: str, question: str) -> None:
    picture = Image.new("RGB", (224, 112), "white")
    font: Any = ImageFont.load_default(56)
    ImageDraw.Draw(picture).text((112, 56), text, font=font, fill="black", anchor="mm")
    assert text in demo.ask(image(picture), question)


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "GIF", "BMP"])
def test_every_format_shows_the_same(demo: Model, kind: str) -> None:
    answer = demo.ask(image(draw(Item("blue", "triangle")), kind), "What shape is this?")
    assert "blue triangle" in answer
