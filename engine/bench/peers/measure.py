"""Times other engines' kernels beside ours, on the same inputs, after comparing what they choose and give."""

from __future__ import annotations

import argparse
import sys
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch

from engine.bench.msa_prefill import GROUPS, HEADS, Inputs, PrefillCase, fault_of
from engine.bench.peers import PeerUnavailableError, in_our_order, sglang, vllm
from engine.bench.timing import time_graph
from engine.msa import dispatch

if TYPE_CHECKING:
    from engine.bench.msa import Ours

PEERS: dict[str, ModuleType] = {"sglang": sglang, "vllm": vllm}


def load_peers(args: argparse.Namespace) -> tuple[dict[str, SimpleNamespace], list[str]]:
    """Functions by name of the peers whose folders are in `args`, and the names of those that could not be loaded."""
    found, lost = {}, []
    for name, peer in PEERS.items():
        folder = getattr(args, name)
        if folder is None:
            continue
        try:
            found[name] = peer.load(folder)
        except (PeerUnavailableError, ImportError) as error:
            print(f"{name}: {error}", file=sys.stderr)
            lost.append(name)
    return found, lost


def measure_decode(name: str, functions: SimpleNamespace, ours: Ours, repeats: int, row: dict[str, Any]) -> None:
    """Adds to `row`, with the peer's name in front: gap (relative, of the outputs), same_choice (share of rows and groups),
    microseconds of select, attend and step, ratio (its step over ours). ours.blocks: our choice of every set."""
    inputs = ours.i
    theirs = PEERS[name].Decode(inputs, functions)
    for s in range(inputs.sets):
        theirs.select(s)
    theirs.attend(0)
    ours.step(0)
    row[f"{name}_gap"] = ((theirs.out.float() - ours.out.float()).norm() / ours.out.float().norm()).item()
    same = [in_our_order(theirs.blocks[s]) == ours.blocks[s] for s in range(inputs.sets)]
    row[f"{name}_same_choice"] = torch.stack(same).all(-1).float().mean().item()
    for what in ("select", "attend", "step", *getattr(theirs, "more", ())):
        row[f"{name}_{what}"] = time_graph(getattr(theirs, what), inputs.sets, repeats=repeats).us
    row[f"{name}_ratio"] = row[f"{name}_step"] / row["step"]


def measure_prefill(
    name: str, functions: SimpleNamespace, case: PrefillCase, device: torch.device, seed: int, groups: int = GROUPS,
    heads: int = HEADS,
) -> dict[str, Any]:  # fmt: skip
    """same_choice (share of rows and groups), microseconds of select and attend, and `fault` if our reference finds one."""
    i = Inputs.of(case, device, seed, groups, heads)
    theirs = PEERS[name].Prefill(i, functions)
    theirs.select(0)
    theirs.attend(0)
    chosen = in_our_order(theirs.blocks)
    mine = torch.empty_like(chosen)
    dispatch.SELECT["split"].make(i.batch, device).run(i.index_q, i.index_k, i.tables[0], mine)
    row: dict[str, Any] = {"same_choice": (chosen == mine).all(-1).float().mean().item()}
    fault = fault_of(i, chosen, theirs.out, i.index_q)
    if fault:
        row["fault"] = fault
    replays = 3 if case.new > 1000 else 9
    for what in ("select", "attend", *getattr(theirs, "more", ())):
        row[what] = time_graph(getattr(theirs, what), len(i.tables), replays=replays).us
    return row
