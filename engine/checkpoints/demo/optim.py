"""Muon for matrices (orthogonalised momentum), Adam for everything else, over fp32 masters of the net's parameters.

All matrices are padded into two stacks, so that one step is a few dozen launches: zero rows and columns stay zero under the
Newton-Schulz iteration and do not change the result. The vision tower has its own rate and a weight decay: orthogonalised
updates have a fixed size, and without a brake its unnormalised output grows until the projector's GELU is dead.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

MATRIX_LR, OTHER_LR, EMBED_LR = 0.02, 0.004, 0.008
VISION_DECAY = 0.3  # the largest singular value settles below 1 / VISION_DECAY
STACKS = ((256, 512), (256, 1176))
Item = tuple[Tensor, Tensor, bool]  # fp32 master, net parameter, belongs to the vision tower


@torch.no_grad()
def orthogonal(g: Tensor, steps: int = 5) -> Tensor:
    """Newton-Schulz towards the nearest orthogonal matrix; g [n, r, c] with r <= c."""
    x = g.to(torch.bfloat16 if g.is_cuda else torch.float32)
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(steps):
        a = torch.bmm(x, x.mT)
        b = torch.baddbmm(a, a, a, beta=-4.7750, alpha=2.0315)
        x = torch.baddbmm(x, b, x, beta=3.4445)
    return x.to(g.dtype)


class Stack:
    """Matrices of one padded shape: momentum, and views of every parameter's part in it."""

    def __init__(self, size: tuple[int, int], items: list[Item]) -> None:
        """Parameters are 2-d, 3-d (a batch of matrices) or flattened from the second dimension."""
        self.params = [p for _, p, _ in items]
        n = sum(self.rows(p) for p in self.params)
        dev = self.params[0].device
        self.momentum = torch.zeros(n, *size, device=dev)
        self.grad = torch.zeros(n, *size, device=dev)
        self.update = torch.zeros(n, *size, device=dev)
        self.scale = torch.ones(n, 1, 1, device=dev)
        self.vision = torch.zeros(n, 1, 1, device=dev)
        self.masters: list[Tensor] = []
        self.decayed: list[Tensor] = []
        self.grad_views: list[Tensor] = []
        self.update_views: list[Tensor] = []
        at = 0
        for master, p, vision in items:
            k = self.rows(p)
            flat = master.view(k, -1, master.shape[-1]) if master.ndim <= 3 else master.view(1, master.shape[0], -1)
            r, c = flat.shape[-2:]
            self.scale[at : at + k] = max(1.0, r / c) ** 0.5
            self.vision[at : at + k] = float(vision)
            self.masters.append(flat.mT if r > c else flat)
            if vision:
                self.decayed.append(flat)
            r, c = min(r, c), max(r, c)
            self.grad_views.append(self.grad[at : at + k, :r, :c])
            self.update_views.append(self.update[at : at + k, :r, :c])
            at += k

    @staticmethod
    def rows(p: Tensor) -> int:
        return p.shape[0] if p.ndim == 3 else 1

    @torch.no_grad()
    def step(self, lr: float, vision_lr: float) -> None:
        grads = []
        for p, m in zip(self.params, self.masters, strict=True):
            g = torch.zeros_like(p) if p.grad is None else p.grad
            g = g.reshape(m.shape[0], -1, g.shape[-1]) if g.ndim <= 3 else g.reshape(1, g.shape[0], -1)
            grads.append(g.mT if g.shape[-2] > g.shape[-1] else g)
        torch._foreach_copy_(self.grad_views, grads)
        self.momentum.lerp_(self.grad, 0.05)
        rate = self.scale * (-lr + (lr - vision_lr) * self.vision)
        torch.mul(orthogonal(self.grad.lerp(self.momentum, 0.95)), rate, out=self.update)
        if self.decayed:
            torch._foreach_mul_(self.decayed, 1 - vision_lr * VISION_DECAY)
        torch._foreach_add_(self.masters, self.update_views)


class Optimizer:
    """Turns the net's large matrices into bf16 on a GPU and keeps fp32 masters of them."""

    def __init__(self, net: nn.Module, heads: nn.Module) -> None:
        gpu = next(net.parameters()).is_cuda
        self.net, self.master = net, {n: p.detach().clone() for n, p in net.named_parameters()}
        groups: dict[str, list[Tensor]] = {"text": [], "vision": list(heads.parameters()), "embed": []}
        self.copies: list[tuple[Tensor, Tensor]] = []  # (net parameter, master)
        self.adam_pairs: list[tuple[Tensor, Tensor]] = []
        stacks: tuple[list[Item], list[Item]] = ([], [])
        for name, p in net.named_parameters():
            vision = name.startswith("vision.")
            matrix = p.ndim >= 2 and "router" not in name
            if gpu and matrix:
                p.data = p.data.bfloat16()
            m = self.master[name]
            self.copies.append((p, m))
            if matrix and name not in ("embed", "head"):
                r, c = (p.shape[-2], p.shape[-1]) if p.ndim <= 3 else (p.shape[0], p[0].numel())
                stacks[0 if max(r, c) <= STACKS[0][1] else 1].append((m, p, vision))
            else:
                groups["embed" if name in ("embed", "head") else "vision" if vision else "text"].append(m)
                self.adam_pairs.append((p, m))
        self.stacks = [Stack(STACKS[i], items) for i, items in enumerate(stacks)]
        base = {"text": OTHER_LR, "vision": OTHER_LR, "embed": EMBED_LR}
        rows = [{"params": v, "base": base[k], "vision": k == "vision"} for k, v in groups.items()]
        self.adam = torch.optim.Adam(rows, lr=1.0, betas=(0.9, 0.98), fused=gpu)

    @torch.no_grad()
    def step(self, factor: float, vision_factor: float) -> None:
        for s in self.stacks:
            s.step(MATRIX_LR * factor, MATRIX_LR * vision_factor)
        for p, m in self.adam_pairs:
            m.grad = None if p.grad is None else p.grad.to(m.dtype)
        for group in self.adam.param_groups:
            group["lr"] = group["base"] * (vision_factor if group["vision"] else factor)
        self.adam.step()
        self.publish()
        self.net.zero_grad(set_to_none=True)
        self.adam.zero_grad(set_to_none=True)

    @torch.no_grad()
    def publish(self) -> None:
        """Masters -> net."""
        torch._foreach_copy_([p.data for p, _ in self.copies], [m for _, m in self.copies])
