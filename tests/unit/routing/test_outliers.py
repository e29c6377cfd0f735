"""Who is far from its peers, and who only looks so."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest

from gateway.routing.outliers import Recent, outliers
from gateway.routing.settings import OutlierSettings

SETTINGS = OutlierSettings(min_requests=10)


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Engine:
    name: str
    recent: Recent = field(default_factory=lambda: Recent(60.0, Clock()))
    ejected: bool = False

    def answers(self, good: int, bad: int = 0) -> Engine:
        for ok in [True] * good + [False] * bad:
            self.recent.outcome(ok)
        return self

    def first_tokens(self, seconds: float, tokens: int = 1000, count: int = 20) -> Engine:
        rng = random.Random(self.name)
        for _ in range(count):
            self.recent.first_token(seconds * rng.uniform(0.8, 1.2), tokens)
        return self


def judged(*engines: Engine, settings: OutlierSettings = SETTINGS) -> list[tuple[str, str]]:
    return [(e.name, reason) for e, reason in outliers(engines, settings)]


def test_the_one_that_fails_is_found_and_general_trouble_is_nobodys() -> None:
    well = [Engine(n).answers(20) for n in "bcd"]
    assert judged(Engine("a").answers(10, 10), *well) == [("a", "errors")]
    assert judged(Engine("a").answers(17, 3), *well) == []
    assert judged(*(Engine(n).answers(10, 10) for n in "abcd")) == []


def test_the_slow_one_is_found_and_long_prompts_are_no_fault() -> None:
    well = [Engine(n).first_tokens(0.5) for n in "bcd"]
    assert judged(Engine("a").first_tokens(5.0), *well) == [("a", "latency")]
    assert judged(Engine("a").first_tokens(1.0), *well) == [], "twice as slow is life"
    assert judged(Engine("a").first_tokens(5.0, tokens=60_000), *well) == [], "it had twenty times the work"
    quick = [Engine(n).first_tokens(0.02) for n in "bcd"]
    assert judged(Engine("a").first_tokens(0.4), *quick) == [], "nobody waits for 0.4 s"


def test_few_answers_are_no_evidence_and_old_ones_are_none() -> None:
    well = [Engine(n).answers(20) for n in "bcd"]
    assert judged(Engine("a").answers(0, 9), *well) == []
    sick = Engine("a").answers(0, 20)
    sick.recent._clock.now += 61  # type: ignore[attr-defined]
    assert judged(sick, *well) == []


def test_never_more_than_a_share_and_never_one_of_two() -> None:
    sick = [Engine(n).answers(0, 20) for n in "ab"]
    well = [Engine(n).answers(20) for n in "cdefg"]
    assert len(judged(*sick, *well)) == 2
    assert len(judged(*sick, *well[:3])) == 1, "a third of five is one"
    assert judged(Engine("x", ejected=True), *sick[:1], *well[:3]) == [], "one is away already"
    assert judged(sick[0], well[0]) == []
    assert judged(*sick, *well, settings=SETTINGS.model_copy(update={"max_share": 0.0})) == []


def test_the_worst_goes_first() -> None:
    engines = [Engine("a").answers(10, 10), Engine("b").answers(2, 18), *(Engine(n).answers(20) for n in "cd")]
    assert judged(*engines) == [("b", "errors")]


@pytest.mark.parametrize("seed", range(5))
def test_noise_among_equals_ejects_nobody(seed: int) -> None:
    rng = random.Random(seed)
    engines = [Engine(n) for n in "abcdefgh"]
    for engine in engines:
        for _ in range(200):
            engine.recent.outcome(rng.random() > 0.1)
            tokens = rng.choice([100, 2_000, 50_000])
            engine.recent.first_token((tokens + 1000) / 5000 * rng.lognormvariate(0, 0.5), tokens)
    assert judged(*engines) == []
