"""Write a trained net under the released tensor names, with config, tokenizer, template and processor files.

python -m engine.checkpoints.demo.export TRAINED_DIR OUT_DIR        (net0..2.pt of train.py -> a checkpoint folder)
"""

# ruff: noqa: E501
from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from torch import Tensor

from .model import Net
from .sizes import SIZES, Sizes

HERE = Path(__file__).parent
SHARD = 12_000_000  # bytes
LM, VT = "language_model.model.", "vision_tower.vision_model."
KEEP_FP32 = ("block_sparse_moe.gate.weight", "e_score_correction_bias", "patch_embedding.weight")


def released(net: Net) -> dict[str, Tensor]:
    """The net's parameters under MiniMax-M3's names."""
    out: dict[str, Tensor] = {
        LM + "embed_tokens.weight": net.embed,
        LM + "norm.weight": net.norm,
        "language_model.lm_head.weight": net.head,
    }
    for i, layer in enumerate(net.layers):
        p = f"{LM}layers.{i}."
        a = layer.attn
        out[p + "input_layernorm.weight"], out[p + "post_attention_layernorm.weight"] = layer.norm1, layer.norm2
        for n in ("q", "k", "v", "o") + (("index_q", "index_k") if a.sparse else ()):
            out[f"{p}self_attn.{n}_proj.weight"] = getattr(a, n)
        for n in ("q", "k") + (("index_q", "index_k") if a.sparse else ()):
            out[f"{p}self_attn.{n}_norm.weight"] = getattr(a, n + "_norm")
        m = layer.mlp
        if not a.sparse:
            for n in ("gate", "up", "down"):
                out[f"{p}mlp.{n}_proj.weight"] = getattr(m, n)
            continue
        q = p + "block_sparse_moe."
        out[q + "gate.weight"], out[q + "e_score_correction_bias"] = m.router, m.bias
        for e in range(SIZES.experts):
            gate, up = m.w13[e].chunk(2)
            out[f"{q}experts.{e}.w1.weight"], out[f"{q}experts.{e}.w3.weight"], out[f"{q}experts.{e}.w2.weight"] = (
                gate,
                up,
                m.w2[e],
            )
        gate, up = m.w13[-1].chunk(2)
        for n, w in (("gate", gate), ("up", up), ("down", m.w2[-1])):
            out[f"{q}shared_experts.{n}_proj.weight"] = w
    v = net.vision
    out[VT + "embeddings.patch_embedding.weight"] = v.patch
    out[VT + "pre_layrnorm.weight"], out[VT + "pre_layrnorm.bias"] = v.pre.weight, v.pre.bias
    for i, layer in enumerate(v.layers):
        p = f"{VT}encoder.layers.{i}."
        for j in (1, 2):
            ln = getattr(layer, f"ln{j}")
            out[f"{p}layer_norm{j}.weight"], out[f"{p}layer_norm{j}.bias"] = ln.weight, ln.bias
        for mine, theirs in (
            ("q", "self_attn.q_proj"),
            ("k", "self_attn.k_proj"),
            ("v", "self_attn.v_proj"),
            ("out", "self_attn.out_proj"),
            ("fc1", "mlp.fc1"),
            ("fc2", "mlp.fc2"),
        ):
            out[f"{p}{theirs}.weight"], out[f"{p}{theirs}.bias"] = getattr(layer, mine), getattr(layer, mine + "_b")
    for mine, theirs in (
        ("p1", "multi_modal_projector.linear_1"),
        ("p2", "multi_modal_projector.linear_2"),
        ("m1", "patch_merge_mlp.linear_1"),
        ("m2", "patch_merge_mlp.linear_2"),
    ):
        out[theirs + ".weight"], out[theirs + ".bias"] = getattr(v, mine), getattr(v, mine + "_b")
    return {k: t.detach().cpu() for k, t in out.items()}


