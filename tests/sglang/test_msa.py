"""Sparse attention as SGLang calls it, on the CPU: equal to the reference, or left to SGLang with a reason."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from engine.msa import dispatch, reference
from engine.msa.config import MsaConfig
from engine.sglang import adapter_0_5_17, adapter_0_5_23, hooks_model, msa

BLOCK, TOPK, GROUPS, HEADS, DIM, CONTEXT = 16, 4, 2, 4, 32, 256
CONFIG = MsaConfig(BLOCK, TOPK, 0, 1)


class Cache:
    """Slots as SGLang keeps them: pages of 16 handed out in no order, two requests."""

    def __init__(self, lengths: list[int]) -> None:
        random = torch.Generator().manual_seed(5)
        slots = 64 * BLOCK
        self.k, self.v = (torch.randn(slots, GROUPS, DIM, generator=random) for _ in range(2))
        self.index_k = torch.randn(slots, 1, DIM, generator=random)
        self.req_to_token = torch.zeros(8, CONTEXT, dtype=torch.int32)
        self.rows = torch.tensor([5, 2][: len(lengths)])
        pages = torch.randperm(63, generator=random) + 1
        self.lengths = lengths
        for row in self.rows.tolist():
            mine, pages = pages[: CONTEXT // BLOCK], pages[CONTEXT // BLOCK :]
            tokens = (mine[:, None] * BLOCK + torch.arange(BLOCK)).flatten()
            self.req_to_token[row] = tokens.to(torch.int32)

    def expected(self, q: torch.Tensor, index_q: torch.Tensor, new: list[int]) -> torch.Tensor:
        out, first = [], 0
        for row, length, count in zip(self.rows.tolist(), self.lengths, new, strict=True):
            slots = self.req_to_token[row, :length].long()
            mine = slice(first, first + count)
            positions = torch.arange(length - count, length)
            keys = self.index_k[slots][:, 0]
            out.append(reference.msa(q[mine], self.k[slots], self.v[slots], index_q[mine], keys, positions, CONFIG)[0])
            first += count
        return torch.cat(out)


def never(*args: Any, **kwargs: Any) -> Any:
    raise AssertionError("SGLang's own kernel was called")


@pytest.fixture(autouse=True)
def paths(monkeypatch: pytest.MonkeyPatch) -> msa.Paths:
    """Fresh counters; metrics that register nowhere."""
    made = msa.Paths()

    class Silent:
        def labels(self, *_: str) -> Silent:
            return self

        def inc(self) -> None:
            pass

    made._metrics = (Silent(), Silent())
    monkeypatch.setattr(msa, "PATHS", made)
    return made


def queries(rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    random = torch.Generator().manual_seed(rows)
    q = torch.randn(rows, GROUPS * HEADS, DIM, generator=random)
    return q, torch.randn(rows, GROUPS, DIM, generator=random)


def decode(cache: Cache, original: Any = never, **options: Any) -> Any:
    q, index_q = queries(len(cache.lengths))
    given: dict[str, Any] = {"disable_index_value": True, "page_size": BLOCK, "score_type": "max", **options}
    positional = [
        q,
        given.pop("sink", None),
        cache.k,
        cache.v,
        index_q,
        None,
        cache.index_k,
        given.pop("index_v", None),
    ]
    lengths = torch.tensor(cache.lengths)
    positional += [cache.req_to_token, cache.rows, lengths, max(cache.lengths), 1, BLOCK, TOPK, 0, 1]
    return q, index_q, hooks_model.sparse_decode(original, *positional, **given)


def prefill(cache: Cache, new: list[int], original: Any = never, **options: Any) -> Any:
    q, index_q = queries(sum(new))
    starts = torch.tensor([0, *new]).cumsum(0).to(torch.int32)
    lengths = torch.tensor(cache.lengths)
    given: dict[str, Any] = {
        "disable_index_value": True, "page_size": BLOCK, "seqlens_cpu": new, "seq_lens_cpu": lengths, **options
    }  # fmt: skip
    positional = [q, cache.k, cache.v, None, index_q, cache.index_k, None, None, cache.req_to_token, cache.rows]
    positional += [starts, lengths, lengths - torch.tensor(new), max(new), max(cache.lengths), 1, BLOCK, TOPK, 0, 1]
    return q, index_q, adapter_0_5_23.sparse_prefill(original, *positional, **given)


def prefill_0_5_17(cache: Cache, new: list[int], prepared: list[int] | None, original: Any = never) -> Any:
    """As that version calls it: the backend prepared a forward pass, whose list of new tokens was `prepared`."""
    q, index_q = queries(sum(new))
    starts = torch.tensor([0, *new]).cumsum(0).to(torch.int32)
    lengths = torch.tensor(cache.lengths)
    batch = SimpleNamespace(extend_seq_lens_cpu=prepared, seq_lens_cpu=lengths)
    adapter_0_5_17.forward_begins(None, SimpleNamespace(page_size=BLOCK), batch)
    positional = [q, cache.k, cache.v, None, index_q, cache.index_k, None, None, cache.req_to_token, cache.rows]
    positional += [starts, lengths, lengths - torch.tensor(new), max(new), max(cache.lengths), 1, BLOCK, TOPK, 0, 1]
    options = {"disable_index_value": True, "seqlens_cpu": new}
    return q, index_q, adapter_0_5_17.sparse_prefill(original, *positional, **options)


@pytest.mark.parametrize("lengths", [[1, 7], [16, 17], [200, 65], [256, 3]])
def test_decode_equals_the_reference(lengths: list[int], paths: msa.Paths) -> None:
    cache = Cache(lengths)
    q, index_q, (index_out, out) = decode(cache)
    assert index_out is None
    torch.testing.assert_close(out, cache.expected(q, index_q, [1, 1]), rtol=1e-5, atol=1e-5)
    assert paths.served == {("decode", "reference"): 1}


@pytest.mark.parametrize(
    ("lengths", "new"), [([40], [40]), ([200, 65], [3, 65]), ([256, 17], [100, 1]), ([16, 5], [1, 5])]
)
def test_prefill_equals_the_reference(lengths: list[int], new: list[int], paths: msa.Paths) -> None:
    cache = Cache(lengths)
    q, index_q, (index_out, out) = prefill(cache, new)
    assert index_out is None
    torch.testing.assert_close(out, cache.expected(q, index_q, new), rtol=1e-5, atol=1e-5)
    assert paths.served == {("prefill", "reference"): 1}


def test_prefill_equals_the_reference_where_lengths_are_taken_aside(paths: msa.Paths) -> None:
    cache, new = Cache([200, 65]), [3, 65]
    q, index_q, (index_out, out) = prefill_0_5_17(cache, new, new)
    assert index_out is None
    torch.testing.assert_close(out, cache.expected(q, index_q, new), rtol=1e-5, atol=1e-5)
    assert paths.served == {("prefill", "reference"): 1}


@pytest.mark.parametrize("prepared", [None, [3, 65]])
def test_lengths_of_another_forward_pass_are_not_used(prepared: list[int] | None, paths: msa.Paths) -> None:
    """Equal numbers are not enough: it must be the very list of this pass."""
    _, _, got = prefill_0_5_17(Cache([200, 65]), [3, 65], prepared, lambda *a, **k: "theirs")
    assert got == "theirs"
    assert paths.fallbacks == {("prefill", "lengths_not_on_host"): 1}


def test_each_path_is_told_once(
    paths: msa.Paths, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server makes a plan per prefill chunk: its log must not grow with them."""
    monkeypatch.delenv(msa.MODE_VARIABLE, raising=False)
    level = msa.dispatch.log.level
    try:
        with caplog.at_level("INFO"):
            msa.start()
            for new in ([40], [39], [38]):
                prefill(Cache([40]), new)
                decode(Cache([9, 9 + len(caplog.records)]))
    finally:
        msa.dispatch.log.setLevel(level)
    told = [r.getMessage() for r in caplog.records if "reference" in r.getMessage()]
    assert len(told) == 2, told
    assert "prefill" in told[0]
    assert "decode" in told[1]


