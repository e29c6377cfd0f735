"""The command line that starts SGLang for an M3 checkpoint: defaults per GPU, each with its reason, all overridable.

A default is left out when its flag, or one that contradicts it, is among the operator's own."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from engine.msa.config import MsaConfig


@dataclass(frozen=True)
class Gpus:
    count: int
    name: str = ""
    memory_gib: int = 0
    capability: str = ""

    @property
    def hopper(self) -> bool:
        return self.capability.startswith("9.")


@dataclass(frozen=True)
class Default:
    flag: str
    value: str | None
    reason: str
    replaced_by: tuple[str, ...] = ()


def visible_gpus() -> Gpus:
    """What nvidia-smi sees and CUDA_VISIBLE_DEVICES leaves; none without the tool."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return Gpus(0)
    query = [tool, "--query-gpu=index,uuid,name,memory.total,compute_cap", "--format=csv,noheader,nounits"]
    found = subprocess.run(query, capture_output=True, text=True, timeout=30, check=False)
    rows = [[cell.strip() for cell in line.split(", ")] for line in found.stdout.splitlines() if line.count(", ") == 4]
    left = rows if found.returncode == 0 else []
    if (words := os.environ.get("CUDA_VISIBLE_DEVICES")) is not None:
        left = _named(left, words)
    if not left:
        return Gpus(0)
    _, _, name, memory, capability = left[0]
    return Gpus(len(left), name, int(memory) // 1024, capability)


def _named(rows: list[list[str]], words: str) -> list[list[str]]:
    """The rows (index, uuid, ...) that CUDA_VISIBLE_DEVICES names. As in CUDA, the first word that names none ends the list."""
    out = []
    for word in (word.strip() for word in words.split(",")):
        row = next((r for r in rows if r[0] == word or (word.startswith("GPU-") and r[1].startswith(word))), None)
        if row is None:
            break
        out.append(row)
    return out


def tensor_parallel(gpus: int) -> int:
    """The largest of 8, 4, 2, 1 that the GPUs hold: M3 has 4 KV heads and 4 index heads, 64 query heads."""
    return next((n for n in (8, 4, 2) if gpus >= n), 1)


def block_size(model: Path) -> int:
    """The checkpoint's block of the sparse attention; M3's when it does not say."""
    try:
        text = json.loads((model / "config.json").read_text())
    except (OSError, ValueError):
        return MsaConfig().block_size
    text = text.get("text_config", text)
    sparse = text.get("sparse_attention_config") or {}
    return int(sparse.get("sparse_block_size", text.get("index_block_size", MsaConfig().block_size)))


def defaults(model: Path, gpus: Gpus) -> list[Default]:
    page = block_size(model)
    made = [
        Default("--page-size", str(page), "one page holds one block of the sparse attention"),
        Default("--incremental-streaming-output", None, "each step costs what is new, not what was said"),
        Default("--enable-metrics", None, "/metrics for the gateway and Prometheus"),
        Default("--enable-priority-scheduling", None, "the gateway sends priorities"),
        Default("--reasoning-parser", "minimax-m3", "SGLang's own chat route; ours needs none"),
        Default("--tool-call-parser", "minimax-m3", "SGLang's own chat route; ours needs none"),
        Default("--constrained-json-disable-any-whitespace", None, "a model may fill an answer with white space"),
        Default("--load-snapshot-publish-interval", "1", "/v1/loads, by which the gateway chooses, is never old"),
        Default("--chunked-prefill-size", "8192", "bounds how long a prefill holds up running streams"),
    ]
    if gpus.count == 0:
        return made
    made.append(
        Default(
            "--tp-size",
            str(tensor_parallel(gpus.count)),
            f"{gpus.count} GPUs",
            ("--tp", "--tensor-parallel-size", "--dp-size", "--pp-size"),
        )
    )
    if gpus.hopper:
        made.append(Default("--attention-backend", "fa3", "dense layers on Hopper"))
    if gpus.memory_gib >= 100:
        made.append(Default("--mem-fraction-static", "0.9", "the rest is for activations, graphs and the vision tower"))
        made.append(Default("--cuda-graph-max-bs-decode", "128", "decode in graphs for the batches this memory holds"))
    return made


def build(
    model: Path, host: str, port: int, token: str | None, context_length: int | None, more: Sequence[str], gpus: Gpus
) -> tuple[list[str], list[Default]]:
    """The command, and the defaults that are in it. `more` comes last and wins."""
    given = {word.split("=", 1)[0] for word in more if word.startswith("--")}
    used = [d for d in defaults(model, gpus) if not given & {d.flag, *d.replaced_by}]
    command = [sys.executable, "-m", "sglang.launch_server", "--model-path", str(model)]
    command += ["--host", host, "--port", str(port)]
    if token is not None:
        command += ["--api-key", token]
    if context_length is not None:
        command += ["--context-length", str(context_length)]
    for one in used:
        command += [one.flag] if one.value is None else [one.flag, one.value]
    return [*command, *more], used


def shown(command: Sequence[str]) -> str:
    """As an operator would type it; the token is not printed."""
    words = list(command)
    if "--api-key" in words:
        words[words.index("--api-key") + 1] = "***"
    return shlex.join(words)
