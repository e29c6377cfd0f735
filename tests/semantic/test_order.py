"""Did the second picture come second, and the last frame last?"""

from __future__ import annotations

import random

import pytest

from .conftest import Model, image, video
from .drawing import Item, draw, items


def test_two_pictures_keep_their_order(demo: Model) -> None:
    """Each pair is asked in both orders: a model or a server that ignores order gets half of them."""
    rng = random.Random(11)
    right = total = 0
    for _ in range(4):
        a, b = items(rng, 2)
        for pair in ((a, b), (b, a)):
            pictures = [image(draw(t)) for t in pair]
            answer = demo.ask(*pictures, f"Which picture has the {a.shape}?")
            right += ("first" if pair[0] is a else "second") in answer
            answer = demo.ask("What colour is the shape in the second picture?", *pictures)
            right += pair[1].colour in answer
            total += 2
    assert right >= total - 2


def test_pictures_of_different_sizes_keep_their_places(demo: Model) -> None:
    a = image(draw(Item("red", "circle"), size=(112, 112)))
    b = image(draw(Item("blue", "square"), size=(200, 120)))
    c = image(draw(Item("green", "triangle"), size=(140, 196)))
    assert "third" in demo.ask(a, b, c, "Which picture shows a triangle?")
    assert "first" in demo.ask(c, a, b, "Which picture shows a triangle?")


def test_words_between_pictures_stay_between_them(demo: Model) -> None:
    a, b = image(draw(Item("orange", "star"))), image(draw(Item("purple", "circle")))
    answer = demo.ask("Picture 1: ", a, "\nPicture 2: ", b, "\nWhat is in picture 2?")
    assert "purple circle" in answer


CLIPS = {
    "red_circle_moves_right": "moves to the right",
    "red_circle_moves_left": "moves to the left",
    "green_square_moves_down": "moves down",
    "blue_square_moves_up": "moves up",
    "circle_red_then_blue": "from red to blue",
    "square_blue_then_orange": "from blue to orange",
}


def test_the_last_event_of_a_video(demo: Model) -> None:
    """Left and right differ only by the order of frames. Chance: about 1 in 6 each."""
    answers = {name: demo.ask(video(name), "What happens at the end?") for name in CLIPS}
    wrong = {name: a for name, a in answers.items() if CLIPS[name] not in a}
    assert len(wrong) <= 1, wrong


@pytest.mark.parametrize(("question", "colour"), [("at the end", "blue"), ("at the start", "red")])
def test_first_and_last_frames_of_a_video(demo: Model, question: str, colour: str) -> None:
    assert colour in demo.ask(video("circle_red_then_blue"), f"What colour is the circle {question}?")
