"""Checkpoint folders without weights for SGLang's `--load-format dummy`: M3's attention geometry with few layers and few
small experts, so that one GPU serves what eight would, one layer's attention at a time."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

REAL = {"num_attention_heads": 64, "num_key_value_heads": 4, "head_dim": 128, "rotary_dim": 64}
REAL_INDEX = {"sparse_index_dim": 128, "sparse_num_index_heads": 4, "sparse_block_size": 128, "sparse_topk_blocks": 16}
SMALL = {"num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 32, "rotary_dim": 16}
SMALL_INDEX = {"sparse_index_dim": 32, "sparse_num_index_heads": 2, "sparse_block_size": 16, "sparse_topk_blocks": 4}


def config(layers: int, hidden: int, *, small: bool, share: int = 1) -> dict[str, Any]:
    """config.json in the released checkpoint's words, text only. Layer 0 is dense, the others sparse, as in M3.
    `small`: heads and blocks of the tests' checkpoint, which a CPU can serve; else M3's own. `share`: the heads that one
    of so many GPUs holds under tensor parallelism, KV and index heads at least one."""
    sparse = [0] + [1] * (layers - 1)
    whole, whole_index = (SMALL, SMALL_INDEX) if small else (REAL, REAL_INDEX)
    heads = whole | {name: max(1, whole[name] // share) for name in ("num_attention_heads", "num_key_value_heads")}
    index = whole_index | {"sparse_num_index_heads": max(1, whole_index["sparse_num_index_heads"] // share)}
    width = 64 if small else 512
    return {
        "model_type": "minimax_m2",
        "architectures": ["MiniMaxM3SparseForCausalLM"],
        "vocab_size": 512 if small else 200064,
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        **heads,
        "intermediate_size": width,
        "dense_intermediate_size": 8 * width,
        "shared_intermediate_size": width,
        "hidden_act": "swigluoai",
        "swiglu_alpha": 1.702,
        "swiglu_limit": 7.0,
        "max_position_embeddings": 1048576,
        "rms_norm_eps": 1e-6,
        "rope_theta": 5000000.0,
        "num_experts_per_tok": 2 if small else 4,
        "num_local_experts": 8,
        "n_shared_experts": 1,
        "moe_layer_freq": sparse,
        "scoring_func": "sigmoid",
        "use_routing_bias": True,
        "routed_scaling_factor": 2.0,
        "use_qk_norm": True,
        "qk_norm_type": "per_head",
        "use_gemma_norm": True,
        "tie_word_embeddings": False,
        "num_mtp_modules": 0,
        "torch_dtype": "bfloat16",
        "dtype": "bfloat16",
        "bos_token_id": 0,
        "eos_token_id": 1,
        "pad_token_id": 2,
        "sparse_attention_config": {
            "use_sparse_attention": True,
            "sparse_attention_freq": sparse,
            **index,
            "sparse_init_block": 0,
            "sparse_local_block": 1,
            "sparse_score_type": "max",
            "sparse_disable_index_value": sparse,
        },
    }


def write(folder: Path, layers: int, hidden: int, *, small: bool, share: int = 1) -> dict[str, Any]:
    made = config(layers, hidden, small=small, share=share)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(made, indent=1))
    return made
