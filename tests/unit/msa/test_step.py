"""The step bench without a GPU: its operators at tiny sizes, and the projection from stated inputs."""

import pytest

from engine.bench.step import CHUNK, Machine, Model, main, project, report

MODEL, MACHINE = Model(), Machine()


def test_weights_are_the_models():
    """6.42 B of attention over 60 layers, 413.1 B of experts over 57 layers (docs of the checkpoint)."""
    assert MODEL.projections * 60 == pytest.approx(6.42e9 + 0.224e9, rel=0.02)
    assert MODEL.expert * MODEL.experts * MODEL.sparse_layers == pytest.approx(413.1e9, rel=0.001)


def test_amdahl_is_kept():
    none, some = (project(MODEL, MACHINE, us, 8, 0, 62_000) for us in (0.0, 100.0))
    assert none.share == 0 and some.share == pytest.approx(100 / some.layer_us)
    assert some.step_ms - none.step_ms == pytest.approx(57 * 100 / 1000)
    rows = report(MODEL, MACHINE, 8, {"theirs": (100.0, 5000.0), "ours": (100.0, 500.0)})
    assert [r["faster"] for r in rows[:3]] == [1, 1, 1] and 1 < rows[3]["faster"] < 5500 / 600
    assert [r["chunk"] for r in rows] == [0, 0, CHUNK, CHUNK]


def test_more_tokens_touch_more_experts_but_no_more_than_there_are():
    few, many, all_ = (MACHINE.rest_us(MODEL, n) for n in (1, 32, 500))
    assert few < many < all_
    weights = MODEL.projections + 129 * MODEL.expert
    assert all_ <= MACHINE.us(weights, 2 * 500 * (MODEL.projections + 5 * MODEL.expert)) + 2 * MACHINE.allreduce_us


def test_the_way_without_a_gpu(monkeypatch, capsys):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert main([]) == 2
    assert main(["--check"]) == 0
    assert capsys.readouterr().out.count("ok") == 2
