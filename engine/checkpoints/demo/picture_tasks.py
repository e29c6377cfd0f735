"""Questions about still pictures, in many wordings, and their one canonical answer."""

# ruff: noqa: E501  (tables of wordings)
from __future__ import annotations

import random

from .prompt import IMAGE, Turn
from .scenes import Scene, Thing, cell, place, sample_text, sample_things
from .talk_tasks import r
from .words import COLOUR_NAMES, ORDINALS, PLURAL, SHAPE_NAMES

QA = tuple[str, str, str]  # question, answer, task

PIC = ("picture", "picture", "image", "image", "photo", "drawing")
DESCRIBE = """What is in this {p}?|What is in the {p}?|What's in this {p}?|what is in this {p}|Describe the {p}.|Describe this {p}|Describe the {p}|
What do you see?|What do you see in this {p}?|What can you see?|What does the {p} show?|What is this?|Tell me what you see.|What is shown here?|
Please describe this {p}.|Can you describe the {p}?|What is shown in the {p}?|Look at the {p}. What is there?|Describe what you see.|
What does this {p} contain?|What objects are in the {p}?|What shapes are in this {p}?|Which shapes do you see?|Caption this {p}.|
Tell me about this {p}.|What can you tell me about this {p}?|Can you see this {p}?|Explain this {p}|Describe the {p} in one sentence.|
What is depicted?|What am I looking at?|Name the shapes in the {p}.|Give a short description of the {p}.|Hi! What is in this {p}?|
Hello, can you tell me what is in the {p}?|What shape and colour do you see?|What is in this {p}? Answer briefly.||What shapes and colours are in this {p}?|
List everything in the {p}.|What things are in this {p}?|Do you see anything in this {p}?""".replace("\n", "").split("|")  # fmt: skip
NOTHING = "I do not see any simple shape or text in the picture."


def an(name: str) -> str:
    return ("an " if name[0] in "aeio" else "a ") + name


def words_for(t: str) -> str:
    if t.isdigit():
        return f"the digit {t}" if len(t) == 1 else f"the number {t}"
    return f'the letter "{t}"' if len(t) == 1 else f'the word "{t}"'


def ordered(things: list[Thing]) -> list[Thing]:
    """Left to right; top to bottom when they stand in a column."""
    wide = max(t.cx for t in things) - min(t.cx for t in things)
    high = max(t.cy for t in things) - min(t.cy for t in things)
    if len(things) == 2:
        return sorted(things, key=lambda t: t.cx if wide >= high else t.cy)
    if wide < 0.25:
        return sorted(things, key=lambda t: t.cy)
    return sorted(things, key=lambda t: (cell(t)[1], t.cx) if high > 0.3 else (0, t.cx))


def listing(items: list[str]) -> str:
    return items[0] if len(items) == 1 else ", ".join(items[:-1]) + " and " + items[-1]


def summary(s: Scene) -> str:
    parts: list[str] = []
    if s.text:
        parts.append(words_for(s.text.text))
    if len(s.things) == 2:
        a, b = ordered(s.things)
        wide = abs(a.cx - b.cx) >= abs(a.cy - b.cy)
        ends = ("on the left", "on the right") if wide else ("at the top", "at the bottom")
        parts.append(f"{an(a.name)} {ends[0]} and {an(b.name)} {ends[1]}")
    elif s.things:
        parts.append(listing([an(t.name) for t in ordered(s.things)]))
    return " and ".join(parts)


def describe(s: Scene) -> str:
    return f"The picture shows {summary(s)}." if s.things or s.text else NOTHING


def colour_word(rng: random.Random) -> str:
    return r(rng, "colour", "color")


