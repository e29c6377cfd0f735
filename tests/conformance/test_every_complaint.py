"""Each of the 29 public complaints has a test that bears its number."""

from __future__ import annotations

import re
from pathlib import Path

COMPLAINTS = 29


def test_every_complaint_has_a_test() -> None:
    text = "".join(p.read_text(encoding="utf-8") for p in sorted(Path(__file__).parent.glob("test_complaints_*.py")))
    numbers = {int(n) for n in re.findall(r"^async def test_(\d\d)_", text, re.M)}
    assert numbers == set(range(1, COMPLAINTS + 1))
