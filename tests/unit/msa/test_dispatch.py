"""The kernel table: what it picks, what it refuses, and that it says why."""

import logging

import pytest
import torch

from engine.msa import dispatch
from engine.msa.config import MsaConfig
from engine.msa.layouts import DecodeShape, MsaArgumentError

CPU = torch.device("cpu")


def shape(**changes):
    return DecodeShape(**{"requests": 2, "groups": 4, "heads": 16, "max_tokens": 4096, **changes})


def test_every_row_of_the_table_names_a_kernel_and_a_reason():
    for row in dispatch.TABLE:
        assert row.kernel in dispatch.PHASES[row.phase] and row.reason
    for phase in dispatch.PHASES:
        last = [row for row in dispatch.TABLE if row.phase == phase][-1]
        assert last.kernel == "reference" and not last.architectures


def test_a_cpu_gets_the_reference_and_hears_why(caplog, monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    monkeypatch.setattr(dispatch, "_said", set())
    with caplog.at_level(logging.INFO, logger="engine.msa.dispatch"):
        choice, _ = dispatch.make(shape(), CPU)
        dispatch.make(shape(requests=3), CPU)
    assert choice.kernel == "reference" and "not triton" in choice.reason
    assert caplog.text.count("-> reference") == 1  # a second plan of the same kind is no news


@pytest.mark.parametrize("name", ["sm90", "triton"])
def test_a_forced_kernel_is_refused_not_replaced(name, monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with pytest.raises(MsaArgumentError, match=f"kernel: {name} cannot do this work"):
        dispatch.choose(shape(), CPU, name)


def test_an_unknown_kernel_is_refused_with_the_list():
    with pytest.raises(
        MsaArgumentError,
        match="'fast' is not one of emulated, reference, sm90, triton, auto",
    ):
        dispatch.choose(shape(), CPU, "fast")


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"head_dim": 64}, "head dim 64"),
        ({"config": MsaConfig(block_size=64)}, "block size 64"),
        ({"config": MsaConfig(topk_blocks=17)}, "top-k 17"),
        ({"heads": 17}, "17 query heads"),
        ({"queries": 9}, "36 query columns|9 queries x 4 groups"),
        ({"query_dtype": torch.float32}, "float32"),
        ({"kv_dtype": torch.float16}, "kv_dtype torch.float16"),
        ({"requests": 4096, "max_tokens": 1 << 20}, "overflow"),
    ],
)
def test_hopper_kernels_refuse_what_they_were_not_built_for(changes, reason):
    from engine.msa.kernels import sm90

    assert sm90.unsupported(shape()) is None
    refusal = sm90.unsupported(shape(**changes))
    assert refusal is not None
    assert any(part in refusal for part in reason.split("|"))


def test_hopper_launch_numbers_fill_the_chip_once():
    from engine.msa.kernels import sm90

    for requests in (1, 2, 8, 32, 100, 512):
        tuning = sm90.choose(shape(requests=requests), 132)
        assert 1 <= tuning.score_ctas <= sm90.MAX_SCORE_CTAS
        assert tuning.cluster in (1, 2, 4, 8, 16)
        assert tuning.cluster == 1 or requests * 4 * tuning.cluster <= 2 * 132
