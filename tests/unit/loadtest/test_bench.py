"""The bench's own arithmetic, and what it does with peers that are absent, fail, or write something else."""

from __future__ import annotations

from pathlib import Path

import pytest

from loadtest.bench.command import errors, rows
from loadtest.bench.peers import Peer, byte_tokenizer, guidellm, peers
from loadtest.bench.truth import PeerError, Seen


def test_a_row_is_the_median_of_reports_minus_truths_and_a_multiple_of_ours() -> None:
    real = Seen(320, 210.0, 230.0, 20.0)
    runs = {
        "catalejo": [errors(Seen(320, 210.0 + e, 231.0, 20.0, valid=True), real) for e in (0.5, 0.4, 9.0)],
        "peer": [errors(Seen(318, 208.5, 250.0, 21.0), real)],
    }
    ours, peer = rows(64, runs)
    assert (ours["ttft_mean_ms"], ours["times_ours"], ours["said_valid"], ours["runs"]) == (
        pytest.approx(0.5),
        1.0,
        3,
        3,
    )
    assert peer["ttft_mean_ms"] == pytest.approx(-1.5)  # flattering oneself is an error too
    assert peer["times_ours"] == pytest.approx(3.0)
    assert peer["itl_mean_share"] == pytest.approx(0.05)
    assert runs["peer"][0].missing == 2


def test_absent_peers_are_known_before_the_run_and_failing_ones_say_why(tmp_path: Path) -> None:
    assert all(peer.program is None for peer in peers("/nonexistent/a", "/nonexistent/b", "/nonexistent/c"))
    program = tmp_path / "guidellm"
    program.write_text("#!/bin/sh\necho progress; echo 'unknown option --profile' >&2; exit 2\n")
    program.chmod(0o755)
    with pytest.raises(PeerError, match="exit code 2: unknown option --profile"):
        Peer("GuideLLM", str(program), guidellm)("http://127.0.0.1:9", 1)
    program.write_text("#!/bin/sh\nexit 0\n")
    with pytest.raises(PeerError, match="cannot be read"):
        Peer("GuideLLM", str(program), guidellm)("http://127.0.0.1:9", 1)


def test_the_peers_tokenizer_is_one_token_per_byte(tmp_path: Path) -> None:
    from tokenizers import Tokenizer

    byte_tokenizer(tmp_path / "t")
    tokenizer = Tokenizer.from_file(str(tmp_path / "t" / "tokenizer.json"))
    text = "héllo wörld"
    assert len(tokenizer.encode(text).ids) == len(text.encode())
    assert tokenizer.decode(tokenizer.encode(text).ids) == text
