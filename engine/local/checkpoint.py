"""From a folder or a hub name to a model in memory, with every tensor name accounted for."""

from __future__ import annotations

import json
import logging
import re
from pathlib import Path
from typing import Any

import torch
from transformers.models.minimax_m3_vl import MiniMaxM3SparseForConditionalGeneration

from engine.local.errors import CheckpointError

HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")
FILES = ["*.json", "*.jinja", "*.safetensors"]


class M3(MiniMaxM3SparseForConditionalGeneration):
    """The router stays in float32 whatever the rest is: the released files hold it so, and rounding flips experts."""

    _keep_in_fp32_modules_strict = {"mlp.gate.weight", "e_score_correction_bias"}  # noqa: RUF012 - not ours to choose


def locate(model: str | Path) -> Path:
    """The folder of a checkpoint; a hub name is downloaded (a progress bar per file)."""
    folder = Path(model)
    if folder.is_dir():
        if not (folder / "config.json").is_file():
            raise CheckpointError(f"{folder} has no config.json, so it is not a checkpoint")
        return folder
    name = str(model)
    if not HUB_NAME.fullmatch(name) or name.startswith("."):
        raise CheckpointError(f"{name} is neither a folder nor a hub name like org/model")
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(name, allow_patterns=FILES))
    except Exception as error:
        raise CheckpointError(f"{name} is not a folder, and the hub did not give it: {error}") from error


def pick_device(device: str) -> torch.device:
    """`auto`: the first CUDA device, else the CPU. Raises CheckpointError for one that is not there."""
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        found = torch.device(device)
    except RuntimeError as error:
        raise CheckpointError(f"device {device!r} is unknown: {error}") from None
    if found.type not in ("cpu", "cuda"):
        raise CheckpointError(f"device {device!r} is not supported; use cpu or cuda")
    if found.type == "cuda" and (found.index or 0) >= torch.cuda.device_count():
        raise CheckpointError(f"device {device!r} is not here: torch sees {torch.cuda.device_count()} CUDA devices")
    return found


def load(folder: Path, dtype: str, device: torch.device) -> M3:
    """The model, ready to run. Raises CheckpointError naming tensors that are missing, unexpected or of the wrong
    shape.

    Multi-token-prediction tensors (`mtp.`) are the exception: configurations mention them, no release ships them, and
    nothing here uses them."""
    try:
        kind = json.loads((folder / "config.json").read_bytes()).get("model_type")
    except (ValueError, AttributeError) as error:
        raise CheckpointError(f"{folder}/config.json is not a configuration: {error}") from None
    if kind != "minimax_m3_vl":
        raise CheckpointError(f"{folder} holds a {kind} model; this engine runs minimax_m3_vl")
    wanted: Any = {"float32": torch.float32, "bfloat16": torch.bfloat16}.get(dtype)
    if wanted is None:
        wanted = torch.float32 if device.type == "cpu" else "auto"
    # sampling is the gateway's and ours: transformers' opinion of generation_config.json would only alarm a user
    logging.getLogger("transformers.generation.configuration_utils").setLevel(logging.ERROR)
    try:
        model, info = M3.from_pretrained(
            folder,
            dtype=wanted,
            device_map={"": device} if device.type != "cpu" else None,
            ignore_mismatched_sizes=True,  # reported below, with the names
            output_loading_info=True,
        )
    except (OSError, RuntimeError) as error:
        raise CheckpointError(f"{folder} does not load: {error}") from error
    problems = [
        f"{what}: {', '.join(sorted(n if isinstance(n, str) else ' '.join(map(str, n)) for n in names))}"
        for what, names in (
            ("missing", info["missing_keys"]),
            ("unexpected", info["unexpected_keys"]),
            ("wrong shape", info.get("mismatched_keys", ())),
        )
        if names
    ]
    if problems:
        raise CheckpointError(f"tensors of {folder}: " + "; ".join(problems))
    return model.eval().requires_grad_(False)