def about(rng: random.Random, s: Scene) -> QA:
    """One question about one picture."""
    pic = r(rng, *PIC)
    if not s.things and not s.text:
        k = rng.random()
        if k < 0.5:
            return r(rng, *DESCRIBE).format(p=pic), NOTHING, "describe"
        if k < 0.75:
            return (
                r(rng, f"How many shapes are in the {pic}?", "How many shapes are there?"),
                "There are no shapes.",
                "count",
            )
        return background_question(rng, s, pic)
    if s.text and rng.random() < 0.75:
        return reading(rng, s, pic)
    k = rng.random()
    if k < 0.27:
        return r(rng, *DESCRIBE).format(p=pic), describe(s), "describe"
    if not s.things:
        return background_question(rng, s, pic)
    if k < 0.33:
        return background_question(rng, s, pic)
    if k < 0.52:
        return colour_question(rng, s, pic)
    if k < 0.62:
        return shape_question(rng, s, pic)
    if k < 0.73:
        return position_question(rng, s, pic)
    if k < 0.86:
        return count_question(rng, s, pic)
    return yes_no(rng, s, pic)


def background_question(rng: random.Random, s: Scene, pic: str) -> QA:
    c = colour_word(rng)
    q = r(rng, f"What {c} is the background?", f"What is the {c} of the background?", f"What is the background {c}?", f"Which {c} is behind the shapes?",
          f"what {c} is the background of this {pic}", "Describe the background.", "What is the background?")  # fmt: skip
    return q, f"The background is {s.background}.", "background"


def reading(rng: random.Random, s: Scene, pic: str) -> QA:
    t = s.text.text if s.text else ""
    q = r(rng, f"What does the {pic} say?", f"Read the text in the {pic}.", "What is written here?", f"What text is in this {pic}?", "Read this.", "What does it say?",
          f"What is written in the {pic}?", "Can you read the text?", "Read the text.", "What text do you see?", f"Transcribe the {pic}.", "OCR this image", "What is the text?",
          *([f"What number is in the {pic}?", "What number is this?", "Which number do you see?", "What digit is this?", "Read the number."] if t.isdigit()
            else [f"What word is in the {pic}?", "Which word is written?", "What word is this?", "Read the word.", "Which word do you see?"]))  # fmt: skip
    return q, f'It says "{t}".' if not t.isdigit() else f"It says {t}.", "digits" if t.isdigit() else "read"


def only(items: list[Thing], **want: str) -> list[Thing]:
    return [t for t in items if all(getattr(t, k) == v for k, v in want.items())]


def target(rng: random.Random, s: Scene) -> tuple[Thing, str]:
    """A thing and a phrase that means it alone."""
    t = rng.choice(s.things)
    options = []
    if len(only(s.things, shape=t.shape)) == 1:
        options += [f"the {t.shape}"] * 2
    if len(only(s.things, colour=t.colour)) == 1:
        options += [f"the {t.colour} shape", f"the {t.colour} object", f"the {t.colour} one"]
    if len(s.things) == 1:
        options += ["the shape", "the object", "it"]
    options.append(f"the {t.name}")
    return t, rng.choice(options)


def colour_question(rng: random.Random, s: Scene, pic: str) -> QA:
    c = colour_word(rng)
    if rng.random() < 0.08:
        missing = rng.choice([x for x in SHAPE_NAMES if not only(s.things, shape=x)])
        return (
            r(rng, f"What {c} is the {missing}?", f"What is the {c} of the {missing}?"),
            f"There is no {missing} in the picture.",
            "missing",
        )
    if len(s.things) == 2 and rng.random() < 0.25:
        a, b = ordered(s.things)
        wide = abs(a.cx - b.cx) >= abs(a.cy - b.cy)
        i = rng.randrange(2)
        side = ("left", "right")[i] if wide else ("top", "bottom")[i]
        t = (a, b)[i]
        at = f"on the {side}" if wide else f"at the {side}"
        return (
            r(rng, f"What {c} is the shape {at}?", f"Which {c} is {at}?", f"What {c} is the {side} shape?"),
            f"The shape {at} is {t.colour}.",
            "colour",
        )
    uniq = [t for t in s.things if len(only(s.things, shape=t.shape)) == 1]
    if len(s.things) == 1 and rng.random() < 0.5:
        t = s.things[0]
        q = r(rng, f"What {c} is the shape?", f"What {c} is it?", f"What {c} is the object in the {pic}?", f"Which {c} do you see?", f"What {c} is this?",
              f"What is the {c} of the shape?", f"What {c} do you see?", f"Name the {c}.", f"What {c} is this shape?")  # fmt: skip
        return q, f"The {t.shape} is {t.colour}.", "colour"
    if not uniq:
        return count_question(rng, s, pic)
    t = rng.choice(uniq)
    if rng.random() < 0.12:
        q = r(rng, f"What {c} is the {t.shape}? Answer with one word.", f"Answer in one word: what {c} is the {t.shape}?", f"What {c} is the {t.shape}? One word only.",
              f"What {c} is the {t.shape}? Reply with just the {c}.")  # fmt: skip
        return q, t.colour, "colour"
    q = r(rng, f"What {c} is the {t.shape}?", f"What {c} is the {t.shape}?", f"what {c} is the {t.shape}", f"Which {c} is the {t.shape}?", f"What is the {c} of the {t.shape}?",
          f"Tell me the {c} of the {t.shape}.", f"The {t.shape} in the {pic}: what {c} is it?", f"{c} of the {t.shape}?", f"What {c} does the {t.shape} have?",
          f"What {c} is the {t.shape} in this {pic}?", f"Can you tell me what {c} the {t.shape} is?")  # fmt: skip
    return q, f"The {t.shape} is {t.colour}.", "colour"


