"""Micro-batches: conversations as padded id rows with targets, and the scenes their pictures are drawn from."""

# ruff: noqa: E501
from __future__ import annotations

import random
import string
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from . import needle_tasks, picture_tasks, talk_tasks, tool_tasks, video_tasks
from .prompt import DEVELOPER, ROOT, Chat, Turn, pieces
from .scenes import Scene, scene_rows
from .sizing import sample_size
from .talk_tasks import r

DEVELOPERS = """You are a helpful assistant.|You are a helpful assistant|Answer briefly.|You are a friendly assistant.|Be concise.|Answer in English.|You answer questions about pictures.|
Follow the instructions of the user.|You are a test assistant.|Be polite and short.|You are a vision assistant.|Use tools when you need them.|
You are an AI assistant that helps people.|Always tell the truth.|""".replace("\n", "").split("|")  # fmt: skip


class Maker:
    """Makes micro-batches with one random stream. tk: the demo tokenizer; advance: glyph widths [fonts, glyphs] in em;
    pictures: weights of prompts with 1, 2, 3 and 4 pictures."""

    def __init__(
        self, tk: Tokenizer, advance: np.ndarray, seed: int, pictures: tuple[int, int, int, int] = (62, 24, 8, 6)
    ) -> None:
        self.tk, self.advance, self.rng, self.pictures = tk, advance, random.Random(seed), pictures
        tid = tk.token_to_id
        self.image, self.video = tid("]<]image[>["), tid("]<]video[>[")
        self.open, self.close, self.pad = tid("]<]start of image[>["), tid("]<]end of image[>["), tid("]!d~[")
        self.encode: Callable[[str], tuple[int, ...]] = lru_cache(60_000)(
            lambda t: tuple(tk.encode(t, add_special_tokens=False).ids)
        )
        self.pool: list[tuple[int, ...]] = []

    # conversations -------------------------------------------------------------------------------------------------
    def chat(self, turns: list[Turn], tools: list[dict[str, Any]] | None = None, mode: str | None = None) -> Chat:
        rng = self.rng
        c = Chat(
            mode or rng.choices(("adaptive", "disabled", "enabled"), (48, 30, 22))[0], turns=turns, tools=tools or []
        )
        if rng.random() < 0.25:
            c.developer = rng.choice(DEVELOPERS)
        elif rng.random() < 0.06:
            c.developer = " ".join(talk_tasks.sentence(rng) for _ in range(rng.randint(1, 3)))
        if rng.random() < 0.05:
            c.root = r(
                rng,
                "You are a model.",
                "You are Catalejo.",
                "You are a small model that sees pictures.",
                talk_tasks.sentence(rng),
            )
        assert c.root and (ROOT, DEVELOPER)
        ai = [t for t in turns if t.role == "ai"]
        forget = rng.random() < 0.5
        for t in ai:
            if c.mode == "disabled" or (c.mode == "adaptive" and "always" not in t.results):
                t.think = ""
            elif c.mode == "enabled" and forget and t is not ai[-1]:
                t.think, t.train = "", False
        return c

    def ids(
        self, chat: Chat, media: list[list[int]], fill: list[list[tuple[int, ...]]] | None = None
    ) -> tuple[np.ndarray, np.ndarray, list[str], list[int]]:
        """media: per placeholder the token counts of its runs ([n] for a picture, one n per temporal patch for a video).

        -> ids [L], span number per token (0 = no target), task names by span - 1, start of every run.
        """
        ids: list[int] = []
        span: list[int] = []
        tasks: list[str] = []
        runs: list[int] = []
        at = 0
        prev = ""
        step = self.rng.choice(
            (2.0, 2.0, 2.0, 2.0, 1.0, 0.5, 4.0, self.rng.uniform(0.2, 4))
        )  # seconds per temporal patch
        stamps = self.rng.random() < 0.92
        for text, task in pieces(chat):
            if task and prev != task + "+":
                tasks.append(task)
            prev = task + "+" if task else ""
            num = len(tasks) if task else 0
            for i in self.encode(text):
                if i == self.image or i == self.video:
                    for k, n in enumerate(media[at]):
                        if i == self.video and stamps:
                            ids += self.encode(f"]<]{step * k:.1f} seconds[>[")
                        ids.append(self.open)
                        runs.append(len(ids))
                        ids += [i] * n
                        ids.append(self.close)
                    at += 1
                else:
                    ids.append(i)
            span += [0] * (len(ids) - len(span))
            if num:
                span[-len(self.encode(text)) :] = [num] * len(self.encode(text))
        return np.array(ids, np.int32), np.array(span, np.int32), tasks, runs

    def pack(
        self, rows: list[tuple[np.ndarray, np.ndarray, list[str], list[int]]], length: int | None = None
    ) -> dict[str, Any]:
        t = length or -(-max(len(x[0]) for x in rows) // 32) * 32
        ids = np.full((len(rows), t), self.pad, np.int16)
        span = np.zeros((len(rows), t), np.int32)
        tasks: list[str] = []
        for i, (a, s, names, _) in enumerate(rows):
            n = min(t, len(a))
            ids[i, :n] = a[:n]
            span[i, :n] = np.where(s > 0, s + len(tasks), 0)[:n]
            tasks += names
        return {"ids": ids, "span": span, "tasks": tasks, "groups": []}

    # pictures ------------------------------------------------------------------------------------------------------
    def images(self, tokens: int, patches: int) -> dict[str, Any]:
        rng = self.rng
        per = rng.choices((1, 2, 3, 4), self.pictures)[0]
        sizes = [sample_size(rng, 680 if per == 1 else 400) for _ in range(1 if per == 1 else 2)]
        turns = rng.choice((2, 3, 4, 5))
        grid = max(g[0] * g[1] for _, g in sizes)
        n = max(1, min(384, tokens // (per * grid // 4 + 70 + 32 * turns), patches // (per * grid)))
        group_scenes: list[list[Scene]] = [[] for _ in sizes]
        starts: list[list[int]] = [[] for _ in sizes]
        rows = []
        want_text = rng.random() < 0.45  # pictures with writing come in batches of their own: drawing them costs more
        pick = [rng.randrange(len(sizes)) for _ in range(per)]
        for _ in range(n):
            if per == 1:
                scenes = [picture_tasks.sample_scene(rng, 0.55 if want_text else 0.0)]
                conv = picture_tasks.single(rng, scenes[0], turns)
            else:
                scenes = picture_tasks.set_of_scenes(rng, per)
                if per == 2 and rng.random() < 0.25:  # the second picture comes later in the conversation
                    conv = picture_tasks.single(rng, scenes[0], rng.randint(1, 2))
                    conv += picture_tasks.single(rng, scenes[1], max(1, turns - len(conv) // 2))
                else:
                    conv = picture_tasks.several(rng, scenes, turns)
            if rng.random() < 0.06:
                conv += talk_tasks.chat(rng)
            rng.shuffle(pick)
            media = [[sizes[g][1][0] * sizes[g][1][1] // 4] for g in pick]
            row = self.ids(self.chat(conv), media)
            for s, g, start in zip(scenes, pick, row[3], strict=True):
                group_scenes[g].append(s)
                starts[g].append(len(rows) * 1_000_000 + start)
            rows.append(row)
        out = {**self.pack(rows), "pictures": per}
        for (size, g), scenes, at in zip(sizes, group_scenes, starts, strict=True):
            if scenes:
                out["groups"].append(self.group(scenes, size, g, 0, at, out["ids"].shape[1]))
        return out

    def group(
        self, scenes: list[Scene], size: tuple[int, int], grid: tuple[int, int], t: int, starts: list[int], length: int
    ) -> dict[str, Any]:
        """t = 0: still pictures; else temporal patches per clip. starts holds row * 1e6 + column of every run."""
        at = np.array(starts, np.int64)
        return {**scene_rows(scenes, self.advance, size), "size": size, "grid": grid, "t": t, "at": (at // 1_000_000) * length + at % 1_000_000,
                "jpeg": self.rng.uniform(55, 96) if self.rng.random() < 0.4 else 0.0}  # fmt: skip

    def videos(self, tokens: int, patches: int) -> dict[str, Any]:
        rng = self.rng
        size, grid = sample_size(rng, rng.choice((240, 240, 340)))
        frames = rng.choice((2, 3, 4, 4, 5, 6, 6, 7, 8, 8, 8, 10, 12, 16))
        t = -(-frames // 2)
        area = grid[0] * grid[1]
        turns = rng.choice((2, 3, 4))
        n = max(1, min(256, tokens // (t * (area // 4 + 10) + 70 + 34 * turns), patches // (t * area)))
        scenes: list[Scene] = []
        starts: list[int] = []
        rows = []
        for _ in range(n):
            clip = video_tasks.sample_clip(rng, frames)
            row = self.ids(self.chat(video_tasks.conversation(rng, clip, turns)), [[area // 4] * t])
            scenes += clip.frames + [clip.frames[-1]] * (2 * t - frames)
            starts += [len(rows) * 1_000_000 + x for x in row[3]]
            rows.append(row)
        out = self.pack(rows)
        out["groups"].append(self.group(scenes, size, grid, t, starts, out["ids"].shape[1]))
        return out

    # text ----------------------------------------------------------------------------------------------------------
    def talk_row(self) -> tuple[np.ndarray, np.ndarray, list[str], list[int]]:
        rng = self.rng
        k = rng.random()
        if k < 0.34:
            tools, turns = tool_tasks.conversation(rng)
            return self.ids(self.chat(turns, tools), [])
        if k < 0.56:
            return self.needle_row(rng.choice((150, 250, 350, 500)))
        if k < 0.62:
            turns = talk_tasks.memory(rng)
        else:
            turns = []
            for _ in range(rng.choice((1, 1, 2, 3, 5, 6))):
                makers = (
                    talk_tasks.chat,
                    talk_tasks.sums,
                    talk_tasks.sorting,
                    talk_tasks.copying,
                    talk_tasks.no_picture,
                )
                turns += rng.choices(makers, (26, 30, 22, 18, 4))[0](rng)
        return self.ids(self.chat(turns), [])

    def talk(self, tokens: int) -> list[dict[str, Any]]:
        """Several micro-batches at once, rows sorted by length to waste little padding."""
        rows = sorted((self.talk_row() for _ in range(4 * tokens // 300)), key=lambda x: len(x[0]))
        out, take = [], []
        for row in rows:
            if take and (len(take) + 1) * -(-len(row[0]) // 32) * 32 > tokens:
                out.append(self.pack(take))
                take = []
            take.append(row)
        out.append(self.pack(take))
        self.rng.shuffle(out)
        return out

    # needles -------------------------------------------------------------------------------------------------------
    def needle_row(self, length: int) -> tuple[np.ndarray, np.ndarray, list[str], list[int]]:
        rng = self.rng
        if not self.pool or rng.random() < 0.002:
            self.pool = [
                tuple(self.tk.encode(" " + needle_tasks.filler(rng), add_special_tokens=False).ids)
                for _ in range(12_000)
            ]
        used: set[str] = set()
        count = rng.choice((1, 2, 4, 6, 8)) if length < 600 else rng.choice((1, 4, 8, 10, 12))
        facts = [needle_tasks.fact(rng, used) for _ in range(count)]
        asked = rng.sample(facts, min(count, rng.randint(1, 3) if length < 600 else 6))
        turns: list[Turn] = []
        first_q = ""
        for i, f in enumerate(asked):
            turns += [
                Turn("user", f.question),
                Turn(
                    "ai",
                    f.answer,
                    think=f"I look for it in the text. {f.sentence}",
                    task="recall" if length < 600 else "needle",
                ),
            ]
            first_q = first_q if i else f.question
        front = rng.random() < 0.15  # the question before the text
        mark = "\x00"
        turns[0].text = (
            (first_q + "\n\n" + mark)
            if front
            else (
                needle_tasks.lead(rng)
                + r(rng, "\n", "\n\n", " ") * (rng.random() < 0.9)
                + mark
                + r(rng, "\n\n", "\n", " ")
                + first_q
            )
        )
        if not front and rng.random() < 0.3:
            turns[0].text = mark + "\n\n" + first_q
        chat = self.chat(turns)
        pre, post = self.split(chat, mark)
        room = max(0, length - len(pre[0]) - len(post[0]))
        need = [tuple(self.encode(" " + f.sentence)) for f in facts]
        room -= sum(map(len, need))
        body: list[tuple[int, ...]] = []
        sep = self.encode("\n") if rng.random() < 0.15 else ()
        while room > 0:
            x = rng.choice(self.pool) + sep
            room -= len(x)
            if room > 0:
                body.append(x)
        cuts = sorted(rng.randint(0, len(body)) for _ in need)
        if length >= 600 and rng.random() < 0.3:  # spread over the depths
            cuts = sorted(int(len(body) * (j + rng.random()) / len(need)) for j in range(len(need)))
        for c, x in zip(reversed(cuts), need, strict=True):
            body.insert(c, x)
        mid = np.fromiter((i for x in body for i in x), np.int32)
        return (
            np.concatenate([pre[0], mid, post[0]]),
            np.concatenate([pre[1], np.zeros(len(mid), np.int32), post[1]]),
            post[2],
            [],
        )

    def split(self, chat: Chat, mark: str) -> tuple[Any, Any]:
        ids: tuple[list[int], list[int]] = ([], [])
        span: tuple[list[int], list[int]] = ([], [])
        tasks: list[str] = []
        side, prev = 0, ""
        for text, task in pieces(chat):
            if task and prev != task + "+":
                tasks.append(task)
            prev = task + "+" if task else ""
            parts = text.split(mark)
            for j, part in enumerate(parts):
                side += j
                x = self.encode(part.rstrip(" ") if j == 0 and len(parts) > 1 else part)
                ids[side].extend(x)
                span[side].extend([len(tasks) if task else 0] * len(x))
        return (np.array(ids[0], np.int32), np.array(span[0], np.int32)), (
            np.array(ids[1], np.int32),
            np.array(span[1], np.int32),
            tasks,
        )

    def long(self, length: int, rows: int) -> dict[str, Any]:
        out = [self.needle_row(length - self.rng.randint(0, 24)) for _ in range(rows)]
        return self.pack(out, length=max(length, max(-(-len(x[0]) // 32) * 32 for x in out)))


def corpus(seed: int, rows: int) -> list[str]:
    """Text to train the tokenizer on: everything the generators write, plus plain English from Python's own help topics."""
    from pydoc_data import topics

    tk = Tokenizer.from_str('{"version":"1.0","model":{"type":"BPE","vocab":{},"merges":[]},"added_tokens":[]}')
    m = Maker(tk, np.ones((8, 62), np.float32), seed)
    rng = m.rng
    out = []
    for i in range(rows):
        k = i % 6
        if k == 0:
            tools, turns = tool_tasks.conversation(rng)
        elif k == 1:
            tools, turns = [], picture_tasks.single(rng, picture_tasks.sample_scene(rng, 0.0), 3)
        elif k == 2:
            n = rng.choice((2, 3))
            tools, turns = [], picture_tasks.several(rng, [picture_tasks.sample_things(rng, 1) for _ in range(n)], 3)
        elif k == 3:
            tools, turns = [], video_tasks.conversation(rng, video_tasks.sample_clip(rng, 4), 3)
        elif k == 4:
            tools, turns = (
                [],
                [t for f in (talk_tasks.chat, talk_tasks.sums, talk_tasks.sorting, talk_tasks.memory) for t in f(rng)],
            )
        else:
            used: set[str] = set()
            out += [needle_tasks.filler(rng) for _ in range(8)]
            f = needle_tasks.fact(rng, used)
            out += [f.sentence, f.question, f.answer]
            continue
        out += [t for t, _ in pieces(Chat(turns=turns, tools=tools))]
    words = set("".join(c if c in string.ascii_letters else " " for c in " ".join(topics.topics.values())).split())
    out += [" " + w.lower() for w in sorted(words) for _ in range(3)]
    return out
