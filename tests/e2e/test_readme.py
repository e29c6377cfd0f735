"""The README's first screen works as pasted: the curl line gives a right answer about the picture it sends."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

from tests.e2e.conftest import ROOT, free_port, start, stop


def test_the_readmes_curl_gets_a_right_answer(tmp_path: Path) -> None:
    blocks = re.findall(r"```sh\n(.*?)```", (ROOT / "README.md").read_text(), flags=re.DOTALL)
    [line] = [b.strip() for b in blocks if b.startswith("curl")]
    assert "http://127.0.0.1:8000/" in line
    port = free_port()
    process = start(["up", "--port", str(port)], tmp_path / "log", f"http://127.0.0.1:{port}/ready")
    try:
        command = line.replace("127.0.0.1:8000", f"127.0.0.1:{port}")
        done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=120, check=True)
        answer: dict[str, Any] = json.loads(done.stdout)
        said = answer["choices"][0]["message"]["content"].lower()
        assert "red circle" in said
        assert "blue square" in said
        assert said.index("red circle") < said.index("blue square")
    finally:
        stop(process)


def test_the_readmes_two_commands_are_targets_of_the_makefile() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for target in ("serve", "test"):
        assert f"make {target}" in (ROOT / "README.md").read_text()
        assert re.search(rf"^{target}: setup", makefile, flags=re.MULTILINE)
