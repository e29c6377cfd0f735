"""docs/media.md names only metrics, settings and error codes that exist."""

from __future__ import annotations

import re
from pathlib import Path

from gateway.errors import ERRORS
from gateway.media.metrics import MediaMetrics
from gateway.media.settings import MediaSettings

PAGE = (Path(__file__).parents[3] / "docs" / "media.md").read_text()


def test_error_codes_and_their_statuses() -> None:
    rows = re.findall(r"^\| (\d{3}) ((?:`[a-z_]+`(?:, )?)+) \|", PAGE, re.MULTILINE)
    found = {code: int(status) for status, codes in rows for code in re.findall(r"`([a-z_]+)`", codes)}
    assert len(found) >= 12
    assert found == {code: ERRORS[code][0] for code in found}


def test_metrics_and_settings_exist() -> None:
    metrics = MediaMetrics()
    known = {sample for family in metrics.registry.collect() for sample in (family.name, family.name + "_total")}
    for name in re.findall(r"`([a-z_]+)(?:_total)?(?:\{[a-z]+\})?`", PAGE.partition("Metrics begin with")[2]):
        assert name == "catalejo_media_" or f"catalejo_media_{name}" in known, name
    for path in re.findall(r"`media\.([a-z_.]+)`", PAGE):
        value: object = MediaSettings()
        for step in path.split("."):
            assert hasattr(value, step), path
            value = getattr(value, step)
