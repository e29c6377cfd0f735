"""Other harnesses, by their own commands with their own settings; each is asked for the same load as ours.

Each sends `ROUNDS` requests per stream, started over `RAMP_S`, without a warm-up, so that its report and the server's truth
are about the same requests; tokens are the server's count where it can be told so. All of them want a tokenizer to make
prompts with: they get one token per byte, made here, which costs them least and needs no network."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from loadtest.bench.truth import PROMPT_TOKENS, RAMP_S, ROUNDS, TOKENS, PeerError, Seen

TIMEOUT_S = 900
_HUB_NAME = "catalejo/bytes"


def byte_tokenizer(folder: Path) -> None:
    """Writes tokenizer.json and tokenizer_config.json: byte-level BPE without merges."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    folder.mkdir(parents=True)
    vocabulary = {symbol: i for i, symbol in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"}))


def hub_cache(home: Path) -> None:
    """The tokenizer as an entry of a model hub's cache. AIPerf's processes look a tokenizer up there even when its name is a
    folder's path (0.13: `_from_pretrained_local` passes the path to `snapshot_download`)."""
    entry = home / "hub" / f"models--{_HUB_NAME.replace('/', '--')}"
    byte_tokenizer(entry / "snapshots" / "0")
    (entry / "refs").mkdir()
    (entry / "refs" / "main").write_text("0")


def _run(command: list[str], folder: Path) -> None:
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(folder / "hub-home")}
    try:
        done = subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True, errors="replace", timeout=TIMEOUT_S
        )
    except subprocess.TimeoutExpired:
        raise PeerError(f"not done after {TIMEOUT_S} s") from None
    except OSError as e:
        raise PeerError(f"{command[0]}: {e.strerror}") from None
    if done.returncode:
        said = [line.strip() for line in (done.stdout + "\n" + done.stderr).splitlines() if line.strip()]
        raise PeerError(f"exit code {done.returncode}: {said[-1] if said else 'no output'}")


def aiperf(program: str, folder: Path, url: str, streams: int) -> Seen:
    hub_cache(folder / "hub-home")
    command = [
        program, "profile", "-m", "m", "--endpoint-type", "chat", "--streaming", "-u", url, "--tokenizer", _HUB_NAME,
        "--concurrency", str(streams), "--concurrency-ramp-duration", str(RAMP_S), "--request-count", str(streams * ROUNDS),
        "--isl", str(PROMPT_TOKENS), "--osl", str(TOKENS), "--use-server-token-count",
        "--output-artifact-dir", str(folder / "out"), "--ui", "none",
    ]  # fmt: skip
    _run(command, folder)
    found = next((folder / "out").rglob("profile_export_aiperf.json"))
    metrics: dict[str, Any] = json.loads(found.read_text())
    ttft = metrics["time_to_first_token"]
    return Seen(ttft["count"], ttft["avg"], ttft["p99"], metrics["inter_token_latency"]["avg"])


def guidellm(program: str, folder: Path, url: str, streams: int) -> Seen:
    byte_tokenizer(folder / "tokenizer")
    command = [
        program, "run", "--backend", f"kind=openai_http,target={url},model=m,request_format=/v1/chat/completions",
        "--tokenizer", f"kind=hf_auto,model={folder / 'tokenizer'}",
        "--profile", f"kind=concurrent,streams={streams},rampup_duration={RAMP_S}",
        "--constraint", f"kind=max_requests,count={streams * ROUNDS}",
        "--data", f"kind=synthetic_text,prompt_tokens={PROMPT_TOKENS},output_tokens={TOKENS}",
        "--output", f"kind=json,path={folder / 'out.json'}", "--disable-console",
    ]  # fmt: skip
    _run(command, folder)
    metrics: dict[str, Any] = json.loads((folder / "out.json").read_text())["benchmarks"][0]["metrics"]
    ttft = metrics["time_to_first_token_ms"]["successful"]
    itl = metrics["inter_token_latency_ms"]["successful"]
    return Seen(ttft["count"], ttft["mean"], ttft["percentiles"]["p99"], itl["mean"])


def sglang(program: str, folder: Path, url: str, streams: int, *, rust: bool = False) -> Seen:
    """`program` is a Python that can import sglang. Its ramp is a request rate, which later requests stay under."""
    byte_tokenizer(folder / "tokenizer")
    command = [
        program, "-m", "sglang.bench_serving", "--backend", "sglang-oai-chat", "--base-url", url, "--model", "m",
        "--tokenizer", str(folder / "tokenizer"), "--dataset-name", "random-ids", "--random-range-ratio", "1",
        "--random-input-len", str(PROMPT_TOKENS), "--random-output-len", str(TOKENS),
        "--num-prompts", str(streams * ROUNDS), "--max-concurrency", str(streams), "--request-rate", str(streams / RAMP_S),
        "--warmup-requests", "0", "--ready-check-timeout-sec", "0", "--disable-tqdm",
        "--output-file", str(folder / "out.jsonl"), *(["--rust-client"] if rust else []),
    ]  # fmt: skip
    _run(command, folder)
    metrics: dict[str, Any] = json.loads((folder / "out.jsonl").read_text().splitlines()[-1])
    return Seen(metrics["completed"], metrics["mean_ttft_ms"], metrics["p99_ttft_ms"], metrics["mean_itl_ms"])


@dataclass(frozen=True, slots=True)
class Peer:
    name: str
    program: str | None
    """Path of its command, or None when it is not installed."""
    client: Callable[[str, Path, str, int], Seen]

    def __call__(self, url: str, streams: int) -> Seen:
        """Raises PeerError."""
        assert self.program is not None
        with tempfile.TemporaryDirectory(prefix="catalejo-bench-") as folder:
            try:
                return self.client(self.program, Path(folder), url, streams)
            except (OSError, ValueError, LookupError, TypeError, StopIteration) as e:
                raise PeerError(f"its report cannot be read ({type(e).__name__}: {e})") from e


def _program(name: str | None) -> str | None:
    """Its absolute path (peers run in their own folder), with links kept: a venv's python is one."""
    found = shutil.which(name) if name else None
    return os.path.abspath(found) if found else None


def peers(aiperf_program: str | None, guidellm_program: str | None, sglang_python: str | None) -> list[Peer]:
    """By the given paths, else what is on PATH or, for SGLang, in this interpreter."""
    if sglang_python is None and importlib.util.find_spec("sglang") is not None:
        sglang_python = sys.executable
    python = _program(sglang_python)
    return [
        Peer("AIPerf", _program(aiperf_program or "aiperf"), aiperf),
        Peer("GuideLLM", _program(guidellm_program or "guidellm"), guidellm),
        Peer("SGLang", python, sglang),
        Peer("SGLang, Rust", python, partial(sglang, rust=True)),
    ]
