"""Which kernel does a piece of work, and why: one table, read from the top; the first row that fits is taken.
Phases: `decode` (whole steps), `prefill` (attention of packed new tokens) and `select` (their choice of blocks).

`auto` never fails for work the reference can do. A kernel forced by name is used or refused with the reason, never
replaced. What was chosen and why is logged once, at INFO; later plans that end the same way, at DEBUG. A new kernel is
one file, one entry in KERNELS, PREFILL or SELECT and one row in TABLE: tests and `catalejo bench msa --check` enumerate
them. A kernel without a row runs only by name: so do those that no GPU has timed yet."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from engine.msa.layouts import DecodeShape, MsaArgumentError, PrefillBatch

log = logging.getLogger(__name__)


def architecture(device: torch.device) -> str:
    """`cpu`, or `sm_90` and the like."""
    if device.type != "cuda":
        return device.type
    major, minor = torch.cuda.get_device_capability(device)
    return f"sm_{major}{minor}"


@dataclass(frozen=True)
class Kernel:
    """`refuse` says why the kernel cannot do the work on the device, or None; `make` returns its runner. Work is a
    DecodeShape for decode, else a PrefillBatch."""

    refuse: Callable[[Any, torch.device], str | None]
    make: Callable[[Any, torch.device], Any]


def _sm90_refuse(shape: DecodeShape, device: torch.device) -> str | None:
    from engine.msa.kernels import build, sm90

    if architecture(device) != "sm_90":
        return f"built for sm_90, this is {architecture(device)}"
    return sm90.unsupported(shape) or build.unavailable()


def _sm90_make(shape: DecodeShape, device: torch.device) -> Any:
    from engine.msa.kernels.sm90 import Sm90Runner

    return Sm90Runner(shape, device)


def _emulated_refuse(shape: DecodeShape, device: torch.device) -> str | None:
    from engine.msa.kernels import build, sm90

    if device.type != "cpu":
        return "runs on CPU tensors, for tests"
    return sm90.unsupported(shape) or build.unavailable(emulate=True)


def _emulated_make(shape: DecodeShape, device: torch.device) -> Any:
    from engine.msa.kernels.sm90 import Sm90Runner, Tuning

    return Sm90Runner(shape, device, Tuning(score_ctas=3, depth=2, cluster=2, pdl=False))


def _triton_refuse(shape: DecodeShape, device: torch.device) -> str | None:
    try:
        import triton.knobs

        from engine.msa.kernels import triton_decode
    except ImportError as error:
        return f"Triton is not installed ({error})"
    if device.type == "cpu":
        if not triton.knobs.runtime.interpret:
            return "needs a GPU, or TRITON_INTERPRET=1 for tests"
        dtypes = {shape.query_dtype, shape.kv_dtype, shape.index_dtype}
        if dtypes & {torch.bfloat16, torch.float8_e4m3fn}:
            return "the interpreter multiplies bfloat16 and fp8 wrongly"
    return triton_decode.unsupported(shape)


def _triton_make(shape: DecodeShape, device: torch.device) -> Any:
    from engine.msa.kernels.triton_decode import TritonRunner

    return TritonRunner(shape, device)


def _reference_make(shape: DecodeShape, device: torch.device) -> Any:
    from engine.msa.oracle_decode import ReferenceRunner

    return ReferenceRunner(shape, device)


def _rows_refuse(refuse: Callable[[DecodeShape, torch.device], str | None]) -> Callable[..., str | None]:
    return lambda batch, device: refuse(batch.by_row(), device)


def _rows_make(make: Callable[[DecodeShape, torch.device], Any]) -> Callable[..., Any]:
    def made(batch: PrefillBatch, device: torch.device) -> Any:
        from engine.msa.extend import RowByRow

        return RowByRow(batch, device, make(batch.by_row(), device))

    return made


def _prefill_refuse(batch: PrefillBatch, device: torch.device) -> str | None:
    refusal = _triton_refuse(batch.by_row(), device)
    if refusal is None and max(batch.max_tokens, batch.rows) >= 1 << 26:
        return f"{batch.max_tokens} tokens, {batch.rows} rows: 32-bit lists end at {1 << 26}"
    return refusal


def _block_major_make(batch: PrefillBatch, device: torch.device) -> Any:
    from engine.msa.kernels.triton_block_major import BlockMajorRunner

    return BlockMajorRunner(batch, device)


def _union_make(batch: PrefillBatch, device: torch.device) -> Any:
    from engine.msa.kernels.triton_union import UnionRunner

    return UnionRunner(batch, device)


def _select_refuse(batch: PrefillBatch, device: torch.device) -> str | None:
    shape = DecodeShape(
        batch.rows, batch.groups, 1, 1, batch.max_tokens, batch.query_dtype, batch.query_dtype, batch.index_dtype,
        batch.head_dim, config=batch.config,
    )  # fmt: skip
    if 128 % batch.groups:
        return f"{batch.groups} groups do not divide 128 columns"
    return _triton_refuse(shape, device)


def _split_make(batch: PrefillBatch, device: torch.device) -> Any:
    from engine.msa.kernels.triton_extend import TritonExtendSelect

    return TritonExtendSelect(batch, device)


def _fused_make(batch: PrefillBatch, device: torch.device) -> Any:
    from engine.msa.kernels.triton_prefill_select import FusedSelect

    return FusedSelect(batch, device)


def _reference_select_make(batch: PrefillBatch, device: torch.device) -> Any:
    from engine.msa.extend import ReferenceSelect

    return ReferenceSelect(batch, device)


KERNELS = {
    "sm90": Kernel(_sm90_refuse, _sm90_make),
    "triton": Kernel(_triton_refuse, _triton_make),
    "reference": Kernel(lambda shape, device: None, _reference_make),
    "emulated": Kernel(_emulated_refuse, _emulated_make),
}
PREFILL = {
    **{n: Kernel(_rows_refuse(k.refuse), _rows_make(k.make)) for n, k in KERNELS.items()},
    "block_major": Kernel(_prefill_refuse, _block_major_make),
    "union": Kernel(_prefill_refuse, _union_make),
}
SELECT = {
    "split": Kernel(_select_refuse, _split_make),
    "fused": Kernel(_select_refuse, _fused_make),
    "reference": Kernel(lambda batch, device: None, _reference_select_make),
}
PHASES = {"decode": KERNELS, "prefill": PREFILL, "select": SELECT}


@dataclass(frozen=True)
class Row:
    kernel: str
    architectures: tuple[str, ...]  # empty: any
    phase: str
    fits: Callable[[Any], bool]
    reason: str


def _choosers(batch: PrefillBatch) -> float:
    """Queries that choose a block, at the mean: below about 3, reading it once for all of them saves nothing."""
    blocks = sum(-(-length // batch.config.block_size) for length in batch.lengths)
    return batch.rows * batch.config.topk_blocks / max(1, blocks)


TABLE = (
    Row("sm90", ("sm_90",), "decode", lambda shape: True, "Hopper: two launches, no score array, copy-engine reads"),
    Row("triton", (), "decode", lambda shape: True, "portable: four launches"),
    Row("reference", (), "decode", lambda shape: True, "nothing faster runs here"),
    Row(
        "block_major",
        ("sm_90",),
        "prefill",
        lambda batch: batch.rows >= 64 and _choosers(batch) >= 3,
        "each block is read once for all the queries that chose it",
    ),
    Row("sm90", ("sm_90",), "prefill", lambda batch: True, "Hopper: row by row through the decode kernel"),
    Row("triton", (), "prefill", lambda batch: True, "portable: row by row through the decode kernel"),
    Row("reference", (), "prefill", lambda batch: True, "nothing faster runs here"),
    Row("fused", ("sm_90",), "select", lambda batch: batch.rows >= 256, "no score array, tiles of 32 queries"),
    Row("split", (), "select", lambda batch: True, "scores split over the keys"),
    Row("reference", (), "select", lambda batch: True, "nothing faster runs here"),
)


@dataclass(frozen=True)
class Choice:
    kernel: str
    reason: str


def choose(
    shape: DecodeShape | PrefillBatch, device: torch.device, kernel: str = "auto", phase: str = "decode"
) -> Choice:
    """The kernel for this work. `kernel`: auto, or a name the phase has."""
    kernels = PHASES[phase]
    if kernel != "auto":
        if kernel not in kernels:
            raise MsaArgumentError(f"kernel: {kernel!r} is not one of {', '.join(sorted(kernels))}, auto")
        refusal = kernels[kernel].refuse(shape, device)
        if refusal:
            raise MsaArgumentError(f"kernel: {kernel} cannot do this work: {refusal}")
        return Choice(kernel, "forced by name")
    passed = []
    for row in TABLE:
        if row.phase != phase or (row.architectures and architecture(device) not in row.architectures):
            continue
        if not row.fits(shape):
            continue
        refusal = kernels[row.kernel].refuse(shape, device)
        if refusal is None:
            return Choice(row.kernel, row.reason + (f" ({'; '.join(passed)})" if passed else ""))
        passed.append(f"not {row.kernel}: {refusal}")
    raise MsaArgumentError(f"phase: no kernel for {phase!r}")  # unreachable: the reference does everything


_said: set[tuple[Choice, ...]] = set()


def _level(*choices: Choice) -> int:
    """A server plans for each batch of new tokens: only the first of its kind is news."""
    if choices in _said:
        return logging.DEBUG
    _said.add(choices)
    return logging.INFO


def make(shape: DecodeShape, device: torch.device, kernel: str = "auto") -> tuple[Choice, Any]:
    choice = choose(shape, device, kernel)
    runner = KERNELS[choice.kernel].make(shape, device)
    log.log(
        _level(choice),
        "msa decode on %s: requests %d x %d queries, %d groups, up to %d tokens, %s/%s/%s -> %s: %s",
        architecture(device), shape.requests, shape.queries, shape.groups, shape.max_tokens,
        *(str(d).removeprefix("torch.") for d in (shape.query_dtype, shape.kv_dtype, shape.index_dtype)),
        choice.kernel, choice.reason,
    )  # fmt: skip
    return choice, runner


def make_prefill(
    batch: PrefillBatch, device: torch.device, kernel: str, select: str
) -> tuple[Choice, Any, Choice, Any]:
    """Attention and choice of one batch of new tokens, each with its reason."""
    attend, chosen = choose(batch, device, kernel, "prefill"), choose(batch, device, select, "select")
    log.log(
        _level(attend, chosen),
        "msa prefill on %s: %d rows of %d requests, %d groups, up to %d tokens -> attention %s: %s; choice %s: %s",
        architecture(device), batch.rows, len(batch.lengths), batch.groups, batch.max_tokens,
        attend.kernel, attend.reason, chosen.kernel, chosen.reason,
    )  # fmt: skip
    return attend, PREFILL[attend.kernel].make(batch, device), chosen, SELECT[chosen.kernel].make(batch, device)
