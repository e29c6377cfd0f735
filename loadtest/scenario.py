"""What a scenario file may say, and how to load one. One YAML file each; `catalejo loadtest scenarios` lists ours.

Token counts are targets: words are turned into tokens with a ratio measured against the server in the warm-up, and the
report quotes what the server counted (usage), never the target.
"""

from __future__ import annotations

from importlib import resources
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from loadtest.distribution import Quantity

OURS = frozenset({"model", "messages", "stream", "stream_options"})
"""Fields of a request's body that a scenario cannot set."""


class ScenarioError(ValueError):
    """The file is missing or a field is wrong; the message names file and field."""


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)


def _q(value: Any) -> Any:
    return Field(default_factory=lambda: Quantity.model_validate(value))


class Prefix(_Part):
    """Text that several sessions share, put before their own: what a prefix cache can reuse.

    shared_tokens   system prompt and tools, the same for all
    group_tokens    one of `groups` texts, chosen by Zipf with `zipf`
    session_tokens  the session's own opening
    """

    shared_tokens: int = Field(0, ge=0, le=10_000_000)
    group_tokens: int = Field(0, ge=0, le=10_000_000)
    groups: int = Field(1, ge=1, le=1_000_000)
    zipf: float = Field(0.6, ge=0, le=20)
    session_tokens: Quantity = _q(0)


class Images(_Part):
    """Pictures added to each turn. `look` decides entropy: a screenshot compresses well, a photo does not."""

    per_turn: Quantity = _q(0)
    width: Quantity = _q(1280)
    height: Quantity = _q(720)
    format: Literal["png", "jpeg", "webp"] = "png"
    look: Literal["screenshot", "photo", "document"] = "screenshot"
    detail: Literal["auto", "low", "high"] = "auto"
    distinct: int = Field(16, ge=1, le=4096, description="how many pictures there are; they are made before the run")


class Videos(_Part):
    per_turn: Quantity = _q(0)
    seconds: float = Field(4, gt=0, le=3600)
    width: int = Field(640, ge=16, le=8192)
    height: int = Field(360, ge=16, le=8192)
    fps: float | None = Field(None, gt=0)


class Scenario(_Part):
    """One kind of traffic.

    turns       requests of a session; each repeats the conversation so far and adds to it
    new_tokens  text added per turn;  output_tokens  asked as max_tokens, with the end of turn ignored if `fixed_output`
    gap_s       from the end of an answer to when the next turn is due
    role_of_new_text  "tool": turns after the first bring the result of a call that the answer before is taken to have made
    """

    name: str
    description: str
    turns: Quantity = _q(1)
    new_tokens: Quantity = _q(256)
    output_tokens: Quantity = _q(128)
    fixed_output: bool = Field(True, description="ask the server to ignore its stop token (ignore_eos), if it can")
    gap_s: Quantity = _q(0)
    prefix: Prefix = Field(default_factory=Prefix)  # type: ignore[arg-type]
    images: Images = Field(default_factory=Images)  # type: ignore[arg-type]
    videos: Videos = Field(default_factory=Videos)  # type: ignore[arg-type]
    max_context_tokens: int = Field(1_000_000, ge=1)
    role_of_new_text: Literal["user", "tool"] = "user"
    extra_body: dict[str, Any] = Field(default_factory=dict)
    mix: dict[str, float] = Field(
        default_factory=dict, description="weights of other scenarios; then the rest is unused"
    )

    @field_validator("extra_body")
    @classmethod
    def _not_ours(cls, value: dict[str, Any]) -> dict[str, Any]:
        if taken := OURS & set(value):
            raise ValueError(f"{min(taken)} is the harness's own to set")
        return value

    @field_validator("mix")
    @classmethod
    def _weights(cls, value: dict[str, float]) -> dict[str, float]:
        if value and (min(value.values()) < 0 or not sum(value.values()) > 0):
            raise ValueError("weights must not be negative, nor all zero")
        return value

    @model_validator(mode="after")
    def _bounded(self) -> Scenario:
        """By means, which is what memory is spent on; single draws may lie above."""
        images = self.images
        for name, quantity, most in (
            ("turns", self.turns, 100_000),
            ("new_tokens", self.new_tokens, 10_000_000),
            ("output_tokens", self.output_tokens, 10_000_000),
            ("prefix.session_tokens", self.prefix.session_tokens, 10_000_000),
            ("images.per_turn", images.per_turn, 1000),
            ("images.width", images.width, 16_384),
            ("images.height", images.height, 16_384),
            ("videos.per_turn", self.videos.per_turn, 100),
            ("gap_s", self.gap_s, 86_400),
        ):
            if not 0 <= quantity.mean_value() <= most:
                raise ValueError(f"{name} is {quantity.mean_value():g} on average; 0 to {most:g} is allowed")
        return self


def shipped() -> dict[str, Path]:
    folder = resources.files("loadtest") / "scenarios"
    return {Path(str(f)).stem: Path(str(f)) for f in folder.iterdir() if str(f).endswith(".yaml")}


def load(name_or_path: str) -> Scenario:
    """A shipped scenario by name, or any file by path."""
    ours = shipped()
    path = ours.get(name_or_path, Path(name_or_path))
    if not path.is_file():
        raise ScenarioError(f"no scenario {name_or_path!r}: not a file, and not one of {', '.join(sorted(ours))}")
    try:
        scenario = Scenario.model_validate(yaml.safe_load(path.read_text(encoding="utf-8")))
    except UnicodeDecodeError as e:
        raise ScenarioError(f"{path.name}: not UTF-8 at byte {e.start}") from None
    except OSError as e:
        raise ScenarioError(f"{path.name}: {e.strerror}") from None
    except yaml.YAMLError as e:
        raise ScenarioError(f"{path.name}: not YAML: {e}") from None
    except RecursionError:
        raise ScenarioError(f"{path.name}: nested too deeply") from None
    except ValidationError as e:
        problems = (f"{'.'.join(map(str, p['loc'])) or 'the file'}: {p['msg']}" for p in e.errors())
        raise ScenarioError(f"{path.name}: {'; '.join(problems)}") from None
    for part in scenario.mix:
        if part == name_or_path or load(part).mix:
            raise ScenarioError(f"{path.name}: mix.{part}: a mix is made of scenarios that are none themselves")
    return scenario
