"""`catalejo bench engine` without SGLang: its words, its table, its loads against the mock engine."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from engine.bench import scaled_m3, serving, serving_load
from engine.bench.serving_load import Plan, Timed
from tests.contract.targets import running

PLAN = Plan(prefix=64, own=20, decode=4, concurrency=(1, 2), new=(3, 40), vocab=400, page=16, repeats=2)


@pytest.fixture
def printed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    lines: list[str] = []
    monkeypatch.setattr(serving, "_say", lines.append)
    return lines


def outcome(**figures: dict[str, Any]) -> dict[str, Any]:
    return {"figures": figures, "greedy": (1, 2, 3), "paths": {"catalejo_msa_layers_total": 7.0}}


def mix(rate: float, ttft: float, **more: Any) -> dict[str, Any]:
    return {"output_tokens_per_s": rate, "ttft_ms": ttft, "tpot_ms": 2.0, **more}


def test_the_table_gives_medians_and_the_gain() -> None:
    results = {
        "off": [outcome(mix=mix(100, 80)), outcome(mix=mix(110, 90)), outcome(mix=mix(105, 100))],
        "auto": [outcome(mix=mix(210, 45)), outcome(mix=mix(200, 40)), outcome(mix=mix(220, 50))],
    }
    rows = {line.split()[1]: line.split() for line in serving.table(results, ["off", "auto"])[1:]}
    assert rows["output_tokens_per_s"][2:5] == ["105.00", "210.00", "2.00x"]
    assert rows["ttft_ms"][2:5] == ["90.00", "45.00", "2.00x"]
    assert rows["ttft_ms"][5:] == ["80.00-100.00", "40.00-50.00"]


def test_one_mode_has_no_gain() -> None:
    (_, *rows) = serving.table({"auto": [outcome(mix=mix(5, 6))]}, ["auto"])
    assert not any("x" in row.split()[-1] for row in rows)


def test_a_prefix_that_was_not_cached_is_said_and_fails(printed: list[str]) -> None:
    done = [Timed(0.1, 0.01, 4, 64, (1,)), Timed(0.1, 0.01, 4, 48, (1,))]
    figure = serving_load.loaded(done, 1.0, 64)
    assert "48" in figure["invalid"]
    assert "invalid" not in serving_load.loaded(done[:1], 1.0, 64)
    given, _ = serving.parse(["--modes", "auto"])
    assert serving.report({"auto": [outcome(mix=figure)]}, given, ["x"]) == 3
    assert any(line.startswith("INVALID auto, mix") for line in printed)


def test_agreement_stops_at_the_first_difference() -> None:
    results = {"off": [{"greedy": (1, 2, 3, 4)}], "auto": [{"greedy": (1, 2, 9, 4)}]}
    assert "2 of 4" in serving.agreement(results, ["off", "auto"])


def test_the_result_file_says_how_it_was_made(tmp_path: Path, printed: list[str], monkeypatch: Any) -> None:
    monkeypatch.setattr(serving, "version", lambda name: "1.0")
    given, _ = serving.parse(["--modes", "auto", "--out", str(tmp_path / "out.json")])
    assert serving.report({"auto": [outcome(mix=mix(5, 6))]}, given, ["python", "--api-key", "hush"]) == 0
    written = json.loads((tmp_path / "out.json").read_text())
    assert "hush" not in written["command"]
    assert written["sizes"]["prefix"] == 60000
    assert "auto    catalejo_msa_layers_total 7" in printed


@pytest.mark.parametrize(
    "words",
    [["--modes", "fast"], ["--modes", "auto,auto"], ["--rounds", "0"], ["--concurrency", "1,0"], ["--new", "x"]],
)
def test_wrong_words_are_refused(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        serving.parse(words)
    said = capsys.readouterr().err
    assert words[0] in said or "1 or more" in said


@pytest.mark.parametrize("dashes", [[], ["--"]])
def test_sglangs_words_are_handed_on_and_win(dashes: list[str], printed: list[str]) -> None:
    code = serving.run(["--dry-run", "--small", *dashes, "--attention-backend", "torch_native", "--dtype", "float32"])
    assert code == 0
    (line,) = printed
    assert "--attention-backend torch_native" in line
    assert "--attention-backend triton" not in line
    assert "--load-format dummy" in line
    assert "--page-size 16" in line


def test_a_flag_with_several_words_leaves_whole() -> None:
    assert serving._without(["--a", "1", "--b", "--c", "2"], {"--a", "--c"}) == ["--b"]


def test_a_server_that_ends_is_reported_with_its_log(tmp_path: Path) -> None:
    line = ["sh", "-c", "echo no such kernel >&2; exit 4"]
    with pytest.raises(serving.BenchError, match="no such kernel"):
        with serving.server(line, "off", tmp_path / "log", "http://127.0.0.1:9", 30):
            pass


@pytest.mark.parametrize("small", [False, True])
def test_scaled_m3_is_m3s_attention(tmp_path: Path, small: bool) -> None:
    made = scaled_m3.write(tmp_path / "m", 8, 6144, small=small)
    sparse = made["sparse_attention_config"]
    assert sparse["sparse_attention_freq"] == [0, 1, 1, 1, 1, 1, 1, 1]
    if not small:
        assert (made["num_attention_heads"], made["num_key_value_heads"], made["head_dim"]) == (64, 4, 128)
        assert (sparse["sparse_block_size"], sparse["sparse_topk_blocks"]) == (128, 16)


@pytest.fixture
def measured(tmp_path: Path) -> Callable[[], dict[str, Any]]:
    def run() -> dict[str, Any]:
        with running("mock", tmp_path / "log") as target:
            return asyncio.run(serving_load.measure(target.url, PLAN, seed=1, token=target.token))

    return run


def test_every_load_runs_against_an_engine(measured: Callable[[], dict[str, Any]]) -> None:
    made = measured()
    assert set(made["figures"]) == {"mix 1", "decode 1", "mix 2", "decode 2", "extend 3", "extend 40"}
    assert made["figures"]["mix 2"]["requests"] == 4
    assert made["figures"]["extend 40"]["requests"] == 2
    assert len(made["greedy"]) == 32
