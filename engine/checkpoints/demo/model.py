"""MiniMax-M3 mathematics in plain torch, for training: dense or block-sparse attention, the indexer's loss, MoE, vision tower.

Parameter names follow the released tensors closely enough that `export.py` only splits and renames. Shapes: B rows, T tokens,
H query heads, R index/KV heads, N images, P patches. Everything runs in the dtype of `Net.dtype`; norms, router and selection
use fp32 inside. All experts are computed and weighted by the router (zero for the ones not chosen): for 8 small experts this is
one wide matrix product, and the same function as the routed form.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .sizes import Sizes

NEG = float("-inf")


def rms(x: Tensor, w: Tensor, eps: float) -> Tensor:
    return F.rms_norm(x, (x.shape[-1],), (1 + w).to(x.dtype), eps)


def lin(x: Tensor, w: Tensor, b: Tensor | None = None) -> Tensor:
    return F.linear(x, w.to(x.dtype), None if b is None else b.to(x.dtype))


def tables(angles: Tensor, dim: int) -> tuple[Tensor, Tensor, int]:
    """angles [T, r/2] -> cos, signed sin [T, 1, dim] (1 and 0 in channels that do not turn) and r."""
    t, half = angles.shape
    rest = dim - 2 * half
    cos, sin = angles.cos(), angles.sin()
    one, zero = torch.ones(t, rest, device=angles.device), torch.zeros(t, rest, device=angles.device)
    return torch.cat([cos, cos, one], -1)[:, None], torch.cat([-sin, sin, zero], -1)[:, None], 2 * half


Rope = tuple[Tensor, Tensor, int]


def turn(x: Tensor, rope: Rope) -> Tensor:
    """Half-split rotation of the first r channels of x [..., T, heads, dim]."""
    cos, sin, r = rope
    h = r // 2
    other = torch.cat([x[..., h:r], x[..., :h], x[..., r:]], -1)
    return torch.addcmul(x * cos, other, sin)


def swiglu_oai(g: Tensor, u: Tensor, alpha: float, limit: float) -> Tensor:
    g = g.clamp(max=limit)
    return (u.clamp(-limit, limit) + 1) * g * torch.sigmoid(alpha * g)


def gated(h: Tensor, w: Tensor, s: Sizes) -> Tensor:
    """h [.., E, 2I], w [.., E] -> w * activation, [.., E, I]."""
    if h.is_cuda:
        from .fused import Gated

        return Gated.apply(h, w, s.alpha, s.limit)
    g, u = h.chunk(2, -1)
    return swiglu_oai(g, u, s.alpha, s.limit) * w.to(h.dtype)[..., None]


def weight(*shape: int, gain: float = 1.0) -> nn.Parameter:
    return nn.Parameter(torch.randn(*shape) * gain / math.sqrt(shape[-1]))


class Attention(nn.Module):
    def __init__(self, s: Sizes, sparse: bool) -> None:
        super().__init__()
        self.s, self.sparse = s, sparse
        d = s.head_dim
        self.q = weight(s.heads * d, s.hidden)
        self.k = weight(s.kv_heads * d, s.hidden)
        self.v = weight(s.kv_heads * d, s.hidden)
        self.o = weight(s.hidden, s.heads * d, gain=0.3)
        self.q_norm = nn.Parameter(torch.zeros(d))
        self.k_norm = nn.Parameter(torch.zeros(d))
        if sparse:
            self.index_q = weight(s.kv_heads * s.index_dim, s.hidden)
            self.index_k = weight(s.index_dim, s.hidden)
            self.index_q_norm = nn.Parameter(torch.zeros(s.index_dim))
            self.index_k_norm = nn.Parameter(torch.zeros(s.index_dim))

    def forward(self, x: Tensor, rope: Rope, mode: str, probe: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """mode: "short" (dense, no indexer), "dense" (dense, indexer trained), "sparse" (indexer chooses and is trained).

        probe: query positions [Q] at which the indexer's loss is taken, None for no loss.
        """
        s = self.s
        b, t, _ = x.shape
        d, h, r = s.head_dim, s.heads, s.kv_heads
        qkv = F.linear(x, torch.cat([self.q, self.k, self.v]).to(x.dtype)).view(b, t, h + 2 * r, d)
        scale = 1 + torch.cat([self.q_norm.expand(h, d), self.k_norm.expand(r, d)])
        qk = turn(F.rms_norm(qkv[:, :, : h + r], (d,), None, s.eps) * scale.to(x.dtype), rope).transpose(1, 2)
        q, k, v = qk[:, :h], qk[:, h:], qkv[:, :, h + r :].transpose(1, 2)
        kl = None
        bias = None
        if self.sparse and mode != "short":
            x = x.detach()
            iq = turn(rms(lin(x, self.index_q).view(b, t, r, s.index_dim), self.index_q_norm, s.eps), rope).transpose(
                1, 2
            )
            ik = turn(rms(lin(x, self.index_k).view(b, t, 1, s.index_dim), self.index_k_norm, s.eps), rope)[:, :, 0]
            if probe is not None:
                kl = indexer_loss(q.detach(), k.detach(), iq, ik, probe, s)
            if mode == "sparse":
                bias = selection_bias(iq.detach(), ik.detach(), s)
        if bias is None:
            o = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        else:
            outs = []
            for i in range(r):  # one choice of blocks per KV head
                kr, vr = (z[:, i : i + 1].expand(-1, s.group, -1, -1) for z in (k, v))
                mask = bias[:, i : i + 1].expand(-1, s.group, -1, -1)
                outs.append(
                    F.scaled_dot_product_attention(q[:, i * s.group : (i + 1) * s.group], kr, vr, attn_mask=mask)
                )
            o = torch.cat(outs, 1)
        return lin(o.transpose(1, 2).reshape(b, t, -1), self.o), kl


@torch.no_grad()
def choose_blocks(iq: Tensor, ik: Tensor, s: Sizes, start: int, stop: int) -> Tensor:
    """Queries start..stop of iq [B,R,T,D] against ik [B,T,D] -> chosen blocks, bool [B, R, stop-start, blocks]."""
    t = ik.shape[1]
    nb = -(-t // s.block)
    sc = iq[:, :, start:stop] @ ik[:, None].transpose(-1, -2)
    pos = torch.arange(start, stop, device=iq.device)
    sc = sc.masked_fill(torch.arange(t, device=iq.device)[None, :] > pos[:, None], NEG)
    sc = F.pad(sc, (0, nb * s.block - t), value=NEG).unflatten(-1, (nb, s.block)).amax(-1).float()
    sc.scatter_(-1, (pos // s.block)[None, None, :, None].expand(*sc.shape[:3], 1), float("inf"))
    top = sc.topk(min(s.topk, nb), -1)
    keep = torch.zeros(*sc.shape[:3], nb + 1, dtype=torch.bool, device=iq.device)
    keep.scatter_(-1, top.indices.masked_fill(top.values == NEG, nb), True)
    return keep[..., :nb]


@torch.no_grad()
def selection_bias(iq: Tensor, ik: Tensor, s: Sizes, chunk: int = 4096) -> Tensor:
    """0 where a query may look, -inf elsewhere: [B, R, T, T] in the dtype of iq."""
    b, r, t, _ = iq.shape
    bias = torch.empty(b, r, t, t, dtype=iq.dtype, device=iq.device)
    cols = torch.arange(t, device=iq.device)
    for a in range(0, t, chunk):
        z = min(t, a + chunk)
        keep = choose_blocks(iq, ik, s, a, z).repeat_interleave(s.block, -1)[..., :t]
        keep &= cols[None, :] <= torch.arange(a, z, device=iq.device)[:, None]
        bias[:, :, a:z] = torch.where(keep, 0.0, NEG).to(iq.dtype)
    return bias


def indexer_loss(q: Tensor, k: Tensor, iq: Tensor, ik: Tensor, probe: Tensor, s: Sizes) -> Tensor:
    """KL(main attention's mass per block || softmax of the indexer's block scores) at the probed queries, own block left out."""
    _, _, t, d = q.shape
    nb = -(-t // s.block)
    late = torch.arange(t, device=q.device)[None, :] > probe[:, None]
    own = probe // s.block
    pad = nb * s.block - t
    with torch.no_grad():
        qp = q[:, :, probe].unflatten(1, (s.kv_heads, s.group))
        a = (qp @ k[:, :, None].transpose(-1, -2)).float() / math.sqrt(d)
        a = a.masked_fill(late, NEG).softmax(-1).sum(2)
        mass = F.pad(a, (0, pad)).unflatten(-1, (nb, s.block)).sum(-1)
        mass.scatter_(-1, own[None, None, :, None].expand(*mass.shape[:3], 1), 0.0)
        total = mass.sum(-1, keepdim=True)
        mass = mass / total.clamp(min=1e-6)
    sc = (iq[:, :, probe] @ ik[:, None].transpose(-1, -2)).float() / math.sqrt(s.index_dim)
    sc = F.pad(sc.masked_fill(late, NEG), (0, pad), value=NEG).unflatten(-1, (nb, s.block)).amax(-1)
    blocks = torch.arange(nb, device=q.device)
    sc = sc.masked_fill(blocks[None, :] >= own[:, None], -1e4)
    logp = sc.log_softmax(-1)
    ent = (mass * mass.clamp(min=1e-9).log()).sum(-1)
    return ((ent - (mass * logp).sum(-1)) * (total[..., 0] > 0.02)).mean()


class DenseMLP(nn.Module):
    def __init__(self, s: Sizes, inner: int) -> None:
        super().__init__()
        self.s = s
        self.gate = weight(inner, s.hidden)
        self.up = weight(inner, s.hidden)
        self.down = weight(s.hidden, inner, gain=0.3)

    def forward(self, x: Tensor) -> Tensor:
        return lin(swiglu_oai(lin(x, self.gate), lin(x, self.up), self.s.alpha, self.s.limit), self.down)


class MoE(nn.Module):
    """w13 [E+1, 2I, D] and w2 [E+1, D, I]: the routed experts, then the shared one, whose weight is always 1."""

    def __init__(self, s: Sizes) -> None:
        super().__init__()
        self.s = s
        if s.shared_mlp != s.expert_mlp:
            raise ValueError("the shared expert is stored beside the routed ones: shared_mlp must equal expert_mlp")
        e, i, d = s.experts, s.expert_mlp, s.hidden
        self.router = nn.Parameter(torch.randn(e, d) / math.sqrt(d))
        self.register_buffer("bias", torch.zeros(e))
        self.register_buffer("load", torch.zeros(e))
        self.w13 = weight(e + 1, 2 * i, d)
        self.w2 = weight(e + 1, d, i, gain=0.3)
        self.count = False

    def forward(self, x: Tensor) -> Tensor:
        s = self.s
        score = torch.sigmoid(F.linear(x.float(), self.router.float()))
        ids = (score + self.bias).topk(s.experts_per_token, -1).indices
        hot = torch.zeros_like(score).scatter_(-1, ids, 1.0)
        g = score * hot
        g = F.pad(g * (s.routed_scale / g.sum(-1, keepdim=True)), (0, 1), value=1.0)
        if self.count:
            with torch.no_grad():
                self.load += hot.flatten(0, -2).mean(0)
        h = lin(x, self.w13.flatten(0, 1)).unflatten(-1, (s.experts + 1, 2 * s.expert_mlp))
        return lin(gated(h, g, s).flatten(-2), self.w2.transpose(0, 1).flatten(1))

    @torch.no_grad()
    def balance(self, rate: float) -> None:
        """Move the choice bias against the measured load (no gradient), then forget the load."""
        self.bias += rate * torch.sign(self.load.mean() - self.load)
        self.bias -= self.bias.mean()
        self.load.zero_()


class Layer(nn.Module):
    def __init__(self, s: Sizes, n: int) -> None:
        super().__init__()
        self.s = s
        self.norm1 = nn.Parameter(torch.zeros(s.hidden))
        self.norm2 = nn.Parameter(torch.zeros(s.hidden))
        self.attn = Attention(s, sparse=n >= s.dense_layers)
        self.mlp = MoE(s) if n >= s.dense_layers else DenseMLP(s, s.dense_mlp)

    def forward(self, x: Tensor, rope: Rope, mode: str, probe: Tensor | None) -> tuple[Tensor, Tensor | None]:
        a, kl = self.attn(rms(x, self.norm1, self.s.eps), rope, mode, probe)
        x = x + a
        return x + self.mlp(rms(x, self.norm2, self.s.eps)), kl


class VisionLayer(nn.Module):
    def __init__(self, s: Sizes) -> None:
        super().__init__()
        self.s = s
        e, m = s.v_hidden, s.v_mlp
        self.ln1 = nn.LayerNorm(e, eps=s.v_eps)
        self.ln2 = nn.LayerNorm(e, eps=s.v_eps)
        for n in "qkv":
            setattr(self, n, weight(e, e))
            setattr(self, n + "_b", nn.Parameter(torch.zeros(e)))
        self.out, self.out_b = weight(e, e, gain=0.3), nn.Parameter(torch.zeros(e))
        self.fc1, self.fc1_b = weight(m, e), nn.Parameter(torch.zeros(m))
        self.fc2, self.fc2_b = weight(e, m, gain=0.3), nn.Parameter(torch.zeros(e))

    def forward(self, x: Tensor, rope: Rope) -> Tensor:
        s = self.s
        n, p, e = x.shape
        y = norm_ln(x, self.ln1)
        h = s.v_heads
        qkv = lin(y, torch.cat([self.q, self.k, self.v]), torch.cat([self.q_b, self.k_b, self.v_b])).view(
            n, p, 3 * h, s.v_head_dim
        )
        qk = turn(qkv[:, :, : 2 * h], rope).transpose(1, 2)
        o = F.scaled_dot_product_attention(qk[:, :h], qk[:, h:], qkv[:, :, 2 * h :].transpose(1, 2))
        x = x + lin(o.transpose(1, 2).reshape(n, p, e), self.out, self.out_b)
        y = norm_ln(x, self.ln2)
        return x + lin(F.gelu(lin(y, self.fc1, self.fc1_b)), self.fc2, self.fc2_b)


def norm_ln(x: Tensor, ln: nn.LayerNorm) -> Tensor:
    return F.layer_norm(x, ln.normalized_shape, ln.weight.to(x.dtype), ln.bias.to(x.dtype), ln.eps)


def vision_rope(s: Sizes, t: int, h: int, w: int, device: torch.device) -> Rope:
    """Rotation of one segment in merge order (t, h/2, w/2, dy, dx)."""
    per = 2 * ((s.v_head_dim // 3) // 2)
    inv = s.v_theta ** (-torch.arange(0, per, 2, dtype=torch.float32, device=device) / per)
    m = s.merge
    grid = torch.stack(torch.meshgrid(*(torch.arange(n, device=device) for n in (t, h, w)), indexing="ij"), -1)
    grid = grid.view(t, h // m, m, w // m, m, 3).permute(0, 1, 3, 2, 4, 5).reshape(-1, 3)
    return tables((grid[:, :, None].float() * inv).flatten(1), s.v_head_dim)


class Vision(nn.Module):
    def __init__(self, s: Sizes) -> None:
        super().__init__()
        self.s = s
        e, d = s.v_hidden, s.projector
        self.patch = nn.Parameter(torch.randn(e, 3, 2, s.patch, s.patch) / math.sqrt(3 * 2 * s.patch * s.patch))
        self.pre = nn.LayerNorm(e, eps=s.v_eps)
        self.layers = nn.ModuleList(VisionLayer(s) for _ in range(s.v_layers))
        self.p1, self.p1_b = weight(d, e), nn.Parameter(torch.zeros(d))
        self.p2, self.p2_b = weight(s.hidden, d), nn.Parameter(torch.zeros(s.hidden))
        self.m1, self.m1_b = weight(d, 4 * s.hidden), nn.Parameter(torch.zeros(d))
        self.m2, self.m2_b = weight(s.hidden, d), nn.Parameter(torch.zeros(s.hidden))
        self.pressure = torch.zeros(())

    def forward(self, rows: Tensor, t: int, h: int, w: int) -> Tensor:
        """rows [N, t*h*w, 588 | 1176], already normalised, t at most one segment -> [N, t*h*w/4, hidden]."""
        s = self.s
        wt = self.patch.sum(2) if rows.shape[-1] == 588 else self.patch
        x = norm_ln(lin(rows, wt.flatten(1)), self.pre)
        cos, sin, r = vision_rope(s, t, h, w, rows.device)
        rope = (cos.to(x.dtype), sin.to(x.dtype), r)
        for layer in self.layers:
            x = layer(x, rope)
        x = lin(x, self.p1, self.p1_b)
        if (
            self.training
        ):  # nothing normalises the tower's output: without this the GELU below can die and blind the model
            self.pressure = x.float().square().mean()
        x = lin(F.gelu(x), self.p2, self.p2_b)
        x = x.reshape(x.shape[0], -1, 4 * s.hidden)
        return lin(F.gelu(lin(x, self.m1, self.m1_b)), self.m2, self.m2_b)


class Net(nn.Module):
    def __init__(self, s: Sizes) -> None:
        super().__init__()
        self.s = s
        self.embed = nn.Parameter(torch.randn(s.vocab, s.hidden) * 0.5)
        self.layers = nn.ModuleList(Layer(s, n) for n in range(s.layers))
        self.norm = nn.Parameter(torch.zeros(s.hidden))
        self.head = nn.Parameter(torch.randn(s.vocab, s.hidden) * 0.02)
        self.vision = Vision(s)
        self.dtype = torch.float32

    def rope(self, t: int) -> Rope:
        s = self.s
        r = s.rotary_dim
        inv = s.rope_theta ** (-torch.arange(0, r, 2, dtype=torch.float32, device=self.embed.device) / r)
        cos, sin, n = tables(torch.arange(t, device=self.embed.device).float()[:, None] * inv, s.head_dim)
        return cos.to(self.dtype), sin.to(self.dtype), n

    def hidden(
        self, ids: Tensor, features: list[tuple[Tensor, Tensor]], mode: str, probe: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """ids [B,T]; features: (flat positions [M], rows [M, hidden]) -> final hidden states [B,T,hidden], indexer loss."""
        x = F.embedding(ids, self.embed).to(self.dtype)
        for at, f in features:
            x = x.flatten(0, 1).index_copy(0, at, f.to(x.dtype)).view(*ids.shape, -1)
        rope = self.rope(ids.shape[1])
        kl = torch.zeros((), device=ids.device)
        for layer in self.layers:
            x, one = layer(x, rope, mode, probe)
            if one is not None:
                kl = kl + one
        return rms(x, self.norm, self.s.eps), kl

    def logits(self, h: Tensor) -> Tensor:
        return lin(h, self.head)
