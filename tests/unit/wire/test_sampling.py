"""The one table of sampling parameters: bounds at their edges, types, and names."""

from __future__ import annotations

from typing import Any

import pytest

from engine import wire

ACCEPTED: list[tuple[str, Any, Any]] = [
    ("max_new_tokens", 0, 0),
    ("min_new_tokens", 5, 5),
    ("temperature", 0, 0.0),
    ("temperature", 1.7, 1.7),
    ("top_p", 1, 1.0),
    ("top_k", -1, -1),
    ("min_p", 0.0, 0.0),
    ("repetition_penalty", 2, 2.0),
    ("frequency_penalty", -2, -2.0),
    ("presence_penalty", 2.0, 2.0),
    ("logit_bias", {"7": -100, "007": 1}, {"7": 1.0}),
    ("sampling_seed", -3, -3),
    ("stop_token_ids", [1, 2], [1, 2]),
    ("ignore_eos", True, True),
]
REFUSED: list[tuple[str, Any]] = [
    ("max_new_tokens", -1),
    ("max_new_tokens", 1.0),
    ("max_new_tokens", True),
    ("temperature", -0.1),
    ("temperature", float("nan")),
    ("temperature", float("inf")),
    ("temperature", "warm"),
    ("top_p", 0),
    ("top_p", 1.0001),
    ("top_k", -2),
    ("top_k", 1.5),
    ("min_p", 1.1),
    ("repetition_penalty", 0),
    ("repetition_penalty", 2.1),
    ("frequency_penalty", -2.1),
    ("presence_penalty", 2.1),
    ("logit_bias", {"x": 1}),
    ("logit_bias", {"-1": 1}),
    ("logit_bias", {"\u0663": 1}),
    ("logit_bias", {"1": 101}),
    ("logit_bias", {"1": True}),
    ("logit_bias", {"1": "a"}),
    ("logit_bias", [1]),
    ("sampling_seed", "7"),
    ("stop_token_ids", 7),
    ("stop_token_ids", [-1]),
    ("stop_token_ids", ["a"]),
    ("stop_token_ids", [True]),
    ("ignore_eos", 1),
    ("stop", ["a"]),
    ("temperatur", 1),
]


@pytest.mark.parametrize(("name", "given", "kept"), ACCEPTED)
def test_accepted(name: str, given: Any, kept: Any) -> None:
    assert wire.check_sampling({name: given}) == {name: kept}


@pytest.mark.parametrize(("name", "given"), REFUSED)
def test_refused_by_name(name: str, given: Any) -> None:
    with pytest.raises(wire.BadSampling) as caught:
        wire.check_sampling({name: given})
    assert (caught.value.param or "").startswith(f"sampling.{name}")
    assert name in caught.value.message


def test_null_means_absent() -> None:
    assert wire.check_sampling(dict.fromkeys(wire.SAMPLING_FIELDS)) == {}


def test_every_parameter_of_the_table_has_cases() -> None:
    assert {c[0] for c in ACCEPTED} == set(wire.SAMPLING_FIELDS)
    assert {c[0] for c in REFUSED} >= set(wire.SAMPLING_FIELDS) - {"min_new_tokens"}
