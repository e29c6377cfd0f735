"""The engine of `catalejo bench million`: a tiny model with real block geometry whose indexer finds a needle, served by the
embedded engine while it writes down what the last token chose.

  python -m engine.bench.needle make FOLDER --tokens N      checkpoint and prompts: FOLDER/model, first.npy, other.npy
  python -m engine.bench.needle serve FOLDER --port P       the engine; its choices go to FOLDER/choices.jsonl

The model is `tiny-128` (block 128, top-k 16, head dim 128) with random weights, but its index projections are one matrix
whose rotated channels are zero: a score is then the likeness of two tokens' states. One token's embedding is so large
that its state is hardly anything else. A block of that token far back is the needle, the prompt's last token is that
token, and nothing else in the prompt is. So a right indexer must choose the needle's block, wherever it is; the chance of
choosing it blindly is 16 in the number of blocks."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
import torch

BLOCK, TOKEN, LOUD = 128, 77, 64.0
MODEL, FIRST, OTHER, CHOICES = "model", "first.npy", "other.npy", "choices.jsonl"
ROTATED = 64


def make_checkpoint(folder: Path, positions: int) -> None:
    import safetensors.torch as files

    from engine.checkpoints import make_tiny

    make_tiny.make(folder, "tiny-128")
    path = folder / "model.safetensors"
    tensors = files.load_file(path)
    for name in [n for n in tensors if n.endswith("index_k_proj.weight")]:
        tensors[name][:ROTATED] = 0.0
        tensors[name.replace("index_k", "index_q")] = tensors[name].clone()
        for norm in ("index_k_norm", "index_q_norm"):
            tensors[name.replace("index_k_proj", norm)] = torch.zeros(BLOCK)  # read as 1 + w
    (embedding,) = (n for n in tensors if n.endswith("embed_tokens.weight"))
    tensors[embedding][TOKEN] *= LOUD
    files.save_file(tensors, path, {"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    config["text_config"]["max_position_embeddings"] = positions
    (folder / "config.json").write_text(json.dumps(config))


def needle_block(tokens: int) -> int:
    """A third of the way in: behind it lie far more blocks than are chosen."""
    return tokens // BLOCK // 3


def prompt(tokens: int, seed: int) -> np.ndarray:
    """uint32 [tokens]: random ids with one block of TOKEN, and TOKEN last."""
    ids = np.random.default_rng(seed).integers(100, 480, tokens, dtype=np.uint32)
    at = needle_block(tokens) * BLOCK
    ids[at : at + BLOCK] = TOKEN
    ids[-1] = TOKEN
    return ids


def make(folder: Path, tokens: int) -> None:
    (folder / MODEL).mkdir(parents=True, exist_ok=True)
    make_checkpoint(folder / MODEL, tokens + 4096)
    for seed, name in enumerate((FIRST, OTHER)):
        np.save(folder / name, prompt(tokens, seed))


def watch(log: Path) -> None:
    """Appends {position, blocks} of the last row of each choice that the engine's torch path makes for one sequence."""
    from engine.local import attention

    real = attention.choose_blocks

    def watched(scores: torch.Tensor, positions: torch.Tensor, config: object) -> torch.Tensor:
        blocks = real(scores, positions, config)  # type: ignore[arg-type]
        line = {"position": int(positions[-1]), "blocks": sorted(set(blocks[-1].flatten().tolist()) - {-1})}
        with log.open("a") as out:
            out.write(json.dumps(line) + "\n")
        return blocks

    attention.choose_blocks = watched


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("what", choices=("make", "serve"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--tokens", type=int, default=1 << 20)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--chunk-tokens", type=int, default=512)
    args = parser.parse_args()
    if args.what == "make":
        make(args.folder, args.tokens)
        return 0
    from engine.local.cli import run

    watch(args.folder / CHOICES)
    torch.set_float32_matmul_precision("high")  # only the choice is looked at, and it is no near thing
    pages = 2 * -(-args.tokens // BLOCK) + 64
    return run(
        model=args.folder / MODEL, port=args.port, chunk_tokens=args.chunk_tokens, kv_pages=pages, msa_kernel="torch",
        log_level="warning",
    )  # fmt: skip


if __name__ == "__main__":
    raise SystemExit(main())
