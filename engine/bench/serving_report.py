"""What the servers gave, side by side: figures, the layers' attention, and what it means for the whole model."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from engine.bench.serving_load import Outcome
from engine.bench.step import Machine, Model, project

FIGURES = ("output_tokens_per_s", "ttft_ms", "tpot_ms")
Results = Mapping[str, Sequence[Outcome]]


def all_of(outcomes: Sequence[Outcome], load: str) -> list[dict[str, Any]]:
    """A load's figures over rounds and passes."""
    return [figure for outcome in outcomes for figure in outcome.figures.get(load, ())]


def loads_of(results: Results, modes: Sequence[str]) -> list[str]:
    """Loads that every mode has, in the order in which they were run."""
    shared: dict[str, None] = {}
    for outcome in results[modes[0]]:
        shared.update(dict.fromkeys(outcome.figures))
    return [load for load in shared if all(all_of(results[mode], load) for mode in modes)]


def table(results: Results, modes: Sequence[str]) -> list[str]:
    """One line per figure: medians over rounds and passes and, of two modes, the gain of the second over the first."""
    out = [_head(f"{'load':<14}{'figure':<22}", modes)]
    for load in loads_of(results, modes):
        cells = [all_of(results[mode], load) for mode in modes]
        for figure in (name for name in FIGURES if name in cells[0][0]):
            values = [[one[figure] for one in cell] for cell in cells]
            middle = [statistics.median(value) for value in values]
            line = f"{load:<14}{figure:<22}" + "".join(f"{value:>12.2f}" for value in middle)
            if len(modes) == 2:
                better = middle[1] / middle[0] if figure == "output_tokens_per_s" else middle[0] / middle[1]
                line += f"{better:>7.2f}x"
            if len(values[0]) > 1:
                line += "   " + "  ".join(f"{min(value):.2f}-{max(value):.2f}" for value in values)
            out.append(line)
    return out + [f"INVALID {line}" for line in invalid(results)]


def _head(left: str, modes: Sequence[str]) -> str:
    return left + "".join(f"{mode:>12}" for mode in modes) + (f"{'gain':>8}" if len(modes) == 2 else "")


def invalid(results: Results) -> list[str]:
    return sorted(
        {
            f"{mode}, {load}: {figure['invalid']}"
            for mode, outcomes in results.items()
            for outcome in outcomes
            for load, figures in outcome.figures.items()
            for figure in figures
            if "invalid" in figure
        }
    )


def agreement(results: Results, modes: Sequence[str]) -> str:
    """How many greedy tokens of one prompt the modes have in common before they part."""
    answers = [outcome.greedy for mode in modes for outcome in results[mode] if outcome.greedy]
    if not answers:
        return "greedy: no answer came"
    same = next((i for i, ids in enumerate(zip(*answers, strict=True)) if len(set(ids)) > 1), len(answers[0]))
    return f"greedy: {same} of {len(answers[0])} tokens of one prompt are equal in all runs"


def attention(results: Results, modes: Sequence[str]) -> dict[str, list[float]]:
    """By load, for each mode: median microseconds of one sparse layer's attention. Loads that every mode has."""
    out: dict[str, list[float]] = {}
    for load in (name for outcome in results[modes[0]] for name in outcome.layers):
        cells = [[o.layers[load]["attention_us"] for o in results[m] if "attention_us" in o.layers.get(load, {})]
                 for m in modes]  # fmt: skip
        if all(cells):
            out[load] = [statistics.median(cell) for cell in cells]
    return out


def projected(
    results: Results, modes: Sequence[str], sizes: Mapping[str, int], model: Model, machine: Machine
) -> list[str]:
    """One line per profiled load: a sparse layer's attention as measured and a step of all layers. The rest of a layer is
    stated arithmetic (engine/bench/step.py), the same for every mode. `sizes`: prefix and own, in tokens."""
    found = attention(results, modes)
    if not found:
        return []
    out = [_head(f"{'load':<14}{'of a sparse layer':<22}", modes), *(
        f"{load:<14}{'attention us':<22}" + "".join(f"{us:>12.1f}" for us in cell)
        + (f"{cell[0] / cell[1]:>7.2f}x" if len(cell) == 2 else "")
        for load, cell in found.items()
    )]  # fmt: skip
    layers = model.sparse_layers + model.dense_layers
    out.append(f"projected: {layers} layers on {machine.gpus} GPUs; stated: {machine}")
    for load, cell in found.items():
        kind, count = load.split()
        decoding, chunk = (int(count), 0) if kind == "decode" else (0, int(count))
        length = sizes["prefix"] + (sizes["own"] if kind == "decode" else chunk)
        steps = [project(model, machine, us, decoding, chunk, length) for us in cell]
        line = f"{load:<14}{'step ms':<22}" + "".join(f"{step.step_ms:>12.2f}" for step in steps)
        if len(steps) == 2:
            line += f"{steps[0].step_ms / steps[1].step_ms:>7.2f}x"
        out.append(line + "   attention's share " + " ".join(f"{step.share:.0%}" for step in steps))
    return out