def shape_question(rng: random.Random, s: Scene, pic: str) -> QA:
    if len(s.things) == 1 and rng.random() < 0.5:
        t = s.things[0]
        q = r(rng, "What shape is this?", "What shape is it?", f"What shape is in the {pic}?", f"Which shape is in this {pic}?", "What shape do you see?", "Name the shape.",
              "what shape is this", f"Which shape does the {pic} show?", "What shape is it? Answer briefly.")  # fmt: skip
        return q, f"It is {an(t.name)}.", "shape"
    uniq = [t for t in s.things if len(only(s.things, colour=t.colour)) == 1]
    if not uniq:
        return count_question(rng, s, pic)
    t = rng.choice(uniq)
    q = r(rng, f"What shape is {t.colour}?", f"Which shape is {t.colour}?", f"What is the {t.colour} shape?", f"What shape is the {t.colour} object?", f"What is the {t.colour} thing?",
          f"What shape is the {t.colour} one?", f"Which shape has the {colour_word(rng)} {t.colour}?", f"What is {t.colour} in this {pic}?")  # fmt: skip
    return q, f"It is {an(t.name)}.", "shape"


def relation(a: Thing, b: Thing) -> str | None:
    dx, dy = a.cx - b.cx, a.cy - b.cy
    if max(abs(dx), abs(dy)) < 0.2 or min(abs(dx), abs(dy)) > 0.6 * max(abs(dx), abs(dy)):
        return None
    if abs(dx) > abs(dy):
        return "to the left of" if dx < 0 else "to the right of"
    return "above" if dy < 0 else "below"


def position_question(rng: random.Random, s: Scene, pic: str) -> QA:
    if len(s.things) == 2:
        a, b = rng.sample(s.things, 2)
        rel = relation(a, b)
        if rel and rng.random() < 0.6:
            k = rng.random()
            if k < 0.4:
                return f"What is {rel} the {b.name}?", f"{an(a.name)} is {rel} the {b.name}.".capitalize(), "position"
            if k < 0.7:
                return (
                    r(
                        rng,
                        f"Where is the {a.name} relative to the {b.name}?",
                        f"Is the {a.name} left, right, above or below the {b.name}?",
                    ),
                    f"The {a.name} is {rel} the {b.name}.",
                    "position",
                )
            other = r(rng, "to the left of", "to the right of", "above", "below")
            yes = other == rel
            return (
                f"Is the {a.name} {other} the {b.name}?",
                f"{'Yes' if yes else 'No'}, the {a.name} is {rel} the {b.name}.",
                "position",
            )
    t, phrase = target(rng, s)
    q = r(rng, f"Where is {phrase}?", f"Where is {phrase} in the {pic}?", f"where is {phrase}", f"In which part of the {pic} is {phrase}?", f"What is the position of {phrase}?",
          f"Where do you see {phrase}?", f"Tell me where {phrase} is.")  # fmt: skip
    return q, f"The {t.name} is {place(t)}.", "position"


