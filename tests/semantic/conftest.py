"""The real stack with the demo checkpoint: HTTP in, text out. The questions here have right answers."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from tests.e2e.conftest import ROOT, Stack, free_port, start, stop

DEMO = ROOT / "engine/checkpoints/demo/model"
CLIPS = ROOT / "tests/fixtures/demo"
Part = dict[str, Any]


class Model:
    """Asks one question and returns the answer. Greedy, thinking off unless a test says otherwise."""

    def __init__(self, stack: Stack) -> None:
        self.stack = stack
        self.url = stack.url

    def reply(self, messages: list[dict[str, Any]], **fields: Any) -> dict[str, Any]:
        body = {"model": "demo", "messages": messages, "temperature": 0, "max_tokens": 160, **fields}
        status, answer = self.stack.call("/v1/chat/completions", body, timeout=1500)
        assert status == 200, answer
        return answer  # type: ignore[no-any-return]

    def ask(self, *parts: str | Part, thinking: str = "disabled", **fields: Any) -> str:
        content = [{"type": "text", "text": p} if isinstance(p, str) else p for p in parts]
        answer = self.reply([{"role": "user", "content": content}], thinking={"type": thinking}, **fields)
        return answer["choices"][0]["message"]["content"] or ""


@contextmanager
def serve(model: Path, log: Path) -> Iterator[Model]:
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    process = start(["up", "--model", str(model), "--port", str(port)], log, f"{url}/ready")
    try:
        yield Model(Stack(url, process, log))
    finally:
        if process.poll() is None:
            stop(process)


@pytest.fixture(scope="session")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Model]:
    with serve(DEMO, tmp_path_factory.mktemp("demo") / "log") as model:
        yield model


@pytest.fixture(scope="session")
def variant(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Any]:
    """variant(index_topk_blocks=1) serves the same weights with another attention setting."""

    def make(**text: Any) -> Any:
        folder = tmp_path_factory.mktemp("variant") / "demo"
        folder.mkdir()
        for f in DEMO.iterdir():
            (folder / f.name).symlink_to(f)
        config = json.loads((DEMO / "config.json").read_text())
        assert text.keys() <= config["text_config"].keys()
        config["text_config"].update(text)
        (folder / "config.json").unlink()
        (folder / "config.json").write_text(json.dumps(config))
        return serve(folder, folder.parent / "log")

    return make


def image(picture: Image.Image, kind: str = "PNG", detail: str | None = None, **save: Any) -> Part:
    data = io.BytesIO()
    picture.save(data, kind, **save)
    return media("image_url", f"image/{kind.lower()}", data.getvalue(), **({"detail": detail} if detail else {}))


def video(name: str) -> Part:
    return media("video_url", "video/mp4", (CLIPS / f"{name}.mp4").read_bytes())


def media(part: str, kind: str, data: bytes, **fields: Any) -> Part:
    return {"type": part, part: {"url": f"data:{kind};base64,{base64.b64encode(data).decode()}", **fields}}
