"""Muon for matrices (orthogonalised momentum), Adam for everything else, over fp32 masters of the net's parameters.

All matrices are padded into two stacks, so that one step is a few dozen launches: zero rows and columns stay zero under the
Newton-Schulz iteration and do not change the result.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

MATRIX_LR, OTHER_LR, EMBED_LR = 0.02, 0.004, 0.008
STACKS = ((256, 512), (256, 1176))


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

    def __init__(self, size: tuple[int, int], items: list[tuple[Tensor, Tensor]]) -> None:
        """items: (fp32 master, net parameter), 2-d, 3-d (a batch of matrices) or flattened from the second dimension."""
        self.params = [p for _, p in items]
        n = sum(self.rows(p) for p in self.params)
        dev = self.params[0].device
        self.momentum = torch.zeros(n, *size, device=dev)
        self.grad = torch.zeros(n, *size, device=dev)
        self.update = torch.zeros(n, *size, device=dev)
        scale = torch.ones(n, 1, 1, device=dev)
        self.masters: list[Tensor] = []
        self.grad_views: list[Tensor] = []
        self.update_views: list[Tensor] = []
        at = 0
        for master, p in items:
            k = self.rows(p)
            flat = master.view(k, -1, master.shape[-1]) if master.ndim <= 3 else master.view(1, master.shape[0], -1)
            r, c = flat.shape[-2:]
            tall = r > c
            scale[at : at + k] = max(1.0, r / c) ** 0.5
            self.masters.append(flat.mT if tall else flat)
            r, c = min(r, c), max(r, c)
            self.grad_views.append(self.grad[at : at + k, :r, :c])
            self.update_views.append(self.update[at : at + k, :r, :c])
            at += k
        self.scale = scale

    @staticmethod
    def rows(p: Tensor) -> int:
        return p.shape[0] if p.ndim == 3 else 1

    @torch.no_grad()
    def step(self, lr: float) -> None:
        grads = []
        for p, m in zip(self.params, self.masters, strict=True):
            g = torch.zeros_like(p) if p.grad is None else p.grad
            g = g.reshape(m.shape[0], -1, g.shape[-1]) if g.ndim <= 3 else g.reshape(1, g.shape[0], -1)
            grads.append(g.mT if g.shape[-2:] != m.shape[-2:] or (g.shape[-2] > g.shape[-1]) else g)
        torch._foreach_copy_(self.grad_views, grads)
        self.momentum.lerp_(self.grad, 0.05)
        torch.mul(orthogonal(self.grad.lerp(self.momentum, 0.95)), self.scale * -lr, out=self.update)
        torch._foreach_add_(self.masters, self.update_views)


class Optimizer:
    """Turns the net's large matrices into bf16 on a GPU and keeps fp32 masters of them."""

    def __init__(self, net: nn.Module, heads: nn.Module) -> None:
        gpu = next(net.parameters()).is_cuda
        self.net, self.master = net, {n: p.detach().clone() for n, p in net.named_parameters()}
        small: list[Tensor] = list(heads.parameters())
        self.copies: list[tuple[Tensor, Tensor]] = []  # (net parameter, master)
        self.adam_pairs: list[tuple[Tensor, Tensor]] = []
        embed: list[Tensor] = []
        stacks: dict[int, list[tuple[Tensor, Tensor]]] = {0: [], 1: []}
        for name, p in net.named_parameters():
            matrix = p.ndim >= 2 and "router" not in name
            if gpu and matrix:
                p.data = p.data.bfloat16()
            m = self.master[name]
            self.copies.append((p, m))
            if matrix and name not in ("embed", "head"):
                r, c = (p.shape[-2], p.shape[-1]) if p.ndim <= 3 else (p.shape[0], p[0].numel())
                stacks[0 if max(r, c) <= STACKS[0][1] else 1].append((m, p))
            else:
                (embed if name in ("embed", "head") else small).append(m)
                self.adam_pairs.append((p, m))
        self.stacks = [Stack(STACKS[i], items) for i, items in stacks.items()]
        self.adam = torch.optim.Adam(
            [{"params": small, "base": OTHER_LR}, {"params": embed, "base": EMBED_LR}],
            lr=1.0,
            betas=(0.9, 0.98),
            fused=gpu,
        )

    @torch.no_grad()
    def step(self, factor: float) -> None:
        for s in self.stacks:
            s.step(MATRIX_LR * factor)
        have = [(p, m) for p, m in self.adam_pairs if p.grad is not None]
        for p, m in self.adam_pairs:
            m.grad = None if p.grad is None else p.grad.to(m.dtype)
        assert have
        for group in self.adam.param_groups:
            group["lr"] = group["base"] * factor
        self.adam.step()
        self.publish()
        self.net.zero_grad(set_to_none=True)
        self.adam.zero_grad(set_to_none=True)

    @torch.no_grad()
    def publish(self) -> None:
        """Masters -> net."""
        torch._foreach_copy_([p.data for p, _ in self.copies], [m for _, m in self.copies])

    def state(self) -> dict[str, Tensor]:
        return {f"momentum{i}": s.momentum.bfloat16() for i, s in enumerate(self.stacks)}

    def load(self, state: dict[str, Tensor]) -> None:
        for i, s in enumerate(self.stacks):
            s.momentum.copy_(state[f"momentum{i}"])
