"""Sessions: the messages of each turn, growing as answers come back, as request bodies.

A session's content is a function of (seed, session number) alone, whatever the order in which sessions run."""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
import orjson

from loadtest.distribution import zipf_index
from loadtest.payloads.text import Calibration, TextSource
from loadtest.scenario import Scenario, load

CLIPS = 4
TOOL = "run"
"""The function that agents of a scenario with tool results are taken to call."""


@dataclass(slots=True)
class Turn:
    """A request to send. `gap_s`: from the end of the previous answer to when this one is due."""

    session: int
    turn: int
    body: bytes
    gap_s: float
    asked_output_tokens: int
    images: int
    videos: int


@dataclass(eq=False)
class Sessions:
    """Makes sessions of one scenario. `model` goes into each body."""

    scenario: Scenario
    model: str
    seed: int
    calibration: Calibration = field(default_factory=Calibration)

    def __post_init__(self) -> None:
        self.text = TextSource(self.seed)
        self._mix = [(load(name), weight) for name, weight in self.scenario.mix.items()]

    @property
    def mean_turns(self) -> float:
        """Requests of a session, on average."""
        if not self._mix:
            return self.scenario.turns.mean_value()
        return sum(s.turns.mean_value() * w for s, w in self._mix) / sum(w for _, w in self._mix)

    def prepare(self) -> None:
        """Makes every picture and clip of fixed size before the run: drawing one takes longer than a token."""
        rng = np.random.default_rng([self.seed, 0x9C])
        for scenario in [self.scenario, *(s for s, _ in self._mix)]:
            images, videos = scenario.images, scenario.videos
            if images.per_turn.mean_value() > 0:
                for index in range(images.distinct):
                    width, height = images.width.draw_int(rng, 1), images.height.draw_int(rng, 1)
                    self.picture_url(scenario.name, index, width, height, images.look, images.format)
            if videos.per_turn.mean_value() > 0:
                for index in range(CLIPS):
                    self.clip_url(index, videos.width, videos.height, videos.seconds)

    def open(self, number: int) -> Session:
        rng = np.random.default_rng([self.seed, number])
        scenario = self.scenario
        if self._mix:
            weights = np.array([w for _, w in self._mix])
            scenario = self._mix[int(rng.choice(len(self._mix), p=weights / weights.sum()))][0]
        return Session(self, scenario, number, rng)

    @lru_cache(maxsize=256)  # noqa: B019 - one Sessions lives as long as its run
    def shared_text(self, kind: str, index: int, tokens: int) -> str:
        rng = np.random.default_rng([self.seed, {"shared": 1, "group": 2}[kind], index])
        return self.text.words(rng, self.calibration.words(tokens)) if tokens else ""

    @lru_cache(maxsize=512)  # noqa: B019
    def picture_url(self, scenario: str, index: int, width: int, height: int, look: str, file_format: str) -> str:
        from loadtest.payloads import pictures

        return pictures.data_url(
            pictures.picture(zlib.crc32(f"{scenario}:{index}".encode()), width, height, look, file_format),  # type: ignore[arg-type]
            f"image/{file_format}",
        )

    @lru_cache(maxsize=16)  # noqa: B019
    def clip_url(self, index: int, width: int, height: int, seconds: float) -> str:
        from loadtest.payloads import pictures

        return pictures.data_url(pictures.clip(index, width, height, seconds), "video/mp4")


class Session:
    """One conversation. `next()` gives its next turn or None; `answered(text)` adds the server's answer first."""

    def __init__(self, sessions: Sessions, scenario: Scenario, number: int, rng: np.random.Generator) -> None:
        self._s = sessions
        self.scenario = scenario
        self.number = number
        self._rng = rng
        self._turns = scenario.turns.draw_int(rng, 1)
        self._done = 0
        self._tokens = 0.0
        self._messages: list[dict[str, Any]] = []
        opening = self._opening()
        if opening:
            self._messages.append({"role": "system", "content": opening})

    def _opening(self) -> str:
        p, words = self.scenario.prefix, self._s.calibration.words
        group = zipf_index(self._rng, p.groups, p.zipf) if p.group_tokens else 0
        own = p.session_tokens.draw_int(self._rng)
        parts = [
            self._s.shared_text("shared", 0, p.shared_tokens),
            self._s.shared_text("group", group, p.group_tokens),
            self._s.text.words(self._rng, words(own)) if own else "",
        ]
        self._tokens += p.shared_tokens + p.group_tokens + own
        return "\n\n".join(part for part in parts if part)

    def next(self) -> Turn | None:
        if self.over:
            return None
        new = self.scenario.new_tokens.draw_int(self._rng, 1)
        if self._done and self._tokens + new > self.scenario.max_context_tokens:
            return None
        content: list[dict[str, Any]] = []
        images = self._add_images(content)
        videos = self._add_videos(content)
        content.append({"type": "text", "text": self._s.text.words(self._rng, self._s.calibration.words(new))})
        new_message = {"content": content if images or videos else content[0]["text"]}
        self._messages.append({**self._role(), **new_message})
        self._tokens += new
        gap = self.scenario.gap_s.draw(self._rng) if self._done else 0.0
        asked = self.scenario.output_tokens.draw_int(self._rng, 1)
        turn = Turn(self.number, self._done, self._body(asked), gap, asked, images, videos)
        self._done += 1
        self._tokens += asked
        return turn

    @property
    def over(self) -> bool:
        """Every turn has been given out; the last answer is nobody's history."""
        return self._done >= self._turns

    def answered(self, text: str) -> None:
        message: dict[str, Any] = {"role": "assistant", "content": text}
        if self.scenario.role_of_new_text == "tool":
            function = {"name": TOOL, "arguments": "{}"}
            message["tool_calls"] = [{"id": self._call_id, "type": "function", "function": function}]
        self._messages.append(message)

    def _role(self) -> dict[str, Any]:
        """New text is a user's, or from the second turn on the result of the call made in `answered`."""
        if self.scenario.role_of_new_text == "tool" and self._done:
            return {"role": "tool", "tool_call_id": self._call_id}
        return {"role": "user"}

    @property
    def _call_id(self) -> str:
        """Of the answer to the turn given out last."""
        return f"call_{self.number}_{self._done}"

    def _body(self, asked: int) -> bytes:
        body: dict[str, Any] = {
            "model": self._s.model,
            "messages": self._messages,
            "stream": True,
            "stream_options": {"include_usage": True},
            "max_tokens": asked,
        }
        if self.scenario.fixed_output:
            body["ignore_eos"] = True
        return orjson.dumps({**body, **self.scenario.extra_body})

    def _add_images(self, content: list[dict[str, Any]]) -> int:
        spec = self.scenario.images
        count = spec.per_turn.draw_int(self._rng)
        for _ in range(count):
            width, height = spec.width.draw_int(self._rng, 1), spec.height.draw_int(self._rng, 1)
            index = int(self._rng.integers(0, spec.distinct))
            url = self._s.picture_url(self.scenario.name, index, width, height, spec.look, spec.format)
            content.append({"type": "image_url", "image_url": {"url": url, "detail": spec.detail}})
        return count

    def _add_videos(self, content: list[dict[str, Any]]) -> int:
        spec = self.scenario.videos
        count = spec.per_turn.draw_int(self._rng)
        for _ in range(count):
            url = self._s.clip_url(int(self._rng.integers(0, CLIPS)), spec.width, spec.height, spec.seconds)
            video: dict[str, Any] = {"url": url}
            if spec.fps is not None:
                video["fps"] = spec.fps
            content.append({"type": "video_url", "video_url": video})
        return count
