"""`catalejo bench engine` without SGLang: its words, its table, its loads against the mock engine."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from engine.bench import scaled_m3, serving, serving_load, serving_profile, serving_report, serving_server
from engine.bench.serving_load import BenchError, Loads, Outcome, Plan, Timed
from engine.bench.step import Machine, Model
from tests.contract.targets import running

PLAN = Plan(prefix=64, own=20, decode=4, concurrency=(1, 2), new=(3, 40), vocab=400, page=16, repeats=2)


@pytest.fixture
def printed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    lines: list[str] = []
    monkeypatch.setattr(serving, "_say", lines.append)
    return lines


def outcome(*passes: dict[str, Any], layers: dict[str, Any] | None = None) -> Outcome:
    return Outcome({"mix 8": list(passes)}, (1, 2, 3), {"catalejo_msa_layers_total": 7.0}, layers=layers or {})


def mix(rate: float, ttft: float, **more: Any) -> dict[str, Any]:
    return {"output_tokens_per_s": rate, "ttft_ms": ttft, "tpot_ms": 2.0, **more}


def bench(words: list[str], **results: list[Outcome]) -> serving.Bench:
    given, _ = serving.parse(["--modes", ",".join(results), *words])
    made = serving.Bench(given, ["python", "--api-key", "hush"], PLAN)
    made.results = results
    return made


@pytest.fixture(autouse=True)
def _versions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "version", lambda name: "1.0")


def test_the_table_gives_medians_over_rounds_and_passes_and_the_gain() -> None:
    results = {
        "off": [outcome(mix(100, 80), mix(110, 90)), outcome(mix(105, 100))],
        "auto": [outcome(mix(210, 45)), outcome(mix(200, 40), mix(220, 50))],
    }
    rows = {line.split()[2]: line.split()[1:] for line in serving_report.table(results, ["off", "auto"])[1:]}
    assert rows["output_tokens_per_s"][2:5] == ["105.00", "210.00", "2.00x"]
    assert rows["ttft_ms"][2:5] == ["90.00", "45.00", "2.00x"]
    assert rows["ttft_ms"][5:] == ["80.00-100.00", "40.00-50.00"]


def test_one_mode_has_no_gain() -> None:
    (_, *rows) = serving_report.table({"auto": [outcome(mix(5, 6))]}, ["auto"])
    assert rows
    assert not any("x" in row.split()[-1] for row in rows)


def test_a_load_that_one_mode_had_no_time_for_is_left_out_of_the_table() -> None:
    short, whole = outcome(mix(1, 2)), outcome(mix(2, 1))
    whole.figures["extend 16"] = [{"ttft_ms": 4.0}]
    for order in ({"off": [short], "auto": [whole]}, {"off": [whole], "auto": [short]}):
        assert not any("extend" in line for line in serving_report.table(order, ["off", "auto"]))


def test_a_prefix_that_was_not_cached_is_said_and_fails(printed: list[str]) -> None:
    done = [Timed(0.1, 0.01, 4, 64, (1,)), Timed(0.1, 0.01, 4, 48, (1,))]
    figure = serving_load.loaded(done, 1.0, 64)
    assert "48" in figure["invalid"]
    assert "invalid" not in serving_load.loaded(done[:1], 1.0, 64)
    assert bench([], auto=[outcome(figure)]).report() == 3
    assert any(line.startswith("INVALID auto, mix") for line in printed)


def test_agreement_stops_at_the_first_difference() -> None:
    results = {"off": [Outcome(greedy=(1, 2, 3, 4))], "auto": [Outcome(greedy=(1, 2, 9, 4))]}
    assert "2 of 4" in serving_report.agreement(results, ["off", "auto"])
    assert "no answer" in serving_report.agreement({"off": [Outcome()]}, ["off"])


def test_the_result_file_says_how_it_was_made(tmp_path: Path, printed: list[str]) -> None:
    assert bench(["--out", str(tmp_path / "out.json")], auto=[outcome(mix(5, 6))]).report() == 0
    written = json.loads((tmp_path / "out.json").read_text())
    assert "hush" not in written["command"]
    assert written["sizes"]["prefix"] == 60000
    assert written["results"]["auto"][0]["figures"]["mix 8"][0]["ttft_ms"] == 6
    assert "auto    catalejo_msa_layers_total 7" in printed


def test_every_load_is_written_and_said_as_it_ends(tmp_path: Path, printed: list[str]) -> None:
    made, one = bench(["--out", str(tmp_path / "out.json")], off=[], auto=[]), outcome(mix(5, 6))
    made.note("off", "mix 8", one)
    made.note("off", "mix 8", one)
    assert len(json.loads((tmp_path / "out.json").read_text())["results"]["off"]) == 1
    assert "off: mix 8 output_tokens_per_s 5.00, ttft_ms 6.00" in printed[-1]


def test_a_server_that_fails_costs_its_own_column_only(tmp_path: Path, printed: list[str], monkeypatch: Any) -> None:
    made = bench(["--out", str(tmp_path / "out.json")], off=[], auto=[])

    def one(number: int, mode: str, later: int) -> None:
        if mode == "off":
            raise BenchError("it ended\nof a reason")
        made.results[mode].append(outcome(mix(5, 6)))

    monkeypatch.setattr(made, "one", one)
    made.run()
    assert made.report() == 1
    assert any(line.startswith("mix 8") for line in printed)
    assert printed[-1] == "catalejo bench engine: round 1, off: it ended"
    assert "of a reason" in json.loads((tmp_path / "out.json").read_text())["errors"][0]


def test_a_time_that_is_over_begins_no_server(printed: list[str]) -> None:
    made = bench(["--seconds", "0.5"], off=[])
    made.run()
    assert made.report() == 1
    assert printed == ["catalejo bench engine: round 1, off: no time left"]


def kernel(name: str, start: float, duration: float, category: str = "kernel") -> dict[str, Any]:
    return {"ph": "X", "cat": category, "name": name, "ts": start, "dur": duration}


def test_a_trace_gives_attention_per_layer_of_its_kind_and_counts_overlap_once(tmp_path: Path) -> None:
    layer = [("_decode_score_kernel", 0, 10), ("_gqa_share_sparse_decode_kernel", 8, 6), ("gemm", 14, 30)]
    events = [kernel(name, 100 * i + start, duration) for i in range(3) for name, start, duration in layer]
    events += [
        kernel("_flash_attn_fwd_with_block_score_kernel", 400, 70),
        kernel("_gqa_share_sparse_fwd_kernel", 480, 20),
    ]
    events.append(kernel("cpu_op", 0, 1000, "cpu_op"))
    (tmp_path / "a.trace.json").write_text(json.dumps({"traceEvents": events[::-1]}))
    found = {kind: serving_profile.read(tmp_path, kind) for kind in ("decode", "extend")}
    assert {kind: (one["layers_seen"], one["attention_us"]) for kind, one in found.items() if one} == {
        "decode": (3, 14),
        "extend": (1, 90),
    }
    (tmp_path / "a.trace.json").write_text('{"traceEvents": [')
    assert serving_profile.read(tmp_path, "decode") is None


@pytest.mark.parametrize(
    "name",
    [
        "void kernel<msa::Score<msa::Bf16, 4>, msa::ScoreParams>(msa::ScoreParams)",
        "void cluster_kernel<msa::Attend<msa::Bf16> >(msa::AttendParams, int)",
        "_choose_kernel",
        "_flash_attn_fwd_with_block_score_kernel",
    ],
)
def test_sparse_attention_is_known_by_name(name: str) -> None:
    assert serving_profile.SPARSE.search(name)
    assert not serving_profile.SPARSE.search("fused_moe_kernel")


def test_the_projection_takes_the_measured_attention_into_a_step_of_all_layers() -> None:
    results = {
        mode: [outcome(mix(1, 1), layers={"decode 8": {"attention_us": us}, "extend 16": {"attention_us": 2 * us},
                                          "decode 1": {"error": "no trace came"}})]
        for mode, us in (("off", 100.0), ("auto", 50.0))
    }  # fmt: skip
    lines = serving_report.projected(results, ["off", "auto"], {"prefix": 60000, "own": 2000}, Model(), Machine())
    steps = [line.split() for line in lines if "step ms" in line]
    assert [s[:2] for s in steps] == [["decode", "8"], ["extend", "16"]]
    off, on = float(steps[0][4]), float(steps[0][5])
    assert off - on == pytest.approx(57 * 50 / 1000, abs=0.02)
    assert serving_report.projected({"off": [Outcome()]}, ["off"], {"prefix": 1, "own": 1}, Model(), Machine()) == []


@pytest.mark.parametrize(
    "words",
    [
        ["--modes", "fast"],
        ["--modes", "auto,auto"],
        ["--rounds", "0"],
        ["--concurrency", "1,0"],
        ["--new", "x"],
        ["--share", "3"],
        ["--far", "-1"],
    ],
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
    with pytest.raises(BenchError, match="no such kernel"):
        with serving_server.server(line, "off", tmp_path / "log", "http://127.0.0.1:9", 30):
            pass


@pytest.mark.parametrize("small", [False, True])
def test_scaled_m3_is_m3s_attention(tmp_path: Path, small: bool) -> None:
    made = scaled_m3.write(tmp_path / "m", 8, 6144, small=small)
    sparse = made["sparse_attention_config"]
    assert sparse["sparse_attention_freq"] == [0, 1, 1, 1, 1, 1, 1, 1]
    if not small:
        assert (made["num_attention_heads"], made["num_key_value_heads"], made["head_dim"]) == (64, 4, 128)
        assert (sparse["sparse_block_size"], sparse["sparse_topk_blocks"]) == (128, 16)


def test_a_share_has_one_gpus_heads(tmp_path: Path) -> None:
    made = scaled_m3.write(tmp_path / "m", 8, 6144, small=False, share=8)
    heads = (made["num_attention_heads"], made["num_key_value_heads"])
    assert (*heads, made["sparse_attention_config"]["sparse_num_index_heads"]) == (8, 1, 1)


Measured = Callable[..., Outcome]


@pytest.fixture
def measured(tmp_path: Path) -> Measured:
    def run(plan: Plan = PLAN, **more: Any) -> Outcome:
        with running("mock", tmp_path / "log") as target:
            return asyncio.run(serving_load.measure(target.url, plan, seed=1, token=target.token, **more))

    return run


def test_every_load_runs_against_an_engine(measured: Measured) -> None:
    told: list[str] = []
    made = measured(note=lambda name, _: told.append(name))
    loads = ["mix 1", "decode 1", "mix 2", "decode 2", "extend 3", "extend 40"]
    assert list(made.figures) == loads
    assert told == ["warm", *loads]
    assert made.figures["mix 2"][0]["requests"] == 4
    assert made.figures["extend 40"][0]["requests"] == 2
    assert len(made.greedy) == 32


def test_passes_repeat_the_loads_and_a_far_prefix_is_extended_once(measured: Measured) -> None:
    made = measured(dataclasses.replace(PLAN, passes=2, far=160))
    assert len(made.figures["mix 2"]) == len(made.figures["extend 3"]) == 2
    assert [len(made.figures[name]) for name in ("far prefix", "far 3", "far 40")] == [1, 1, 1]


def test_loads_without_time_are_left_out_and_named(measured: Measured) -> None:
    made = measured(until=0.0)
    assert made.figures == {}
    assert made.skipped == ["mix 1", "decode 1", "mix 2", "decode 2", "extend 3", "extend 40"]


def test_what_breaks_in_a_load_is_a_bench_error_with_its_name(measured: Measured) -> None:
    async def breaks(loads: Loads) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(loads.client.one([], 1))

    with pytest.raises(BenchError, match=r"profile: BenchError.*HTTP 400"):
        measured(profile=breaks)


def test_a_profile_that_is_refused_costs_no_figures(measured: Measured) -> None:
    made = measured(profile=serving_profile.profile)
    assert "HTTP 404" in made.layers["decode 2"]["error"]
    assert len(made.figures) == 6
