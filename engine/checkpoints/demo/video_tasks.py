"""Short videos: one or two events in time, and questions about them."""

# ruff: noqa: E501  (tables of wordings)
from __future__ import annotations

import random
from dataclasses import dataclass

from .picture_tasks import an, colour_word
from .prompt import VIDEO, Turn
from .scenes import Scene, Thing, background, moved, thing
from .talk_tasks import r
from .words import COLOUR_NAMES, SHAPE_NAMES

KINDS = ("left", "right", "up", "down", "colour", "shape", "appear", "vanish", "grow", "shrink", "still")
TOWARDS = {"left": "to the left", "right": "to the right", "up": "up", "down": "down"}


@dataclass
class Clip:
    frames: list[Scene]
    events: list[tuple[str, str]]  # (kind, sentence without subject), in order
    first: Thing
    last: Thing
    empty_start: bool = False
    empty_end: bool = False


def phrase(kind: str, before: Thing, after: Thing) -> str:
    if kind in TOWARDS:
        return f"moves {TOWARDS[kind]}"
    return {"colour": f"changes from {before.colour} to {after.colour}", "shape": f"turns into {an(after.shape)}", "appear": "appears", "vanish": "disappears",
            "grow": "grows", "shrink": "shrinks", "still": "does not move"}[kind]  # fmt: skip


def ends(rng: random.Random, s: Scene, kind: str, t: Thing) -> tuple[Thing, Thing]:
    """The thing before and after one event, starting from t where possible."""
    step = rng.uniform(0.3, 0.55)
    if kind in ("left", "right"):
        d = step if kind == "right" else -step
        a = moved(t, cx=min(max(t.cx, 0.16 + max(0, -d)), 0.84 - max(0, d)))
        return a, moved(a, cx=a.cx + d)
    if kind in ("up", "down"):
        d = step if kind == "down" else -step
        a = moved(t, cy=min(max(t.cy, 0.16 + max(0, -d)), 0.84 - max(0, d)))
        return a, moved(a, cy=a.cy + d)
    if kind == "colour":
        while True:
            o = thing(rng, s, t.cx, t.cy, t.r, t.shape)
            if o.colour != t.colour:
                return t, moved(t, colour=o.colour, rgb=o.rgb)
    if kind == "shape":
        while True:
            o = thing(rng, s, t.cx, t.cy, t.r, rng.choice(SHAPE_NAMES), t.colour)
            if o.shape != t.shape:
                return t, moved(o, colour=t.colour, rgb=t.rgb)
    if kind == "appear":
        return moved(t, present=0.0), moved(t, present=1.0)
    if kind == "vanish":
        return t, moved(t, present=0.0)
    k = rng.uniform(1.8, 2.4)
    if kind == "grow":
        return moved(t, r=t.r / k**0.5), moved(t, r=t.r * k**0.5)
    if kind == "shrink":
        return moved(t, r=t.r * k**0.5), moved(t, r=t.r / k**0.5)
    return t, t


SUDDEN = {"colour", "shape", "appear", "vanish"}


def between(kind: str, a: Thing, b: Thing, u: float) -> Thing:
    if kind in SUDDEN:
        return a if u < 0.5 else b
    return moved(a, cx=a.cx + (b.cx - a.cx) * u, cy=a.cy + (b.cy - a.cy) * u, r=a.r + (b.r - a.r) * u)


def sample_clip(rng: random.Random, frames: int) -> Clip:
    s = background(rng)
    s.noise = min(s.noise, 3)
    t = thing(rng, s, rng.uniform(0.25, 0.75), rng.uniform(0.25, 0.75), rng.uniform(0.09, 0.17))
    t.outline = 0.0
    two = frames >= 4 and rng.random() < 0.5
    kinds = [rng.choices(KINDS, (3, 3, 3, 3, 3, 2, 1.5, 1.5, 1, 1, 0.7))[0]]
    if two:
        kinds[0] = rng.choice(("left", "right", "up", "down", "colour", "shape", "appear"))
        rest = [k for k in ("left", "right", "up", "down", "colour", "shape", "vanish") if k != kinds[0]]
        kinds.append(rng.choice(rest))
    spans: list[tuple[str, Thing, Thing]] = []
    cur = t
    for k in kinds:
        a, b = ends(rng, s, k, cur)
        if spans and (a.cx, a.cy) != (cur.cx, cur.cy):  # the second move needs room: shift the whole past
            dx, dy = a.cx - cur.cx, a.cy - cur.cy
            spans = [
                (n, moved(x, cx=x.cx + dx, cy=x.cy + dy), moved(y, cx=y.cx + dx, cy=y.cy + dy)) for n, x, y in spans
            ]
        spans.append((k, a, b))
        cur = b
    out = []
    for f in range(frames):
        x = f / (frames - 1) * len(spans)
        i = min(int(x), len(spans) - 1)
        u = x - i
        if len(spans) == 1 and spans[0][0] not in SUDDEN:
            pass
        k, a, b = spans[i]
        out.append(Scene([between(k, a, b, min(1.0, u))], None, s.background, s.bg, s.bg2, s.angle, s.noise, s.soft))
    ev = [(k, phrase(k, a, b)) for k, a, b in spans]
    return Clip(out, ev, spans[0][1], spans[-1][2], kinds[0] == "appear", kinds[-1] == "vanish")


