"""Train the demo model: python -m engine.checkpoints.demo.train --out DIR --seconds 530; --smoke runs on a CPU.

Every step sums the gradients of picture (or video), text and, from time to time, long-context micro-batches. Data is made while
training by worker processes and never repeats, so the accuracies printed are on unseen samples. The schedule follows the clock:
`--seconds` is the length of the run, and the learning rate reaches zero at its end.
"""

# ruff: noqa: E501
from __future__ import annotations

import argparse
import json
import multiprocessing as mp
import os
import queue
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from tokenizers import Tokenizer
from torch import Tensor, nn

from . import render
from .batches import Maker
from .export import restore
from .model import Net
from .optim import Optimizer
from .scenes import GLYPHS
from .sizes import SIZES
from .words import COLOUR_NAMES, SHAPE_NAMES


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


SEVERAL = (35, 45, 12, 8)
"""Weights of prompts with 1 to 4 pictures in a --several run."""
HEADS_ALONE = 150
"""Steps for which new auxiliary heads learn without touching the tower."""


def work(kind: str, data: str, seed: int, tokens: int, patches: int, several: bool, queue: Any, progress: Any) -> None:
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    torch.set_num_threads(1)
    maker = Maker(Tokenizer.from_file(f"{data}/tokenizer.json"), np.load(f"{data}/glyphs.npz")["advance"], seed)
    if several:
        maker.pictures = SEVERAL
    while True:
        if kind == "image":
            out = [maker.videos(tokens, patches) if maker.rng.random() < 0.25 else maker.images(tokens, patches)]
        elif kind == "text":
            out = maker.talk(tokens)
        else:
            out = [maker.long(*long_shape(maker.rng, progress.value, tokens))]
        for b in out:
            queue.put(b)


