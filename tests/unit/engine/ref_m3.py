"""An independent plain-torch forward of an M3 checkpoint, written from the specification without transformers' code.

Reads the released tensor names. Dense and slow on purpose: it is what faster code is held against."""

import json
import math
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import load_file

NEG = float("-inf")


def norm(x, w, eps):
    """(1 + w) RMS norm, float32 inside."""
    y = x.float()
    y = y * torch.rsqrt(y.square().mean(-1, keepdim=True) + eps)
    return (y * (1 + w.float())).to(x.dtype)


def rope(x, positions, theta, rotated):
    """x [..., T, D]: the first `rotated` channels turn, in pairs (j, j + rotated / 2)."""
    inverse = theta ** (-torch.arange(0, rotated, 2, dtype=torch.float32) / rotated)
    angle = positions.float()[:, None] * inverse
    cos, sin = angle.cos(), angle.sin()
    a, b, rest = x[..., : rotated // 2], x[..., rotated // 2 : rotated], x[..., rotated:]
    return torch.cat([a * cos - b * sin, b * cos + a * sin, rest], -1)


def gated(gate, up, alpha, limit):
    gate = gate.clamp(max=limit)
    return (up.clamp(-limit, limit) + 1) * gate * torch.sigmoid(alpha * gate)


class Reference:
    def __init__(self, folder: Path) -> None:
        self.config = json.loads((folder / "config.json").read_text())
        self.t = self.config["text_config"]
        self.v = self.config["vision_config"]
        self.w = load_file(folder / "model.safetensors")
        self.kept = {}
        """Per sparse layer: bool [groups, T, blocks]."""

    def _mlp(self, prefix, x):
        t = self.t
        gate, up = (x @ self.w[f"{prefix}{n}_proj.weight"].T for n in ("gate", "up"))
        return gated(gate, up, t["swiglu_alpha"], t["swiglu_limit"]) @ self.w[f"{prefix}down_proj.weight"].T

    def _moe(self, prefix, x):
        w, t = self.w, self.t
        scores = torch.sigmoid((x @ w[prefix + "gate.weight"].T).float())
        ids = (scores + w[prefix + "e_score_correction_bias"]).topk(t["num_experts_per_tok"], -1).indices
        weight = scores.gather(-1, ids)
        weight = weight / weight.sum(-1, keepdim=True)
        out = torch.zeros_like(x)
        for n in range(x.shape[0]):
            for j, e in enumerate(ids[n].tolist()):
                name = f"{prefix}experts.{e}."
                gate, up = (w[f"{name}{part}.weight"] @ x[n] for part in ("w1", "w3"))
                h = gated(gate, up, t["swiglu_alpha"], t["swiglu_limit"])
                out[n] += weight[n, j] * (w[name + "w2.weight"] @ h)
        return out * t["routed_scaling_factor"] + self._mlp(prefix + "shared_experts.", x)

    def _select(self, q, k):
        """q [H, T, D], k [T, D] -> bool [H, T, blocks]."""
        t = self.t
        size, topk, local = t["index_block_size"], t["index_topk_blocks"], t["index_local_blocks"]
        heads, n, _ = q.shape
        blocks = -(-n // size)
        scores = q.float() @ k.float().T
        scores = scores.masked_fill(torch.ones(n, n, dtype=torch.bool).triu(1), NEG)
        scores = F.pad(scores, (0, blocks * size - n), value=NEG).view(heads, n, blocks, size).amax(-1)
        own = torch.arange(n) // size
        for d in range(local):
            scores.scatter_(-1, (own - d).clamp(min=0)[None, :, None].expand(heads, n, 1), float("inf"))
        value, index = scores.topk(min(topk, blocks), -1)
        keep = torch.zeros(heads, n, blocks + 1, dtype=torch.bool)
        keep.scatter_(-1, index.masked_fill(value == NEG, blocks), True)
        return keep[..., :blocks]

    def _attention(self, i, x):
        w, t = self.w, self.t
        prefix = f"language_model.model.layers.{i}.self_attn."
        n, dim, hq, hk = x.shape[0], t["head_dim"], t["num_attention_heads"], t["num_key_value_heads"]
        turn = (torch.arange(n), t["rope_parameters"]["rope_theta"], t["rotary_dim"])
        eps = t["rms_norm_eps"]

        def project(name, heads, d):
            return (x @ w[f"{prefix}{name}_proj.weight"].T).view(n, heads, d).transpose(0, 1)

        q = rope(norm(project("q", hq, dim), w[prefix + "q_norm.weight"], eps), *turn)
        k = rope(norm(project("k", hk, dim), w[prefix + "k_norm.weight"], eps), *turn)
        v = project("v", hk, dim)
        keep = torch.ones(n, n, dtype=torch.bool).tril()[None].expand(hk, n, n)
        if t["layer_types"][i] == "minimax_m3_sparse":
            hi, di = t["index_n_heads"], t["index_head_dim"]
            iq = rope(norm(project("index_q", hi, di), w[prefix + "index_q_norm.weight"], eps), *turn)
            ik = rope(norm(project("index_k", 1, di), w[prefix + "index_k_norm.weight"], eps), *turn)[0]
            self.kept[i] = self._select(iq, ik)
            keep = keep & self.kept[i].repeat_interleave(t["index_block_size"], -1)[..., :n]
        scores = q.view(hk, hq // hk, n, dim) @ k[:, None].transpose(-1, -2) / math.sqrt(dim)
        weights = scores.masked_fill(~keep[:, None], NEG).float().softmax(-1).to(x.dtype)
        out = (weights @ v[:, None]).reshape(hq, n, dim).transpose(0, 1).reshape(n, hq * dim)
        return out @ w[prefix + "o_proj.weight"].T

    def _text(self, x):
        w, t = self.w, self.t
        eps = t["rms_norm_eps"]
        for i in range(t["num_hidden_layers"]):
            prefix = f"language_model.model.layers.{i}."
            x = x + self._attention(i, norm(x, w[prefix + "input_layernorm.weight"], eps))
            h = norm(x, w[prefix + "post_attention_layernorm.weight"], eps)
            sparse = t["mlp_layer_types"][i] == "sparse"
            x = x + (self._moe(prefix + "block_sparse_moe.", h) if sparse else self._mlp(prefix + "mlp.", h))
        return norm(x, w["language_model.model.norm.weight"], eps) @ w["language_model.lm_head.weight"].T

    def _angles(self, grid, inverse):
        merge = self.v["spatial_merge_size"]
        return torch.stack([
            torch.cat([inverse * ti, inverse * (bh * merge + dh), inverse * (bw * merge + dw)])
            for t, h, w in grid for ti in range(t) for bh in range(h // merge) for bw in range(w // merge)
            for dh in range(merge) for dw in range(merge)
        ])  # fmt: skip

    def vision(self, pixels, grid):
        """pixels [N, 1176] float32; every (t, h, w) of `grid` is one attention segment."""
        w, v = self.w, self.v
        top = "vision_tower.vision_model."
        width, heads = v["hidden_size"], v["num_attention_heads"]
        dim = width // heads
        per_axis = 2 * ((dim // 3) // 2)
        inverse = v["rope_parameters"]["rope_theta"] ** (-torch.arange(0, per_axis, 2, dtype=torch.float32) / per_axis)
        angle = self._angles(grid, inverse)
        cos, sin = angle.cos()[:, None], angle.sin()[:, None]
        half, turned = 3 * per_axis // 2, 3 * per_axis

        def layer_norm(y, name):
            return F.layer_norm(y, (width,), w[name + ".weight"], w[name + ".bias"], v["layer_norm_eps"])

        def linear(y, name):
            return y @ w[name + ".weight"].T + w[name + ".bias"]

        def turn(y):
            a, b, rest = y[..., :half], y[..., half:turned], y[..., turned:]
            return torch.cat([a * cos - b * sin, b * cos + a * sin, rest], -1)

        x = layer_norm(pixels @ w[top + "embeddings.patch_embedding.weight"].flatten(1).T, top + "pre_layrnorm")
        for i in range(v["num_hidden_layers"]):
            prefix = f"{top}encoder.layers.{i}."
            y = layer_norm(x, prefix + "layer_norm1")
            q, k, value = (linear(y, f"{prefix}self_attn.{n}_proj").view(-1, heads, dim) for n in "qkv")
            q, k = turn(q), turn(k)
            parts = []
            for qs, ks, vs in zip(*(y.split([t * h * ww for t, h, ww in grid]) for y in (q, k, value)), strict=True):
                scores = torch.einsum("ahd,bhd->hab", qs, ks) / math.sqrt(dim)
                parts.append(torch.einsum("hab,bhd->ahd", scores.softmax(-1), vs).reshape(-1, width))
            x = x + linear(torch.cat(parts), prefix + "self_attn.out_proj")
            y = layer_norm(x, prefix + "layer_norm2")
            x = x + linear(F.gelu(linear(y, prefix + "mlp.fc1")), prefix + "mlp.fc2")
        y = linear(F.gelu(linear(x, "multi_modal_projector.linear_1")), "multi_modal_projector.linear_2")
        y = y.reshape(y.shape[0] // v["spatial_merge_size"] ** 2, -1)
        return linear(F.gelu(linear(y, "patch_merge_mlp.linear_1")), "patch_merge_mlp.linear_2")

    def logits(self, ids, image=None, video=None):
        """ids int64 [T]; image and video: (pixels, grid) or None."""
        x = self.w["language_model.model.embed_tokens.weight"][ids].clone()
        if image is not None:
            x[ids == self.config["image_token_index"]] = self.vision(*image)
        if video is not None:
            x[ids == self.config["video_token_index"]] = self.vision(*video)
        return self._text(x)
