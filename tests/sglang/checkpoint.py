"""Writes a folder that SGLang can serve from one of our small checkpoints: `python -m tests.sglang.checkpoint SRC OUT`.

Weights, tokenizer and processor files are linked. config.json is said again in the words of the released checkpoint
(`sparse_attention_config`, `moe_layer_freq`, ...), which transformers translates and SGLang reads as they are."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

CLIP = {"position_embedding_type": "rope", "rope_mode": "3d", "vision_segment_max_frames": 4}
PIXELS = ("image_mean", "image_std", "patch_size", "temporal_patch_size", "merge_size", "image_processor_type")


def released_words(config: dict[str, Any]) -> dict[str, Any]:
    """The released checkpoint's config.json for a config that transformers wrote."""
    text = dict(config["text_config"])
    vision = dict(config["vision_config"])
    if "sparse_attention_config" in text:
        return config
    sparse = [int(kind != "full_attention") for kind in text.pop("layer_types")]
    experts = [int(kind == "sparse") for kind in text.pop("mlp_layer_types")]
    rope = text.pop("rope_parameters")
    text.update(
        model_type="minimax_m2",
        architectures=["MiniMaxM3SparseForCausalLM"],
        hidden_act="swigluoai",
        moe_layer_freq=experts,
        n_shared_experts=1,
        num_mtp_modules=0,
        scoring_func="sigmoid",
        use_routing_bias=True,
        use_qk_norm=True,
        qk_norm_type="per_head",
        use_gemma_norm=True,
        rope_theta=rope["rope_theta"],
        rotary_dim=int(text["head_dim"] * rope["partial_rotary_factor"]),
        partial_rotary_factor=rope["partial_rotary_factor"],
        dtype=config["dtype"],
        sparse_attention_config={
            "use_sparse_attention": True,
            "sparse_attention_freq": sparse,
            "sparse_disable_index_value": sparse,
            "sparse_index_dim": text.pop("index_head_dim"),
            "sparse_num_index_heads": text.pop("index_n_heads"),
            "sparse_block_size": text.pop("index_block_size"),
            "sparse_topk_blocks": text.pop("index_topk_blocks"),
            "sparse_local_block": text.pop("index_local_blocks"),
            "sparse_init_block": 0,
            "sparse_score_type": "max",
        },
    )
    merge = {"spatial_merge_size": vision["spatial_merge_size"], "temporal_patch_size": vision["temporal_patch_size"]}
    vision.update(CLIP, model_type="clip_vision_model", rope_theta=vision.pop("rope_parameters")["rope_theta"])
    vision["img_token_compression_config"] = {"image_token_compression_method": "patch_merge", **merge}
    return {**config, "text_config": text, "vision_config": vision, "image_seq_length": 576}


def write(source: Path, out: Path) -> None:
    out.mkdir(parents=True, exist_ok=True)
    for file in source.iterdir():
        if file.is_file() and file.name != "config.json":
            link = out / file.name
            link.unlink(missing_ok=True)
            link.symlink_to(file.resolve())
    if not (source / "preprocessor_config.json").exists():
        written = json.loads((source / "processor_config.json").read_text())["image_processor"]
        (out / "preprocessor_config.json").write_text(
            json.dumps({k: written[k] for k in PIXELS} | {"size": [672, 672]})
        )
    config = json.loads((source / "config.json").read_text())
    (out / "config.json").write_text(json.dumps(released_words(config), indent=1))


if __name__ == "__main__":
    write(Path(sys.argv[1]), Path(sys.argv[2]))
