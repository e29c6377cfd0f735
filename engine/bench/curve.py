"""Speed-up against context: `python -m engine.bench.curve [results.json ...] [--svg FILE]`.

Prints the paper's FLOP table (attention of one layer per token, mean over a causal sequence of N) and, from files that
`catalejo bench msa --json` or gpu_plan wrote, how much faster the measured step or chunk is than dense attention.
dense 2 H d N;  block-sparse Hi d N (scores) + 4 H d k B.  M3: H 64, Hi 4, d 128, B 128, k 16."""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path
from typing import Any

H, HI, D, B, KB = 64, 4, 128, 128, 16
CONTEXTS = tuple(1 << n for n in range(13, 21))
WIDTH, HEIGHT, LEFT, BOTTOM = 640, 400, 60, 50
COLOURS = ("#1f4e79", "#b5521b", "#2f7d32", "#6a3d9a")
Curve = list[tuple[int, float]]


def flops(context: int) -> tuple[float, float]:
    """Dense and block-sparse FLOP of one token's attention in one layer (the paper's 3.3)."""
    return 2.0 * context * H * D, 1.0 * context * HI * D + 4.0 * KB * B * H * D


def reports(path: Path) -> list[dict[str, Any]]:
    """The reports in one file: a bench's own, or those of all items of a plan."""
    content = json.loads(path.read_text())
    return [i["figures"] for i in content["items"].values() if i.get("figures")] if "items" in content else [content]


def measured(found: list[dict[str, Any]]) -> dict[str, Curve]:
    """Speed-ups over the better dense kernel: decode at batch 1 in bf16, prefill by chunk length."""
    decode, dense = {}, {}
    curves: dict[str, Curve] = {}
    for report in found:
        for row in report.get("rows", ()):
            if row.get("requests") == 1 and row.get("fp8") is False:
                decode[row["tokens"]] = row["step"]
            if row.get("dense") and row.get("best_us"):
                curves.setdefault(f"prefill, last {row['new']}", []).append(
                    (row["length"], min(row["dense"].values()) / row["best_us"])
                )
        for row in report.get("dense", ()):
            times = [row[name] for name in ("flash", "cudnn") if name in row]
            if row["requests"] == 1 and times:
                dense[row["tokens"]] = min(times)
    both = sorted(decode.keys() & dense.keys())
    if both:
        curves["decode, batch 1"] = [(n, dense[n] / decode[n]) for n in both]
    return {name: sorted(curve) for name, curve in curves.items()}


def svg(curves: dict[str, Curve]) -> str:
    """Both axes logarithmic."""
    points = [p for curve in curves.values() for p in curve]
    low, high = (math.log2(f(x for x, _ in points)) for f in (min, max))
    top = max(1.0, math.ceil(math.log2(max(y for _, y in points))))
    least = min(0.0, math.floor(math.log2(min(y for _, y in points))))

    def x_of(x: float) -> float:
        return LEFT + (math.log2(x) - low) / max(1e-9, high - low) * (WIDTH - LEFT - 20)

    def y_of(y: float) -> float:
        return HEIGHT - BOTTOM - (math.log2(y) - least) / (top - least) * (HEIGHT - BOTTOM - 20)

    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="12">',
           f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>']  # fmt: skip
    for e in range(math.ceil(low), math.floor(high) + 1):
        label = f"{(1 << e) >> 10}k" if e < 20 else "1M"
        out.append(f'<text x="{x_of(1 << e):.0f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{label}</text>')
    for power in range(int(least), int(top) + 1):
        y = y_of(2.0**power)
        out.append(f'<line x1="{LEFT}" x2="{WIDTH - 20}" y1="{y:.0f}" y2="{y:.0f}" stroke="#ddd"/>')
        out.append(f'<text x="{LEFT - 8}" y="{y + 4:.0f}" text-anchor="end">{2.0**power:g}x</text>')
    for n, (name, curve) in enumerate(curves.items()):
        colour, dash = COLOURS[n % len(COLOURS)], ' stroke-dasharray="5 4"' if n == 0 else ""
        line = " ".join(f"{x_of(x):.1f},{y_of(y):.1f}" for x, y in curve)
        out.append(f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="2"{dash}/>')
        out.append(f'<text x="{LEFT + 12}" y="{36 + 16 * n}" fill="{colour}">{name}</text>')
    out.append(f'<text x="{(WIDTH + LEFT) // 2}" y="{HEIGHT - 10}" text-anchor="middle">context, tokens</text></svg>')
    return "\n".join(out)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("results", nargs="*", type=Path)
    parser.add_argument("--svg", type=Path)
    args = parser.parse_args(arguments)
    print("context      dense MFLOP   sparse MFLOP   ratio")
    for n in CONTEXTS:
        dense, sparse = flops(n)
        print(f"{n:8d} {dense / 1e6:15.1f} {sparse / 1e6:14.1f} {dense / sparse:7.1f}")
    curves: dict[str, Curve] = {"FLOP, dense / block-sparse": [(n, flops(n)[0] / flops(n)[1]) for n in CONTEXTS]}
    curves |= measured([report for path in args.results for report in reports(path)])
    for name, curve in list(curves.items())[1:]:
        print(f"{name}: " + ", ".join(f"{n} {ratio:.2f}x" for n, ratio in curve))
    if args.svg:
        args.svg.write_text(svg(curves))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