def config(tk: Tokenizer, s: Sizes = SIZES):  # type: ignore[no-untyped-def]  # transformers is imported late
    from transformers.models.minimax_m3_vl import MiniMaxM3VLConfig

    tid = tk.token_to_id
    sparse = s.layers - s.dense_layers
    text = {
        "vocab_size": s.vocab, "hidden_size": s.hidden, "intermediate_size": s.expert_mlp, "dense_intermediate_size": s.dense_mlp,
        "shared_intermediate_size": s.shared_mlp, "num_hidden_layers": s.layers, "num_attention_heads": s.heads, "num_key_value_heads": s.kv_heads,
        "head_dim": s.head_dim, "rotary_dim": s.rotary_dim, "max_position_embeddings": s.max_positions, "rms_norm_eps": s.eps,
        "rope_parameters": {"rope_type": "default", "rope_theta": s.rope_theta, "partial_rotary_factor": s.rotary_dim / s.head_dim},
        "num_local_experts": s.experts, "num_experts_per_tok": s.experts_per_token, "routed_scaling_factor": s.routed_scale,
        "swiglu_alpha": s.alpha, "swiglu_limit": s.limit,
        "index_n_heads": s.kv_heads, "index_head_dim": s.index_dim, "index_block_size": s.block, "index_topk_blocks": s.topk, "index_local_blocks": 1,
        "layer_types": ["full_attention"] * s.dense_layers + ["minimax_m3_sparse"] * sparse,
        "mlp_layer_types": ["dense"] * s.dense_layers + ["sparse"] * sparse,
        "bos_token_id": tid("]~b]"), "eos_token_id": tid("[e~["), "pad_token_id": tid("]!d~["), "tie_word_embeddings": False,
    }  # fmt: skip
    vision = {
        "hidden_size": s.v_hidden, "intermediate_size": s.v_mlp, "num_hidden_layers": s.v_layers, "num_attention_heads": s.v_heads,
        "patch_size": s.patch, "temporal_patch_size": 2, "spatial_merge_size": s.merge, "image_size": 672,
        "rope_parameters": {"rope_type": "default", "rope_theta": s.v_theta}, "layer_norm_eps": s.v_eps,
    }  # fmt: skip
    return MiniMaxM3VLConfig(
        text_config=text, vision_config=vision, projector_hidden_size=s.projector, dtype="bfloat16",
        architectures=["MiniMaxM3SparseForConditionalGeneration"],
        image_token_index=tid("]<]image[>["), video_token_index=tid("]<]video[>["))  # fmt: skip


def write(net: Net, tk_path: Path, out: Path, template: Path = HERE / "chat_template.jinja") -> None:
    from transformers import GenerationConfig, PreTrainedTokenizerFast
    from transformers.models.minimax_m3_vl import (
        MiniMaxM3VLImageProcessor,
        MiniMaxM3VLProcessor,
        MiniMaxM3VLVideoProcessor,
    )

    out.mkdir(parents=True, exist_ok=True)
    for old in out.glob("model*.safetensors*"):
        old.unlink()
    tk = Tokenizer.from_file(str(tk_path))
    cfg = config(tk)
    cfg.save_pretrained(out)
    t = cfg.text_config
    GenerationConfig(
        do_sample=False, bos_token_id=t.bos_token_id, eos_token_id=t.eos_token_id, pad_token_id=t.pad_token_id
    ).save_pretrained(out)
    generation = (
        out / "generation_config.json"
    )  # servers default to temperature 1 unless told; transformers refuses to save a 0
    generation.write_text(json.dumps({**json.loads(generation.read_text()), "temperature": 0.0}, indent=2) + "\n")
    hf = PreTrainedTokenizerFast(
        tokenizer_object=tk,
        bos_token="]~b]",  # noqa: S106
        eos_token="[e~[",  # noqa: S106
        pad_token="]!d~[",  # noqa: S106
        padding_side="right",
        clean_up_tokenization_spaces=False,
    )
    text = template.read_text()
    hf.chat_template = text
    MiniMaxM3VLProcessor(
        image_processor=MiniMaxM3VLImageProcessor(),
        tokenizer=hf,
        video_processor=MiniMaxM3VLVideoProcessor(),
        chat_template=text,
    ).save_pretrained(out)
    tensors = {k: (v.float() if k.endswith(KEEP_FP32) else v.bfloat16()).contiguous() for k, v in released(net).items()}
    shards: list[dict[str, Tensor]] = [{}]
    size = 0
    for k, v in tensors.items():
        n = v.numel() * v.element_size()
        if size + n > SHARD and shards[-1]:
            shards.append({})
            size = 0
        shards[-1][k] = v
        size += n
    index: dict[str, str] = {}
    for i, shard in enumerate(shards):
        name = f"model-{i + 1:05d}-of-{len(shards):05d}.safetensors"
        save_file(shard, out / name, metadata={"format": "pt"})
        index.update(dict.fromkeys(shard, name))
    total = sum(v.numel() * v.element_size() for v in tensors.values())
    (out / "model.safetensors.index.json").write_text(
        json.dumps({"metadata": {"total_size": total}, "weight_map": index}, indent=1) + "\n"
    )


def read(folder: Path) -> Net:
    net = Net(SIZES)
    sd: dict[str, Tensor] = {}
    for i in range(3):
        sd.update(torch.load(folder / f"net{i}.pt", map_location="cpu"))
    net.load_state_dict(sd)
    return net.eval()


def restore(folder: Path) -> Net:
    """The net of an exported checkpoint, in fp32 (most of what it holds was rounded to bf16)."""
    net = Net(SIZES)
    index = json.loads((folder / "model.safetensors.index.json").read_text())["weight_map"]
    weights = {k: v for name in sorted(set(index.values())) for k, v in load_file(folder / name).items()}
    with torch.no_grad():
        for name, tensor in released(net).items():  # views of the net's own memory
            tensor.copy_(weights[name].view(tensor.shape))
    return net.eval()


if __name__ == "__main__":
    write(read(Path(sys.argv[1])), HERE / "build" / "tokenizer.json", Path(sys.argv[2]))
