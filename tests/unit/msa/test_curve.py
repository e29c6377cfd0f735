"""The FLOP table and the curves made of measurements."""

import json
import xml.etree.ElementTree as ET

from engine.bench.curve import flops, main, measured


def test_ratios_are_the_papers():
    ratios = [dense / sparse for dense, sparse in (flops(n << 10) for n in (8, 64, 128, 1024))]
    assert [round(ratio, 2 if ratio < 2 else 1) for ratio in ratios] == [1.88, 10.7, 16.0, 28.4]


def test_speed_ups_come_from_the_same_context_only(tmp_path, capsys):
    decode = {
        "rows": [{"requests": 1, "tokens": n, "fp8": False, "step": 10.0} for n in (1 << 17, 1 << 20)],
        "dense": [
            {"requests": 1, "tokens": 1 << 17, "flash": 90.0, "cudnn": 80.0},
            {"requests": 8, "tokens": 1 << 20, "flash": 1.0},
        ],
    }
    prefill = {"rows": [{"new": 8192, "length": 1 << 17, "best_us": 4.0, "dense": {"flash": 40.0}}]}
    assert measured([decode, prefill]) == {"prefill, last 8192": [(1 << 17, 10.0)], "decode, batch 1": [(1 << 17, 8.0)]}
    plan = {"items": {"a": {"figures": decode}, "b": {"figures": None}, "c": {"status": "skipped"}}}
    (tmp_path / "plan.json").write_text(json.dumps(plan))
    assert main([str(tmp_path / "plan.json"), "--svg", str(tmp_path / "curve.svg")]) == 0
    assert "decode, batch 1: 131072 8.00x" in capsys.readouterr().out
    picture = ET.parse(tmp_path / "curve.svg").getroot()
    assert len(picture.findall("{http://www.w3.org/2000/svg}polyline")) == 2
