"""Facts hidden in long filler text, and questions about them."""

# ruff: noqa: E501  (tables of wordings)
from __future__ import annotations

import random
from dataclasses import dataclass

from .talk_tasks import r, sentence
from .words import ANIMALS, CITIES, COLOUR_NAMES, NAMES, OBJECTS, READ

ATTRIBUTES = """secret code|magic number|pass key|password|access code|special number|lucky number|door code|phone number|secret number|code|PIN|
locker number|ticket number|serial number|code word|secret word|special magic number|key""".replace("\n", "").split("|")
STOCK = """The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again.|Nothing happened that day.|It was a quiet morning.|
The road was long and the night was cold.|Nobody said a word.|This line is only filler.|Lorem ipsum dolor sit amet, consectetur adipiscing elit.|
The meeting was moved to the next week.|Please read the next page.|The report has many pages.|Time passed slowly.|The end of the chapter was near.|
The quick brown fox jumps over the lazy dog.|One thing led to another.|The train was late again.|It rained all day.""".replace(
    "\n", ""
).split("|")


@dataclass
class Fact:
    sentence: str
    question: str
    answer: str


def filler(rng: random.Random) -> str:
    k = rng.random()
    if k < 0.12:
        return rng.choice(STOCK)
    if k < 0.2:
        return f"Entry {rng.randint(1, 9999)}: {rng.choice(OBJECTS)} {rng.choice(READ)} {rng.randint(0, 99999)}."
    if k < 0.26:
        return (
            " ".join(rng.choice(rng.choice((READ, OBJECTS, ANIMALS, NAMES))) for _ in range(rng.randint(3, 12))) + "."
        )
    return sentence(rng)


def key(rng: random.Random) -> str:
    k = rng.random()
    if k < 0.35:
        return rng.choice(CITIES)
    if k < 0.6:
        return rng.choice(NAMES)
    return "the " + rng.choice(OBJECTS + ANIMALS)


def fact(rng: random.Random, used: set[str]) -> Fact:
    while True:
        who, att = key(rng), rng.choice(ATTRIBUTES)
        bare = rng.random() < 0.15
        tag = att if bare else who
        if tag not in used:
            used.add(tag)
            used.add(who)
            break
    if "word" in att:
        value = rng.choice(READ + OBJECTS) if rng.random() < 0.8 else rng.choice(COLOUR_NAMES)
    elif rng.random() < 0.9:
        value = str(rng.randint(10 ** rng.randint(1, 3), 10 ** rng.randint(4, 7) - 1))
    else:
        value = "".join(rng.choice("ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789") for _ in range(5))
    link = r(rng, "of", "for", "of")
    if bare:
        s = r(
            rng,
            f"The {att} is {value}.",
            f"Remember: the {att} is {value}.",
            f"The {att} is {value}. Remember it.",
            f"Note that the {att} is {value}.",
            f"The {att} is: {value}.",
        )
        q = r(
            rng,
            f"What is the {att}?",
            f"Tell me the {att}.",
            f"Find the {att}.",
            f"What was the {att}?",
            f"what is the {att}",
            f"What is the {att} mentioned in the text?",
        )
        return Fact(s, q, f"The {att} is {value}.")
    own = not who.startswith("the ") and rng.random() < 0.2
    s = r(rng, f"The {att} {link} {who} is {value}.", f"The {att} {link} {who} is {value}.", f"The {att} {link} {who} is: {value}.", f"One of the facts: the {att} {link} {who} is {value}.",
          f"Remember that the {att} {link} {who} is {value}.")  # fmt: skip
    if own:
        s = f"{who}'s {att} is {value}."
    q = r(rng, f"What is the {att} {link} {who}?", f"What is the {att} {link} {who}?", f"Tell me the {att} {link} {who}.", f"what is the {att} {link} {who}", f"Find the {att} {link} {who}.",
          f"What was the {att} {link} {who}?", f"Do you know the {att} {link} {who}?", f"What is the {att} {link} {who} mentioned in the text?",
          f"Which {att} does {who} have?")  # fmt: skip
    return Fact(s, q, f"The {att} {link} {who} is {value}.")


def lead(rng: random.Random) -> str:
    return r(rng, "Read this text.", "Here is a long text:", "Remember the facts in this text.", "There is important information hidden in this text. Find it and memorise it.",
             "Document:", "Context:", "Read the following text and answer my question.")  # fmt: skip