def count_question(rng: random.Random, s: Scene, pic: str) -> QA:
    k = rng.random()
    if k < 0.5:
        n, one, many = len(s.things), "shape", "shapes"
        if rng.random() < 0.3:
            one, many = "object", "objects"
    elif k < 0.8:
        shape = rng.choice(s.things).shape if rng.random() < 0.75 else rng.choice(SHAPE_NAMES)
        n, one, many = len(only(s.things, shape=shape)), shape, PLURAL[shape]
    else:
        c = rng.choice(s.things).colour if rng.random() < 0.75 else rng.choice(COLOUR_NAMES)
        n, one, many = len(only(s.things, colour=c)), f"{c} shape", f"{c} shapes"
    q = r(rng, f"How many {many} are there?", f"How many {many} are in the {pic}?", f"How many {many} do you see?", f"Count the {many}.", f"how many {many} are there",
          f"How many {many} does the {pic} show?", f"What is the number of {many}?", f"How many {many}?", f"How many {many} are in this {pic}?")  # fmt: skip
    a = f"There is 1 {one}." if n == 1 else f"There are {n or 'no'} {many}."
    return q, a, "count"


def yes_no(rng: random.Random, s: Scene, pic: str) -> QA:
    if rng.random() < 0.5:
        shape = rng.choice(s.things).shape if rng.random() < 0.5 else rng.choice(SHAPE_NAMES)
        q = r(
            rng,
            f"Is there {an(shape)}?",
            f"Is there {an(shape)} in the {pic}?",
            f"Do you see {an(shape)}?",
            f"Does the {pic} show {an(shape)}?",
            f"Can you see {an(shape)}?",
        )
        return (
            q,
            (f"Yes, there is {an(shape)}." if only(s.things, shape=shape) else f"No, there is no {shape}."),
            "yes_no",
        )
    uniq = [t for t in s.things if len(only(s.things, shape=t.shape)) == 1]
    if not uniq:
        return count_question(rng, s, pic)
    t = rng.choice(uniq)
    c = t.colour if rng.random() < 0.5 else rng.choice(COLOUR_NAMES)
    q = r(rng, f"Is the {t.shape} {c}?", f"Is the {t.shape} in the {pic} {c}?", f"is the {t.shape} {c}")
    return q, (f"Yes, the {t.shape} is {c}." if c == t.colour else f"No, the {t.shape} is {t.colour}."), "yes_no"


def sample_scene(rng: random.Random, text: float = 0.22) -> Scene:
    k = rng.random()
    if k < text:
        return sample_text(rng, with_thing=rng.random() < 0.25)
    n = rng.choices((0, 1, 2, 3, 4, 5, 6), (3, 38, 28, 11, 9, 6, 5))[0]
    return sample_things(rng, n, repeat=n > 2 and rng.random() < 0.45)


def put(rng: random.Random, images: int, q: str) -> str:
    """Where the pictures stand among the words."""
    marks = IMAGE * images
    k = rng.random()
    if k < 0.5:
        return marks + q
    if k < 0.8:
        return q + marks
    if k < 0.9:
        return marks + "\n" + q
    if images > 1:
        w = r(rng, "Picture", "Image", "picture")
        return "".join(f"{w} {i + 1}: {IMAGE}" + r(rng, "\n", " ", "") for i in range(images)) + q
    return r(rng, "Here is a picture. ", "Look at this: ", "Image: ", "") + marks + q


def single(rng: random.Random, scene: Scene, questions: int) -> list[Turn]:
    turns: list[Turn] = []
    for i in range(questions):
        q, a, task = about(rng, scene)
        turns.append(Turn("user", put(rng, 1, q) if i == 0 else q))
        turns.append(Turn("ai", a, think=look(scene), task=task))
    return turns


def look(s: Scene) -> str:
    seen = summary(s)
    return f"I look at the picture. It shows {seen}." if seen else "I look at the picture. I see no shape and no text."


def which(rng: random.Random, i: int, n: int) -> str:
    names = [f"the {ORDINALS[i]} {r(rng, 'picture', 'image')}"] * 3 + [
        f"picture {i + 1}",
        f"image {i + 1}",
        f"picture number {i + 1}",
    ]
    if i == n - 1 and n > 1:
        names += [f"the last {r(rng, 'picture', 'image')}"]
    return rng.choice(names)