WHAT = """What happens in the {v}?|Describe the {v}.|What happens?|What do you see in this {v}?|Describe what happens.|What is in this {v}?|Tell me what happens in the {v}.|
what happens in this {v}|What is going on in the {v}?|Summarise the {v}.|What does the {v} show?|Describe this {v}|Describe the {v}|What's happening here?|
What is shown in the {v}?|Explain the {v}.""".replace("\n", "").split("|")


def story(c: Clip) -> str:
    who = f"the {c.first.name}"
    if len(c.events) == 1:
        return f"{who} {c.events[0][1]}."
    return f"first {who} {c.events[0][1]}, then it {c.events[1][1]}."


def cap(t: str) -> str:
    return t[0].upper() + t[1:]


def ask(rng: random.Random, c: Clip) -> tuple[str, str, str]:
    v = r(rng, "video", "video", "clip", "video")
    cw = colour_word(rng)
    k = rng.random()
    x = c.last.shape if c.first.shape == c.last.shape else "shape"
    if k < 0.3:
        return r(rng, *WHAT).format(v=v), cap(story(c)), "video_describe"
    if k < 0.55:
        q = r(rng, "What happens at the end?", "What happens last?", f"What happens at the end of the {v}?", "What is the last thing that happens?", "what happens at the end",
              f"How does the {v} end?", "What happens in the end?", "Describe the end.", f"What is the last event in the {v}?")  # fmt: skip
        return q, f"At the end the {x} {c.events[-1][1]}.", "video_last"
    if k < 0.63 and len(c.events) == 2:
        q = r(
            rng,
            "What happens first?",
            f"What happens at the start of the {v}?",
            "What is the first thing that happens?",
            "What happens in the beginning?",
        )
        x = c.first.shape if c.first.shape == c.last.shape else "shape"
        return q, f"At the start the {x} {c.events[0][1]}.", "video_first"
    moves = [kind for kind, _ in c.events if kind in TOWARDS]
    if k < 0.78 and len(moves) == 1:
        q = r(rng, f"Which way does the {x} move?", f"In which direction does the {x} move?", f"Where does the {x} go?", "Which direction is the movement?", f"How does the {x} move?",
              f"Does the {x} move left, right, up or down?", "In which direction does it move?", "Which way does it move?")  # fmt: skip
        return q, f"The {x} moves {TOWARDS[moves[0]]}.", "video_direction"
    if k < 0.9 and not c.empty_end:
        q = r(
            rng,
            f"What {cw} is the {x} at the end?",
            f"What {cw} is it at the end of the {v}?",
            f"At the end, what {cw} is the {x}?",
            f"What is the final {cw}?",
            f"Which {cw} is it in the last frame?",
        )
        return q, f"At the end it is {c.last.colour}.", "video_colour"
    if not c.empty_start:
        q = r(
            rng,
            f"What {cw} is the {x} at the start?",
            f"What {cw} is it at the beginning?",
            f"At the start, what {cw} is the {x}?",
            f"Which {cw} is it in the first frame?",
        )
        return q, f"At the start it is {c.first.colour}.", "video_colour"
    return r(rng, *WHAT).format(v=v), cap(story(c)), "video_describe"


def conversation(rng: random.Random, c: Clip, questions: int) -> list[Turn]:
    turns: list[Turn] = []
    for i in range(questions):
        q, a, task = ask(rng, c)
        text = q if i else (VIDEO + q if rng.random() < 0.6 else q + VIDEO)
        turns.append(Turn("user", text))
        turns.append(Turn("ai", a, think=f"I watch the video. {cap(story(c))}", task=task))
    return turns


assert set(COLOUR_NAMES)  # the pools must not be empty: `thing` draws from them
