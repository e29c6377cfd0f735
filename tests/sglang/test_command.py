"""The SGLang command line: defaults per GPU, the operator's flags win, nothing secret is printed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from engine.sglang import cli, command
from engine.sglang.command import Gpus

H200X8 = Gpus(8, "NVIDIA H200", 140, "9.0")


def build(model: Path, more: list[str] | None = None, gpus: Gpus = H200X8, token: str | None = None) -> list[str]:
    return command.build(model, "127.0.0.1", 30000, token, None, more or [], gpus)[0]


def value(line: list[str], flag: str) -> str:
    assert line.count(flag) == 1
    return line[line.index(flag) + 1]


def test_eight_hoppers(tmp_path: Path) -> None:
    line = build(tmp_path)
    assert value(line, "--tp-size") == "8"
    assert value(line, "--page-size") == "128"
    assert value(line, "--attention-backend") == "fa3"
    assert line[1:3] == ["-m", "sglang.launch_server"]


def test_no_gpu_no_gpu_flags(tmp_path: Path) -> None:
    line = build(tmp_path, gpus=Gpus(0))
    assert not {"--tp-size", "--attention-backend", "--mem-fraction-static"} & set(line)


@pytest.mark.parametrize("more", [["--page-size", "64"], ["--page-size=64"]])
def test_the_operators_flag_replaces_the_default(tmp_path: Path, more: list[str]) -> None:
    line = build(tmp_path, more)
    assert sum(word.startswith("--page-size") for word in line) == 1
    assert line[-len(more) :] == more


@pytest.mark.parametrize("flag", ["--tp", "--tensor-parallel-size", "--dp-size"])
def test_another_spelling_replaces_it_too(tmp_path: Path, flag: str) -> None:
    assert "--tp-size" not in build(tmp_path, [flag, "4"])


@pytest.mark.parametrize(("gpus", "size"), [(1, 1), (2, 2), (3, 2), (4, 4), (7, 4), (8, 8), (16, 8)])
def test_tensor_parallel(gpus: int, size: int) -> None:
    assert command.tensor_parallel(gpus) == size


@pytest.mark.parametrize(
    "config",
    [
        {"text_config": {"sparse_attention_config": {"sparse_block_size": 16}}},
        {"text_config": {"index_block_size": 16}},
        {"sparse_attention_config": {"sparse_block_size": 16}},
    ],
)
def test_the_page_is_the_checkpoints_block(tmp_path: Path, config: object) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert value(build(tmp_path), "--page-size") == "16"


def test_dry_run_prints_the_command_and_hides_the_token(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = cli.run_argv(["--dry-run", "--kv-cache-dtype", "fp8_e4m3"], model=tmp_path, token="hush-hush")
    out = capsys.readouterr().out
    assert code == 0
    assert "hush-hush" not in out
    assert "--kv-cache-dtype fp8_e4m3" in out
    assert "--dry-run" not in out
    assert "default --page-size 128: " in out


def test_without_sglang_it_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cli.importlib.util, "find_spec", lambda name: None)
    assert cli.run_argv([], model=tmp_path) == 1
    assert "catalejo[engine-sglang]" in capsys.readouterr().err


def test_a_plugin_list_that_leaves_us_out_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    class Entry:
        name, value = "catalejo", "engine.sglang:register"

    monkeypatch.setattr(cli.importlib.util, "find_spec", lambda name: object())
    monkeypatch.setattr(cli, "entry_points", lambda group: [Entry()])
    monkeypatch.setenv("SGLANG_PLUGINS", "others")
    assert "leaves our plugin out" in (cli.fault() or "")
    monkeypatch.setenv("SGLANG_PLUGINS", "others, catalejo")
    monkeypatch.setattr("engine.sglang.plugin.sglang_version", lambda: "0.5.23")
    assert cli.fault() is None
    monkeypatch.setattr("engine.sglang.plugin.sglang_version", lambda: "0.5.99")
    assert "no adapter" in (cli.fault() or "")
    monkeypatch.setattr(cli, "entry_points", lambda group: [])
    assert "entry point" in (cli.fault() or "")


@pytest.mark.parametrize(
    "flags", [["--enable-lmcache"], ["--radix-cache-backend=flexkv"], ["--enable-flexkv", "--tp", "2"]]
)
def test_a_cache_that_would_lose_index_keys_is_refused_by_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, flags: list[str]
) -> None:
    monkeypatch.setattr(cli, "_become", lambda line: pytest.fail("SGLang was started"))
    assert cli.run_argv(flags, model=tmp_path) == 1
    said = capsys.readouterr().err
    assert flags[0].split("=")[0] in said
    assert "--enable-hierarchical-cache" in said


def test_hicache_is_no_conflict() -> None:
    assert cli.conflict(["--enable-hierarchical-cache", "--hicache-ratio", "2"]) is None


SMI = """#!/bin/sh
echo "0, GPU-11aa, NVIDIA H200, 143771, 9.0"
echo "1, GPU-22bb, NVIDIA H200, 143771, 9.0"
"""


@pytest.mark.parametrize(
    ("visible", "count"),
    [(None, 2), ("0,1", 2), ("1", 1), ("GPU-22", 1), ("1, GPU-11aa", 2), ("", 0), ("-1", 0), ("0,7,1", 1)],
)
def test_gpus_are_those_that_cuda_leaves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, visible: str | None, count: int
) -> None:
    tool = tmp_path / "nvidia-smi"
    tool.write_text(SMI)
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    if visible is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert command.visible_gpus() == (Gpus(count, "NVIDIA H200", 140, "9.0") if count else Gpus(0))
