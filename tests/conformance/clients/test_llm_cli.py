"""The `llm` command: a configured OpenAI-compatible model, streamed, whole, and with a picture."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conformance.clients.test_openai_media import png
from tests.conformance.stack import Stack, says


@pytest.fixture
def home(stack: Stack, tmp_path: Path) -> Path:
    (tmp_path / "extra-openai-models.yaml").write_text(
        f"- model_id: catalejo\n  model_name: {stack.model}\n  api_base: {stack.url}/v1\n"
        "  vision: true\n  api_key_name: catalejo\n"
    )
    return tmp_path


def llm(stack: Stack, home: Path, *arguments: str) -> str:
    environment = {**os.environ, "LLM_USER_PATH": str(home)}
    command = [str(Path(sys.executable).with_name("llm")), "-m", "catalejo", "--key", stack.key, "--no-log", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=110, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize("flags", [[], ["--no-stream"]])
def test_prompt(stack: Stack, home: Path, flags: list[str]) -> None:
    stack.script(says("Hello back."))
    assert llm(stack, home, *flags, "-s", "Be brief.", "Hello") == "Hello back."
    [seen] = stack.requests()
    assert "Be brief." in seen["text"]


def test_attachment(stack: Stack, home: Path) -> None:
    stack.script(says("A picture."))
    picture = home / "picture.png"
    picture.write_bytes(png(80, 60, 5))
    assert llm(stack, home, "What is this?", "-a", str(picture)) == "A picture."
    [seen] = stack.requests()
    assert len(seen["items"]) == 1