SPECIAL = {
    "sink": {"sink": torch.zeros(1)},
    "index_value": {"disable_index_value": False},
    "score_type": {"score_type": "lse"},
    "cached_topk_idx": {"cached_topk_idx": torch.zeros(1)},
    "topk_out": {"topk_out": torch.zeros(1)},
    "sm100_msa": {"use_msa": True},
    "page_size": {"page_size": 1},
    "hisparse_swap_in_fn": {"hisparse_swap_in_fn": never},
    "dense_main_attn_fn": {"dense_main_attn_fn": never},
    "indexer_cp": {"indexer_cp": object()},
    "packed_queries": {"packed_queries": 4},
}


@pytest.mark.parametrize("reason", SPECIAL)
def test_what_is_unusual_goes_to_sglang_with_its_reason(
    reason: str, paths: msa.Paths, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(3):
        _, _, got = decode(Cache([9, 9]), lambda *a, **k: "theirs", **SPECIAL[reason])
        assert got == "theirs"
    assert paths.fallbacks == {("decode", reason): 3}
    assert paths.served == {("decode", "sglang"): 3}
    assert sum(reason in r.getMessage() for r in caplog.records) == 1


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"return_topk_idx": True}, "return_topk_idx"),
        ({"loc_mapping": torch.zeros(1)}, "loc_mapping"),
        ({"seq_lens_cpu": None}, "lengths_not_on_host"),
        ({"seqlens_cpu": [1, 1]}, "padded_rows"),
    ],
)
def test_prefill_leaves_to_sglang(options: dict[str, Any], reason: str, paths: msa.Paths) -> None:
    _, _, got = prefill(Cache([40, 20]), [40, 20], lambda *a, **k: "theirs", **options)
    assert got == "theirs"
    assert paths.fallbacks == {("prefill", reason): 1}