def long_shape(rng: Any, progress: float, tokens: int) -> tuple[int, int]:
    """Curriculum of context lengths: what lies behind stays in the mix."""
    if progress < 0.25:
        t = rng.choice((768, 1024, 2048))
    elif progress < 0.5:
        t = rng.choice((1024, 2048, 4096))
    elif progress < 0.7:
        t = rng.choice((1024, 2048, 4096, 8192))
    else:
        t = rng.choice((1024, 2048, 4096, 4096, 8192, 8192, 16384, 32768, 32768))
    t = min(t, tokens)
    return t, max(1, tokens // t)


class Heads(nn.Module):
    """Auxiliary classifiers on the vision rows: what is at this place, and where is its centre. Not exported."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.shape = nn.Linear(hidden, len(SHAPE_NAMES) + 1)
        self.colour = nn.Linear(hidden, len(COLOUR_NAMES) + 1)
        self.char = nn.Linear(hidden, len(GLYPHS) + 1)
        self.where = nn.Linear(hidden, 2)
        self.centre = nn.Linear(hidden, 1)

    def forward(self, f: Tensor, lab: dict[str, Tensor], text: bool) -> Tensor:
        f = f.float()
        loss = torch.zeros((), device=f.device)
        for name in ("shape", "colour") + (("char",) if text else ()):
            y = lab[name] + 1
            ce = F.cross_entropy(getattr(self, name)(f).flatten(0, 1), y.flatten(), reduction="none")
            w = torch.where(y.flatten() > 0, 1.0, 0.15)
            loss = loss + (ce * w).sum() / w.sum()
        seen = (lab["shape"] >= 0).float()
        at = (self.where(f) - lab["where"]).abs().sum(-1)
        loss = loss + 2 * (at * seen).sum() / seen.sum().clamp(min=1)
        c = F.binary_cross_entropy_with_logits(self.centre(f)[..., 0], lab["centre"], reduction="none")
        return loss + 2 * c.mean()


class Trainer:
    def __init__(self, data: str, device: str) -> None:
        torch.manual_seed(0)
        torch.backends.cuda.enable_cudnn_sdp(False)  # it builds a plan for every new shape
        self.device = torch.device(device)
        self.net = Net(SIZES).to(self.device)
        self.net.dtype = torch.bfloat16 if self.device.type == "cuda" else torch.float32
        self.heads = Heads(SIZES.hidden).to(self.device)
        self.heads_alone = False
        self.opt = Optimizer(self.net, self.heads)
        self.atlas = torch.tensor(np.load(f"{data}/glyphs.npz")["atlas"]).float().to(self.device) / 255

    def to(self, a: np.ndarray) -> Tensor:
        return torch.from_numpy(a).to(self.device, non_blocking=True)

    @torch.no_grad()
    def draw(self, batch: dict[str, Any], aux: bool) -> list[dict[str, Any]]:
        """Per group of pictures: patch rows, labels for the auxiliary heads, token positions."""
        out = []
        for g in batch["groups"]:
            things, bg, chars = (self.to(g[k]) for k in ("things", "bg", "chars"))
            (h, w), (gh, gw), t = g["size"], g["grid"], g["t"]
            rows = render.to_rows(render.draw(things, bg, chars, self.atlas, h, w, g["jpeg"]), gh, gw).to(
                self.net.dtype
            )
            lab = (
                render.labels(
                    things if not t else things[1::2], chars if not t else chars[1::2], len(GLYPHS), h, w, gh, gw
                )
                if aux
                else {}
            )
            n = gh * gw // 4
            at = (self.to(g["at"])[:, None] + torch.arange(n, device=self.device)).flatten()
            out.append({"rows": rows, "labels": lab, "t": t, "grid": (gh, gw), "at": at, "text": chars.shape[1] > 0})
        return out

    def see(self, drawn: list[dict[str, Any]], aux: bool) -> tuple[list[tuple[Tensor, Tensor]], Tensor]:
        """Encode all pictures of a micro-batch -> [(flat token positions, rows)], auxiliary loss."""
        feats: list[tuple[Tensor, Tensor]] = []
        loss = torch.zeros((), device=self.device)
        for g in drawn:
            rows, t, (gh, gw) = g["rows"], g["t"], g["grid"]
            if t:
                p, s = gh * gw, SIZES.segment
                clips = rows.view(-1, t, 2, p, 3, 196).permute(0, 1, 3, 4, 2, 5).reshape(-1, t, p, 1176)
                parts = [
                    self.net.vision(clips[:, a : a + s].flatten(1, 2), min(s, t - a), gh, gw).unflatten(1, (-1, p // 4))
                    for a in range(0, t, s)
                ]
                f = torch.cat(parts, 1).flatten(0, 1)
            else:
                f = self.net.vision(rows, 1, gh, gw)
            if aux:
                seen = f.detach() if self.heads_alone else f
                loss = loss + (self.heads(seen, g["labels"], g["text"]) + 1e-3 * self.net.vision.pressure) / len(drawn)
            feats.append((g["at"], f.flatten(0, 1)))
        return feats, loss

    def ready(self, batch: dict[str, Any], aux: bool = True) -> dict[str, Any]:
        """Everything of a micro-batch on the device; may run in a second thread while the first one trains."""
        span = batch["span"][:, 1:]
        rows, cols = np.nonzero(span)
        at = rows * batch["ids"].shape[1] + cols
        ids = batch["ids"].astype(np.int64)
        return {"ids": self.to(ids), "at": self.to(at), "y": self.to(ids[rows, cols + 1]), "span": span[rows, cols], "tasks": batch["tasks"],
                "drawn": self.draw(batch, aux), "size": ids.size}  # fmt: skip

    def forward(
        self, b: dict[str, Any], mode: str, aux: bool = True, probe: bool = True
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """-> answer loss, auxiliary loss, indexer loss, predicted token per target token."""
        feats, aux_loss = self.see(b["drawn"], aux)
        pos = None
        t = b["ids"].shape[1]
        if mode != "short" and probe:
            late = t - 1 - torch.randperm(min(t - 32, 320))[:64]
            pos = torch.cat([late, torch.randint(32, t, (64,))]).sort().values.to(self.device)
        h, kl = self.net.hidden(b["ids"], feats, mode, pos)
        logits = self.net.logits(h.flatten(0, 1)[b["at"]])
        loss = F.cross_entropy(logits.float(), b["y"])
        return loss, aux_loss, kl / max(1, SIZES.layers - SIZES.dense_layers), logits.argmax(-1)


class Feeder(threading.Thread):
    """Takes micro-batches from the workers and draws them on the device while the main thread trains."""

    def __init__(self, tr: Trainer, source: Any) -> None:
        super().__init__(daemon=True)
        self.tr, self.source = tr, source
        self.out: queue.Queue[dict[str, Any]] = queue.Queue(2)

    def run(self) -> None:
        while True:
            self.out.put(self.tr.ready(self.source.get()))

    def get(self) -> dict[str, Any]:
        while True:
            try:
                return self.out.get(timeout=5)
            except queue.Empty:
                if not self.is_alive():
                    raise RuntimeError("the feeder thread died") from None


def accuracy(pred: Tensor, b: dict[str, Any]) -> dict[str, tuple[int, int]]:
    """Whole answers right, per task: every token must be the most likely one, which is what greedy decoding needs."""
    ok = (pred == b["y"]).cpu().numpy()
    good = np.ones(len(b["tasks"]) + 1, bool)
    np.logical_and.at(good, b["span"], ok)
    out: dict[str, tuple[int, int]] = {}
    for i in np.unique(b["span"]).tolist():
        name = b["tasks"][i - 1]
        x, y = out.get(name, (0, 0))
        out[name] = (x + int(good[i]), y + 1)
    return out


def merge(a: dict[str, tuple[int, int]], b: dict[str, tuple[int, int]]) -> None:
    for k, (x, y) in b.items():
        a[k] = (a.get(k, (0, 0))[0] + x, a.get(k, (0, 0))[1] + y)


def rates(a: dict[str, tuple[int, int]]) -> dict[str, float]:
    return {k: round(x / y, 4) for k, (x, y) in sorted(a.items())}


@torch.no_grad()
def evaluate(tr: Trainer, data: str, rows: int, lengths: tuple[int, ...], budget: int = 24_000) -> dict[str, Any]:
    """Fixed seeds, unseen samples; long contexts with the indexer's choice and with dense attention."""
    maker = Maker(Tokenizer.from_file(f"{data}/tokenizer.json"), np.load(f"{data}/glyphs.npz")["advance"], 987_654)
    tr.net.eval()
    acc: dict[str, tuple[int, int]] = {}
    two: dict[str, tuple[int, int]] = {}
    for _ in range(rows):
        for b in (
            maker.images(budget, budget),
            maker.images(budget, budget),
            maker.videos(budget, budget),
            *maker.talk(budget),
        ):
            mode = "sparse" if b["ids"].shape[1] > SIZES.block * SIZES.topk else "short"
            x = tr.ready(b, aux=False)
            right = accuracy(tr.forward(x, mode, aux=False, probe=False)[-1], x)
            merge(acc, right)
            if b.get("pictures") == 2:
                merge(two, right)
    out: dict[str, Any] = {
        "answers": rates(acc),
        "counts": {k: v[1] for k, v in acc.items()},
        "two_pictures": {k: (rate, two[k][1]) for k, rate in rates(two).items()},
    }
    for t in lengths:
        res: dict[str, dict[str, tuple[int, int]]] = {"sparse": {}, "short": {}}
        for _ in range(max(2, min(8, 65_536 // t))):
            x = tr.ready(maker.long(t, max(1, min(32_768, 4 * budget) // t)), aux=False)
            for mode, into in res.items():
                merge(into, accuracy(tr.forward(x, mode, aux=False, probe=False)[-1], x))
        out[f"needle_{t}"] = {
            "sparse": rates(res["sparse"]),
            "dense": rates(res["short"]),
            "blocks_share": round(min(1.0, SIZES.topk * SIZES.block / t), 4),
        }
    tr.net.train()
    return out


def save(tr: Trainer, out: Path, info: dict[str, Any]) -> None:
    """fp32 weights in three files under 16 MiB each, auxiliary heads, log. The optimizer warms up again on resume."""
    sd = {k: v.detach().cpu().clone() for k, v in {**tr.net.state_dict(), **tr.opt.master}.items()}
    size, part = 0, 0
    parts: list[dict[str, Tensor]] = [{}, {}, {}]
    total = sum(v.numel() for v in sd.values())
    for k in sorted(sd):
        part = min(2, size * 3 // total)
        parts[part][k] = sd[k]
        size += sd[k].numel()
    for i, p in enumerate(parts):
        torch.save(p, out / f"net{i}.pt.tmp")
        os.replace(out / f"net{i}.pt.tmp", out / f"net{i}.pt")
    torch.save(tr.heads.state_dict(), out / "heads.pt")
    (out / "metrics.json").write_text(json.dumps(info))


def load(tr: Trainer, folder: Path, fresh_vision: bool = False) -> None:
    """`folder`: of `save`, or an exported checkpoint, which has no auxiliary heads."""
    sd: dict[str, Tensor] = {}
    if (folder / "model.safetensors.index.json").exists():
        sd.update(restore(folder).state_dict())
    else:
        for i in range(3):
            sd.update(torch.load(folder / f"net{i}.pt", map_location=tr.device))
    for k, m in tr.opt.master.items():
        if not (fresh_vision and k.startswith("vision.")):
            m.copy_(sd[k])
    for k, b in tr.net.named_buffers():
        b.copy_(sd[k])
    tr.opt.publish()
    if (folder / "heads.pt").exists() and not fresh_vision:
        tr.heads.load_state_dict(torch.load(folder / "heads.pt", map_location=tr.device))
    else:
        tr.heads_alone = not fresh_vision


def options(argv: list[str] | None = None) -> argparse.Namespace:
    p = argparse.ArgumentParser()
    p.add_argument("--data", default=str(Path(__file__).parent / "build"))
    p.add_argument("--out", required=True)
    p.add_argument("--seconds", type=float, default=480)
    p.add_argument(
        "--resume",
        default="",
        help="folder of an earlier run, or an exported checkpoint; with --seconds 0 it is only evaluated",
    )
    p.add_argument("--fresh-vision", action="store_true", help="with --resume: start the vision tower anew")
    p.add_argument("--start", type=float, default=0.0, help="progress at which a resumed run begins, 0..1")
    p.add_argument("--peak", type=float, default=1.0, help="learning-rate factor of the text decoder")
    p.add_argument("--vision-peak", type=float, default=0.4, help="the same for the vision tower")
    p.add_argument(
        "--picture-run", action="store_true", help="mostly pictures: text and long contexts only to keep the skill"
    )
    p.add_argument("--several", action="store_true", help="more prompts with two and more pictures")
    p.add_argument("--tokens", type=int, default=65_536, help="tokens of a picture micro-batch; text takes half")
    p.add_argument("--patches", type=int, default=65_536)
    p.add_argument("--long-tokens", type=int, default=32_768)
    p.add_argument("--workers", type=int, default=14)
    p.add_argument("--eval-rows", type=int, default=24)
    p.add_argument("--eval-lengths", default="1024,2048,4096,8192,16384,32768")
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--smoke", action="store_true")
    return p.parse_args(argv)


def main(argv: list[str] | None = None) -> None:
    o = options(argv)
    began = time.time()
    if o.smoke:
        o.tokens, o.patches, o.long_tokens, o.workers, o.eval_rows, o.eval_lengths = 1536, 1536, 768, 1, 1, "1024"
    out = Path(o.out)
    out.mkdir(parents=True, exist_ok=True)
    ctx = mp.get_context("spawn")
    progress = ctx.Value("d", o.start)
    sizes = {"image": o.tokens, "text": o.tokens // 2, "long": o.long_tokens}
    share = {
        "image": max(1, o.workers * 6 // 10),
        "text": max(1, o.workers * 2 // 10),
        "long": max(1, o.workers * 2 // 10),
    }
    queues: dict[str, Any] = {k: ctx.Queue(6) for k in sizes}
    procs = []
    for k, n in share.items():
        for i in range(n):
            a = (k, o.data, o.seed * 10_000 + len(procs) * 97 + i, sizes[k], o.patches, o.several, queues[k], progress)
            procs.append(ctx.Process(target=work, args=a, daemon=True))
            procs[-1].start()
    tr = Trainer(o.data, "cpu" if o.smoke else "cuda")
    if o.resume:
        load(tr, Path(o.resume), o.fresh_vision)
    feeds = {k: Feeder(tr, q) for k, q in queues.items()}
    for f in feeds.values():
        f.start()
    for layer in tr.net.layers[SIZES.dense_layers :]:
        layer.mlp.count = True
    say(f"parameters {sum(p.numel() for p in tr.net.parameters())}")
    log: list[dict[str, Any]] = []
    acc: dict[str, tuple[int, int]] = {}
    sums: dict[str, float] = {}
    wait, step, start, saved, tokens = 0.0, 0, time.time(), time.time(), 0
    warm_until = 0.35  # the indexer learns beside dense attention before it may choose
    last_print = 0.0
    while o.seconds > 0:
        u = o.start + (1 - o.start) * (time.time() - start) / o.seconds
        if u >= 1:
            break
        progress.value = u
        tr.heads_alone = tr.heads_alone and step < HEADS_ALONE
        local = (time.time() - start) / o.seconds
        fall = min(1.0, (1 - (local if o.start else u)) / 0.6)
        factor = o.peak * min(1.0, (step + 1) / (300 if o.fresh_vision else 100)) * fall
        vision_factor = o.vision_peak * min(1.0, (step + 1) / 50) * fall
        jobs = [("image", "short", 1.0)]
        if not o.picture_run or step % 3 == 0:
            jobs.append(("text", "short", 1.0))
        if step % (10 if o.picture_run else 2 if u < 0.5 else 3) == 1:
            jobs.append(("long", "dense" if u < warm_until or step % 4 == 1 else "sparse", 0.7))
        watch = step % 10 < 2
        for kind, mode, w in jobs:
            t0 = time.time()
            b = feeds[kind].get()
            wait += time.time() - t0
            if kind != "long" and b["ids"].shape[1] > SIZES.block * SIZES.topk:
                mode = "dense" if u < warm_until else "sparse"
            loss, aux, kl, pred = tr.forward(b, mode)
            (w * loss + 0.5 * aux + 0.3 * kl).backward()
            tokens += b["size"]
            if watch:
                merge(acc, accuracy(pred, b))
                for k, v in ((kind, loss), ("aux", aux) if kind == "image" else ("kl_" + mode, kl)):
                    s = float(v.detach())
                    sums[k] = s if k not in sums else 0.8 * sums[k] + 0.2 * s
        tr.opt.step(factor, vision_factor)
        for layer in tr.net.layers[SIZES.dense_layers :]:
            layer.mlp.balance(0.002 * min(1.0, factor * 2))
        step += 1
        now = time.time()
        if now - last_print > (5 if o.smoke else 10):
            last_print = now
            row = {
                "u": round(u, 3),
                "step": step,
                "s": round(now - start, 1),
                "wait": round(wait, 1),
                "tokens": tokens,
                "press": round(float(tr.net.vision.pressure.detach()), 2),
                **{k: round(v, 4) for k, v in sums.items()},
            }
            log.append({**row, "acc": rates(acc)})
            say(json.dumps(row) + " " + " ".join(f"{k}={v:.2f}" for k, v in rates(acc).items()))
            acc = {}
        if now - saved > 150 and not o.smoke:
            save(tr, out, {"log": log})
            saved = now
    say(
        f"trained {step} steps, {tokens} tokens, {time.time() - start:.0f} s (+{start - began:.0f} s start); waited {wait:.1f} s for data"
    )
    if torch.cuda.is_available():
        say(f"peak memory {torch.cuda.max_memory_allocated() / 2**30:.1f} GiB")
    save(tr, out, {"log": log})
    for layer in tr.net.layers[SIZES.dense_layers :]:
        layer.mlp.count = False
    t0 = time.time()
    result = evaluate(
        tr, o.data, o.eval_rows, tuple(int(x) for x in o.eval_lengths.split(",") if x), 3000 if o.smoke else 24_000
    )
    save(tr, out, {"log": log, "eval": result, "steps": step, "tokens": tokens, "seconds": time.time() - start})
    say(json.dumps(result) + f"\nevaluated in {time.time() - t0:.0f} s")
    for p in procs:
        p.terminate()
    os._exit(0)  # feeder threads and queue threads hold nothing worth waiting for


if __name__ == "__main__":
    main()
