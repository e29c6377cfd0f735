"""What a scenario file may say, and how to load one. One YAML file each; `catalejo loadtest scenarios` lists ours.

Token counts are targets: words are turned into tokens with a ratio measured against the server in the warm-up, and the
report quotes what the server counted (usage), never the target.
"""

from __future__ import annotations

from importlib import resources
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from loadtest.distribution import Quantity


class ScenarioError(ValueError):
    """The file is missing or a field is wrong; the message names file and field."""


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid")


def _q(value: Any) -> Any:
    return Field(default_factory=lambda: Quantity.model_validate(value))


class Prefix(_Part):
    """Text that several sessions share, put before their own: what a prefix cache can reuse.

    shared_tokens   system prompt and tools, the same for all
    group_tokens    one of `groups` texts, chosen by Zipf with `zipf`
    session_tokens  the session's own opening
    """

    shared_tokens: int = Field(0, ge=0)
    group_tokens: int = Field(0, ge=0)
    groups: int = Field(1, ge=1)
    zipf: float = Field(0.6, ge=0)
    session_tokens: Quantity = _q(0)


class Images(_Part):
    """Pictures added to each turn. `look` decides entropy: a screenshot compresses well, a photo does not."""

    per_turn: Quantity = _q(0)
    width: Quantity = _q(1280)
    height: Quantity = _q(720)
    format: Literal["png", "jpeg", "webp"] = "png"
    look: Literal["screenshot", "photo", "document"] = "screenshot"
    detail: Literal["auto", "low", "high"] = "auto"
    distinct: int = Field(16, ge=1, description="how many pictures there are; they are made before the run")


class Videos(_Part):
    per_turn: Quantity = _q(0)
    seconds: float = Field(4, gt=0)
    width: int = 640
    height: int = 360
    fps: float | None = None


class Scenario(_Part):
    """One kind of traffic.

    turns       requests of a session; each repeats the conversation so far and adds to it
    new_tokens  text added per turn;  output_tokens  asked as max_tokens, with the end of turn ignored if `fixed_output`
    gap_s       from the end of an answer to when the next turn is due
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
        return Scenario.model_validate(yaml.safe_load(path.read_text()))
    except (yaml.YAMLError, ValidationError) as e:
        raise ScenarioError(f"{path.name}: {e}") from None