def test_everything_reaches_sglang_as_it_was_sent() -> None:
    seen: dict[str, Any] = {}

    def theirs(*args: Any, **kwargs: Any) -> str:
        seen.update(args=args, kwargs=kwargs)
        return "theirs"

    decode(Cache([9, 9]), theirs, sink=torch.zeros(1), sm_scale=0.5)
    assert len(seen["args"]) == 17
    assert seen["kwargs"]["sm_scale"] == 0.5
    signature = next(r.signature for r in adapter_0_5_23.ROWS if r.name.endswith("minimax_sparse_decode"))
    assert set(seen["kwargs"]) < set(signature[17:])


def test_off_is_sglang_and_no_fallback(paths: msa.Paths) -> None:
    paths.configure({"CATALEJO_MSA": "off"})
    _, _, got = decode(Cache([9, 9]), lambda *a, **k: "theirs")
    assert got == "theirs"
    assert not paths.fallbacks
    assert paths.served == {("decode", "sglang"): 1}


def test_a_kernel_that_cannot_is_a_counted_fallback(paths: msa.Paths, caplog: pytest.LogCaptureFixture) -> None:
    paths.configure({"CATALEJO_MSA": "cuda"})
    _, _, got = decode(Cache([9, 9]), lambda *a, **k: "theirs")
    assert got == "theirs"
    assert paths.fallbacks == {("decode", "kernel"): 1}
    assert "sm_90" in caplog.text


@pytest.mark.parametrize("environment", [{"CATALEJO_MSA": "fast"}, {"CATALEJO_MSA_EXTEND_ROWS": "many"}])
def test_a_wrong_setting_ends_the_process(environment: dict[str, str]) -> None:
    with pytest.raises(SystemExit, match=next(iter(environment))):
        msa.Paths().configure(environment)


def test_layers_of_one_pass_share_a_plan(paths: msa.Paths) -> None:
    cache = Cache([40])
    q, index_q = queries(40)
    work = msa.Work(
        q, index_q, cache.k, cache.v, cache.index_k, cache.req_to_token, cache.rows, BLOCK, TOPK, 0, 1, None, None, None
    )
    plan = paths.extend_plan(work, [40], [40])
    assert paths.extend_plan(work, [40], [40]) is plan
    assert paths.extend_plan(work, [39], [40]) is not plan


@pytest.mark.parametrize(
    ("mode", "architecture", "new", "length", "refused"),
    [
        ("auto", "sm_90", 8192, 131072, False),  # block-major
        ("auto", "sm_90", 3000, 4_000_000, True),  # hardly two queries a block: row by row
        ("auto", "sm_90", 100, 4_000_000, False),
        ("triton", "sm_90", 2049, 60_000, True),
        ("triton", "sm_90", 2048, 60_000, False),
        ("auto", "sm_80", 8192, 131072, True),
    ],
)
def test_on_a_gpu_only_kernels_that_go_row_by_row_leave_long_chunks_to_sglang(
    monkeypatch: pytest.MonkeyPatch, mode: str, architecture: str, new: int, length: int, refused: bool
) -> None:
    monkeypatch.setattr(dispatch, "architecture", lambda device: architecture)
    monkeypatch.setattr(msa, "ExtendPlan", lambda *args, **options: "planned")
    cache = SimpleNamespace(dtype=torch.bfloat16)
    q = SimpleNamespace(device=torch.device("cuda"), dtype=torch.bfloat16, shape=(new, 64, 128))
    work = SimpleNamespace(q=q, k_cache=cache, idx_k_cache=cache, groups=4, heads=16, config=MsaConfig())
    paths = msa.Paths()
    paths.configure({"CATALEJO_MSA": mode})
    assert paths.extend_plan(work, [new], [length]) == ("long_chunk" if refused else "planned")
