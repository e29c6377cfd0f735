"""The sizing table of docs/deploy.md is arithmetic over M3's shapes, and the values files keep within it."""

from __future__ import annotations

import re

import yaml

from tests.deploy.metric_names import CHART, ROOT

PARAMETERS = 427.04e9
LAYERS, SPARSE_LAYERS, KV_HEADS, HEAD, INDEX_HEAD, BF16 = 60, 57, 4, 128, 128, 2
OTHER = 4e9  # activations, CUDA graphs, NCCL
TEXT = (ROOT / "docs" / "deploy.md").read_text(encoding="utf-8")

ENGINES = {  # row of the table -> values file, bytes of one GPU
    "8 x H200 141 GB, TP 8, 0.92": ("values-h200x8.yaml", 141e9),
    "2 x 8 x H100 80 GB, TP 8 x PP 2, 0.88": ("values-h100x8.yaml", 80e9),
    "8 x B200 180 GB, TP 8, 0.90": ("values-b200x8.yaml", 180e9),
}


def per_token(tensor: int, pipeline: int) -> float:
    heads = max(1, KV_HEADS / tensor)  # more GPUs than heads: each head is held more than once
    return (LAYERS * 2 * heads * HEAD * BF16 + SPARSE_LAYERS * INDEX_HEAD * BF16) / pipeline


def test_bytes_per_token() -> None:
    assert per_token(1, 1) == 137_472 and "137,472" in TEXT.replace("\n", " ")
    assert per_token(8, 1) == 45_312 and "45,312" in TEXT


def test_the_table_is_what_the_arithmetic_gives() -> None:
    for row, (file, memory) in ENGINES.items():
        engine = yaml.safe_load((CHART / file).read_text(encoding="utf-8"))["engine"]
        gpus = engine["gpus"] * engine.get("nodes", 1)
        weights = PARAMETERS * BF16 / gpus
        left = memory * engine["flags"]["mem-fraction-static"] - weights - OTHER
        tokens = left / per_token(engine["tensorParallel"], engine.get("pipelineParallel", 1))
        cells = next(line for line in TEXT.splitlines() if line.startswith(f"| {row} |")).split("|")[2:6]
        told = [float(re.sub(r"[^\d.]", "", c)) for c in cells]
        assert abs(told[0] - weights / 1e9) < 0.06
        assert abs(told[1] - left / 1e9) < 0.06
        assert abs(told[2] - tokens) < 0.01 * tokens
        assert told[3] == tokens // 60_000
        context = yaml.safe_load((CHART / file).read_text(encoding="utf-8"))["model"]["contextLength"]
        assert context < tokens, "a request as long as the context must fit into the cache"


def test_what_does_not_fit_does_not_fit() -> None:
    assert PARAMETERS * BF16 > 8 * 80e9