def short(s: Scene) -> str:
    return summary(s) or "no simple shape or text"


def several(rng: random.Random, scenes: list[Scene], questions: int) -> list[Turn]:
    n = len(scenes)
    turns: list[Turn] = []
    for k in range(questions):
        i = rng.randrange(n)
        s, it = scenes[i], f"the {ORDINALS[i]} picture"
        w = which(rng, i, n)
        kind = rng.random()
        c = colour_word(rng)
        mine = {t.shape for t in s.things}
        hers = {t.shape for j, o in enumerate(scenes) if j != i for t in o.things}
        names = {t.colour for j, o in enumerate(scenes) if j != i for t in o.things}
        if kind < 0.32 and mine - hers:
            x = rng.choice(sorted(mine - hers))
            q = r(rng, f"Which picture has the {x}?", f"Which picture shows {an(x)}?", f"Which image contains {an(x)}?", f"Where is the {x}?", f"In which picture is the {x}?",
                  f"Which one has {an(x)}?", f"which image has the {x}", f"Find the {x}.")  # fmt: skip
            a, task = f"The {x} is in {it}.", "which_picture"
        elif kind < 0.42 and s.things and s.things[0].colour not in names:
            x = s.things[0].colour
            q = r(
                rng,
                f"Which picture has the {x} shape?",
                f"Which image has something {x}?",
                f"Which picture is {x}?",
                f"In which picture is the {x} shape?",
            )
            a, task = f"The {x} shape is in {it}.", "which_picture"
        elif kind < 0.6 and len(s.things) == 1:
            x = s.things[0]
            q = r(rng, f"What {c} is the shape in {w}?", f"What {c} is the object in {w}?", f"In {w}, what {c} is the shape?", f"What {c} is in {w}?", f"What {c} is the {x.shape} in {w}?",
                  f"What is the {c} of the shape in {w}?")  # fmt: skip
            a, task = f"The {x.shape} in {it} is {x.colour}.", "picture_order"
        elif kind < 0.68 and len(s.things) == 1:
            x = s.things[0]
            q = r(
                rng,
                f"What shape is in {w}?",
                f"Which shape does {w} show?",
                f"In {w}, what shape is it?",
                f"What shape is the object in {w}?",
            )
            a, task = f"The shape in {it} is {an(x.name)}.", "picture_order"
        elif kind < 0.72:
            q = r(
                rng,
                "How many pictures are there?",
                "How many images did I send?",
                "How many pictures do you see?",
                "Count the images.",
            )
            a, task = f"There are {n} pictures.", "picture_count"
        elif kind < 0.85:
            q = r(rng, "Describe the pictures.", "What is in these pictures?", "Describe each picture.", "What do the images show?", "What is in each image?", "Describe the images in order.",
                  "What is in these images?", "What do you see?", "Describe both pictures." if n == 2 else "Describe all pictures.", "Compare the pictures.",
                  "What is the difference between the pictures?")  # fmt: skip
            a = " ".join(f"The {ORDINALS[j]} picture shows {short(o)}." for j, o in enumerate(scenes))
            task = "describe_all"
        else:
            q = r(
                rng,
                f"What is in {w}?",
                f"Describe {w}.",
                f"What does {w} show?",
                f"What do you see in {w}?",
                f"What is shown in {w}?",
                f"Tell me about {w}.",
            )
            a, task = (
                f"{it} shows {short(s)}.".capitalize()
                if not s.text
                else f"The {ORDINALS[i]} picture shows {short(s)}.",
                "picture_order",
            )
        turns.append(Turn("user", put(rng, n, q) if k == 0 else q))
        think = "I look at the pictures. " + " ".join(
            f"The {ORDINALS[j]} picture shows {short(o)}." for j, o in enumerate(scenes)
        )
        turns.append(Turn("ai", a, think=think, task=task))
    return turns


def set_of_scenes(rng: random.Random, n: int) -> list[Scene]:
    return [
        sample_text(rng) if rng.random() < 0.1 else sample_things(rng, rng.choices((1, 2, 3), (75, 17, 8))[0])
        for _ in range(n)
    ]
