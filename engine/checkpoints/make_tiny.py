"""Makes small random checkpoints of M3's shape: `python -m engine.checkpoints.make_tiny SIZE OUT [--seed N]`.

tiny      every mechanism, 131,072 positions, 1.5 M parameters; shipped in `engine/checkpoints/tiny`
tiny-128  the real block geometry (block 128, top-k 16, head dim 128) for kernel tests; made on demand, never shipped

Kept in all: a dense first layer, MoE with sigmoid routing, a bias that only steers the choice, a shared expert,
per-head (1 + w) norms, half-rotary RoPE, one index head per KV head, the 3-axis-RoPE vision tower, project-then-merge.
Save with transformers 5.24: 5.19 writes other tensor names (and says nothing).
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import torch
import transformers
from packaging.version import Version
from transformers import PreTrainedTokenizerFast
from transformers.models.minimax_m3_vl import (
    MiniMaxM3SparseForConditionalGeneration,
    MiniMaxM3VLConfig,
    MiniMaxM3VLImageProcessor,
    MiniMaxM3VLProcessor,
    MiniMaxM3VLVideoProcessor,
)

from engine.checkpoints.tiny_tokenizer import TEMPLATE_FILE, make_tokenizer

OLDEST_TRANSFORMERS = Version("5.24.0")
ROPE = {"rope_type": "default", "rope_theta": 5_000_000.0, "partial_rotary_factor": 0.5}

TINY: dict[str, Any] = {
    "vocab_size": 512,
    "hidden_size": 128,
    "intermediate_size": 64,
    "dense_intermediate_size": 192,
    "shared_intermediate_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "rotary_dim": 16,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
    "index_n_heads": 2,
    "index_head_dim": 32,
    "index_block_size": 16,
    "index_topk_blocks": 4,
    "max_position_embeddings": 131_072,
}
TINY_128: dict[str, Any] = TINY | {
    "num_hidden_layers": 3,
    "num_attention_heads": 16,
    "num_key_value_heads": 1,
    "head_dim": 128,
    "rotary_dim": 64,
    "num_local_experts": 4,
    "index_n_heads": 1,
    "index_head_dim": 128,
    "index_block_size": 128,
    "index_topk_blocks": 16,
}
SIZES = {
    "tiny": TINY,
    "tiny-128": TINY_128,
    "tiny-128-64x4": TINY_128 | {"num_attention_heads": 64, "num_key_value_heads": 4, "index_n_heads": 4},
}
_PIXELS: dict[str, Any] = {
    "image_mean": [0.48145466, 0.4578275, 0.40821073],
    "image_std": [0.26862954, 0.26130258, 0.27577711],
    "patch_size": 14,
    "temporal_patch_size": 2,
    "merge_size": 2,
    "size": [672, 672],
}
PREPROCESSOR_FILES = {
    "preprocessor_config.json": _PIXELS | {"image_processor_type": "MiniMaxM3VLImageProcessor"},
    "video_preprocessor_config.json": _PIXELS | {"video_processor_type": "MiniMaxM3VLVideoProcessor"},
}
"""As a released checkpoint has them; SGLang reads these, transformers prefers processor_config.json."""
VISION: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "patch_size": 14,
    "temporal_patch_size": 2,
    "spatial_merge_size": 2,
    "image_size": 112,
}


def make_config(tokenizer: PreTrainedTokenizerFast, size: str = "tiny") -> MiniMaxM3VLConfig:
    ids = tokenizer.convert_tokens_to_ids
    text = SIZES[size]
    layers = text["num_hidden_layers"]
    return MiniMaxM3VLConfig(
        text_config=text
        | {
            "rms_norm_eps": 1e-6,
            "rope_parameters": dict(ROPE),
            "routed_scaling_factor": 2.0,
            "swiglu_alpha": 1.702,
            "swiglu_limit": 7.0,
            "index_local_blocks": 1,
            "layer_types": ["full_attention"] + ["minimax_m3_sparse"] * (layers - 1),
            "mlp_layer_types": ["dense"] + ["sparse"] * (layers - 1),
            "bos_token_id": ids("]~b]"),
            "eos_token_id": ids("[e~["),
            "pad_token_id": ids("]!d~["),
            "tie_word_embeddings": False,
        },
        vision_config=dict(VISION),
        projector_hidden_size=128,
        image_token_index=ids("]<]image[>["),
        video_token_index=ids("]<]video[>["),
    )


def draw_weights(model: torch.nn.Module, seed: int) -> None:
    """Wide weights. With the usual narrow ones greedy output is one constant token and all norm weights are exactly 0,
    which hides bugs (a missing + 1, a wrong block, an ignored expert bias). The golden files depend on the order of the
    draws."""
    generator = torch.Generator().manual_seed(seed)

    def normal(shape: torch.Size) -> torch.Tensor:
        return torch.randn(shape, generator=generator)

    with torch.no_grad():
        for name, p in model.named_parameters():
            if name.endswith("norm.weight") or "layernorm.weight" in name:
                p.copy_(0.3 * normal(p.shape))
            elif "layer_norm" in name or "pre_layrnorm" in name:
                p.copy_((1.0 if name.endswith("weight") else 0.0) + 0.1 * normal(p.shape))
            elif "embed_tokens" in name:
                p.copy_(normal(p.shape))
            elif p.ndim >= 2:
                fan_in = p.shape[-1] if "experts" in name and p.ndim == 3 else p[0].numel()
                p.copy_(normal(p.shape) * (1.4 / fan_in**0.5))
            else:
                p.copy_(0.1 * normal(p.shape))
        for name, buffer in model.named_buffers():
            if name.endswith("e_score_correction_bias"):
                buffer.copy_(0.2 * normal(buffer.shape))


def make(out: str | Path, size: str = "tiny", seed: int = 0) -> MiniMaxM3SparseForConditionalGeneration:
    """Writes the checkpoint folder and returns the model. The same arguments give the same bytes."""
    if Version(transformers.__version__) < OLDEST_TRANSFORMERS:
        raise RuntimeError(
            f"transformers {transformers.__version__} saves wrong tensor names; use {OLDEST_TRANSFORMERS}"
        )
    tokenizer = make_tokenizer(SIZES[size]["vocab_size"])
    config = make_config(tokenizer, size)
    model = MiniMaxM3SparseForConditionalGeneration(config).eval()
    draw_weights(model, seed + 1)
    model.generation_config.do_sample = False
    model.generation_config.eos_token_id = config.text_config.eos_token_id
    model.generation_config.pad_token_id = config.text_config.pad_token_id
    model.save_pretrained(out)
    MiniMaxM3VLProcessor(
        image_processor=MiniMaxM3VLImageProcessor(),
        tokenizer=tokenizer,
        video_processor=MiniMaxM3VLVideoProcessor(),
        chat_template=TEMPLATE_FILE.read_text(),
    ).save_pretrained(out)
    for name, content in PREPROCESSOR_FILES.items():
        (Path(out) / name).write_text(json.dumps(content, indent=2) + "\n")
    (Path(out) / "model.safetensors").chmod(0o644)
    return model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("size", choices=sorted(SIZES))
    parser.add_argument("out", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    make(args.out, args.size, args.seed)


if __name__ == "__main__":
    main()
