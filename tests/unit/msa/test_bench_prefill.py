"""The prefill bench without a GPU: its cases, its floors, and its way through one measurement."""

import pytest
import torch

from engine.bench import msa_prefill
from engine.bench.msa_prefill import PrefillCase, floor_us, parse_cases, union_factor, work
from engine.bench.timing import Timing


def test_cases_are_read_and_bad_ones_named():
    assert parse_cases("1x8192@131072,8x100@60100") == [PrefillCase(1, 8192, 131072), PrefillCase(8, 100, 60_100)]
    with pytest.raises(ValueError, match="'8192' is not REQUESTSxNEW@LENGTH"):
        parse_cases("1x8@9,8192")


def test_work_of_a_first_chunk_is_dense_causal_attention():
    case = PrefillCase(1, 2048, 2048)
    assert work(case)["select_flop"] == 0
    assert work(case)["attend_flop"] == sum(range(1, 2049)) * 64 * 4 * 128


def test_floors_are_those_of_the_design():
    """8,192 queries behind 128k: 1,348 us of scores counts whole blocks to the end; 696 us of attention 16 whole ones."""
    select, attend = floor_us(PrefillCase(1, 8192, 128 * 1024))
    assert 1300 < select < 1360 and 670 < attend < 700
    select, _ = floor_us(PrefillCase(1, 100, 60_100))
    assert 3 < select < 9


def test_the_union_of_equal_choices_is_one_choice():
    same = torch.arange(16, dtype=torch.int32).expand(16, 2, 16)
    assert union_factor(same) == 1
    rows = torch.arange(16, dtype=torch.int32)[:, None, None] * 16
    assert union_factor(same + rows) == 8


def test_a_measurement_goes_through_and_sees_a_fault(monkeypatch):
    def once(call, sets, **_):
        call(0)
        return Timing(1.0, 0.0)

    monkeypatch.setattr(msa_prefill, "time_graph", once)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    reports = []
    case = PrefillCase(1, 9, 2200)
    row = msa_prefill.measure(
        case, torch.device("cpu"), ["reference", "sm90"], ["reference"], False, 3, lambda r: reports.append(dict(r))
    )
    assert row["fault"] == {} and row["best_us"] == 2.0 and len(reports) >= 3
    assert row["default"] == "reference+reference" and set(row["attend"]) == {"reference"}
    assert 1 < row["union"] < 8 and 1 <= row["union_alike"] < row["union"]
    msa_prefill.print_row(row)

    from engine.msa.extend import RowByRow

    monkeypatch.setattr(RowByRow, "attend", lambda self, q, k, v, blocks, table, out, **_: out.zero_())
    row = msa_prefill.measure(case, torch.device("cpu"), [], ["reference"], False, 3, lambda r: None)
    assert "output error" in row["fault"]["attend reference"]
