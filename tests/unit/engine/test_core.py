"""Batching, prefix reuse, preemption and aborts, on the real model."""

import random

import pytest
import torch

from engine import wire
from tests.unit.engine.harness import PAGE, Driver, Prompt, text_ids, transformers_greedy

COUNT = 24
POOL = [
    Prompt().text(75, 1),
    Prompt().text(75, 1).text(40, 2),
    Prompt().text(130, 3),
    Prompt().text(20, 4).image(6, 10, 1).text(40, 5),
    Prompt().text(20, 4).image(6, 10, 1).text(25, 6).image(4, 4, 2).text(3, 7),
    Prompt().image(8, 8, 3).text(50, 8),
    Prompt().text(9, 9).image(6, 6, 1).text(30, 1).video(6, 4, 6, 2).text(8, 2),
]  # fmt: skip


def pages(tokens):
    return -(-tokens // PAGE)


def random_mix(seed):
    """Requests over a few prompts come at random times to an engine of random size; some are aborted."""
    rng = random.Random(seed)
    longest = max(len(p.ids) for p in POOL) + COUNT
    d = Driver(
        chunk_tokens=rng.choice([7, 16, 33, 64, 512]),
        max_running=rng.choice([1, 3, 8]),
        kv_pages=rng.choice([pages(longest), pages(longest) + 6, 64, 256]),
        prefix_cache=rng.random() < 0.8,
    )
    asked = []
    for _ in range(rng.randint(5, 10)):
        prompt, count = rng.choice(POOL), rng.randint(1, COUNT)
        n = 2 if rng.random() < 0.2 else 1
        asked.append((d.ask(prompt, count, n=n, priority=rng.choice([0, 0, 0, 1, -1])), prompt, count))
        for _ in range(rng.choice([0, 0, 1, 5, 20])):
            d.step()
        if rng.random() < 0.15 and asked[-1][0].open:
            d.abort(asked[-1][0])
    d.run()
    assert d.pages_used() == 0
    for request, prompt, count in asked:
        want = transformers_greedy(prompt, COUNT)[:count]
        for i in range(request.n):
            got = d.tokens(request, i)
            if d.finish(request, i).type == "abort":
                assert got == want[: len(got)]
            else:
                assert got == want
    return d


@pytest.mark.parametrize("seed", range(4))
def test_random_mixes_equal_transformers(seed):
    random_mix(seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4, 54))
def test_fifty_random_mixes_equal_transformers(seed):
    random_mix(seed)


def test_preempted_sequences_give_the_same_tokens():
    d = Driver(kv_pages=16, max_running=4, chunk_tokens=64)
    asked = [d.ask(p, COUNT) for p in POOL[:3]]
    d.run()
    assert d.core.scheduler.preemptions > 0
    for request, prompt in zip(asked, POOL, strict=False):
        assert d.tokens(request) == transformers_greedy(prompt, COUNT)


def test_a_long_prompt_holds_up_a_stream_by_one_chunk_at_most():
    d = Driver(kv_pages=512, chunk_tokens=64)
    stream = d.ask(text_ids(20), 60)
    while not d.tokens(stream):
        d.step()
    long = d.ask(text_ids(1000, 1), 4)
    while not d.tokens(long):
        prefill, said = d.core.totals.prefill_tokens, len(d.tokens(stream))
        d.step()
        assert d.core.totals.prefill_tokens - prefill <= 64
        assert len(d.tokens(stream)) == said + 1
    assert d.run().finish(long).type == "length"


def test_late_chunks_of_a_long_prompt_shrink_and_never_stop():
    d = Driver(kv_pages=512, chunk_tokens=256, step_pairs=32 * 1024)
    request = d.ask(text_ids(1500, 1), 1)
    counts = []
    while not d.tokens(request):
        before = request.sequences[0].computed
        d.step()
        counts.append((before, d.core.totals.prefill_tokens - sum(c for _, c in counts)))
    assert counts[0] == (0, 128)
    assert counts[-2][1] < 32
    for before, count in counts:
        assert count * (before + count) <= 32 * 1024 or count == PAGE


def test_a_short_prompt_passes_a_long_one():
    d = Driver(kv_pages=512, chunk_tokens=64)
    long, short = d.ask(text_ids(800, 1), 1), d.ask(text_ids(40, 2), 1)
    while not d.tokens(short):
        d.step()
    assert not d.tokens(long)
    d.run()


def test_higher_priority_goes_first():
    d = Driver(max_running=1, prefix_cache=False)
    order = {d.ask(text_ids(20, i), 2, priority=p): p for i, p in enumerate([0, -1, 5, 0, 2])}
    ended = []
    while d.core.busy:
        d.step()
        ended += [p for r, p in order.items() if not r.open and (r, p) not in ended and p not in ended]
    assert ended == sorted(set(order.values()), reverse=True)


# ------------------------------------------------------------------------------------------------ prefix cache
def test_a_prefix_is_reused_to_the_page_and_never_whole():
    d = Driver()
    ids = text_ids(500, 1)
    first = d.ask(ids, 8)
    d.run()
    assert first.cached_tokens == 0
    again = d.ask(ids, 8)
    d.run()
    assert again.cached_tokens == 496
    assert d.tokens(again) == d.tokens(first)
    exact = d.ask(ids[:496], 1)
    d.run()
    assert exact.cached_tokens == 480  # the last token is always computed
    assert d.finish(exact).usage == wire.Usage(496, 1, 480)


def test_answers_are_reused_in_the_next_turn():
    d = Driver()
    first = d.ask(text_ids(40), 40)
    d.run()
    follow = d.ask([*text_ids(40), *d.tokens(first), *text_ids(10, 5)], 1)
    d.run()
    assert follow.cached_tokens == (40 + 39) // PAGE * PAGE  # the last token of an answer is never computed


def test_salts_share_nothing():
    d = Driver()
    ids = text_ids(100)
    for salt, hit in (("a", 0), ("b", 0), ("", 0), ("a", 96)):
        request = d.ask(ids, 2, salt=salt)
        d.run()
        assert request.cached_tokens == hit, salt


def test_a_hit_may_end_inside_an_image():
    """The tower runs for the whole image and the rest is sliced; what is cached is not computed again."""
    prompt = Prompt().text(10).image(8, 12, 7).text(30, 1)  # image tokens 11..34: a page ends at 16 and at 32
    d = Driver()
    first = d.ask(prompt, COUNT)
    d.run()
    other = Prompt().text(10).image(8, 12, 7).text(12, 9)
    request = d.ask(other, COUNT)
    assert d.core.features.computed == 1
    d.core.features._kept.clear()
    d.run()
    assert request.cached_tokens == 32
    assert d.core.features.computed == 2  # 33 and 34 were needed
    assert d.tokens(request) == transformers_greedy(other, COUNT)
    assert d.tokens(first) == transformers_greedy(prompt, COUNT)


def test_an_image_that_is_cached_whole_skips_the_tower():
    prompt = Prompt().text(3).image(6, 6, 1).text(60, 1)
    d = Driver(feature_cache_bytes=0)
    first = d.ask(prompt, 4)
    d.run()
    again = d.ask(prompt, 4)
    d.run()
    assert d.core.features.computed == 1
    assert d.tokens(again) == d.tokens(first)


def test_same_ids_with_another_image_are_another_prompt():
    d = Driver()
    prompts = [Prompt().text(5).image(8, 8, seed).text(20) for seed in (1, 2)]
    assert prompts[0].ids == prompts[1].ids
    for prompt in prompts:
        request = d.ask(prompt, COUNT)
        d.run()
        assert request.cached_tokens == 0
        assert d.tokens(request) == transformers_greedy(prompt, COUNT)


def test_choices_share_the_prompt():
    d = Driver()
    request = d.ask(text_ids(200), 4, n=3, temperature=1.0, sampling_seed=1)
    d.run()
    assert d.core.totals.prefill_tokens == 200 + 2 * (200 - 192)
    assert [d.finish(request, i).usage.cached_tokens for i in range(3)] == [0, 0, 0]


# ------------------------------------------------------------------------------------------------ ends
def test_an_abort_frees_the_pages_in_any_phase():
    d = Driver(chunk_tokens=32, prefix_cache=False)
    waiting = d.ask(text_ids(100), 5)
    d.abort(waiting)
    assert not d.core.busy
    prefilling = d.ask(text_ids(200), 5)
    d.step()
    assert d.pages_used() == 2
    d.abort(prefilling)
    assert d.pages_used() == 0
    decoding = d.ask(text_ids(20), 50, n=2)
    for _ in range(6):
        d.step()
    d.abort(decoding)
    assert d.pages_used() == 0
    assert [type(r) for r in d.replies[decoding][-3:]] == [wire.Finish, wire.Finish, wire.Done]
    assert d.finish(decoding).usage.completion_tokens == len(d.tokens(decoding))


def test_two_hundred_random_aborts_leave_no_page_behind():
    rng = random.Random(1)
    d = Driver(chunk_tokens=48, kv_pages=96, max_running=6)
    live = []
    for i in range(200):
        live.append(d.ask(POOL[i % len(POOL)] if i % 4 == 0 else text_ids(rng.randint(1, 150), i % 9), 60, n=1 + i % 2))
        for _ in range(rng.choice([0, 0, 1, 2])):
            d.step()
        victim = live.pop(rng.randrange(len(live)))
        if victim.open:
            d.abort(victim)
        d.core.scheduler.check()
        while len(live) > 8:
            d.abort(live.pop(0))
    for request in live:
        if request.open:
            d.abort(request)
    assert not d.core.busy
    assert d.pages_used() == 0
    assert not d.core.rows
    d.core.scheduler.check()


def test_stop_ids_end_a_choice_and_are_part_of_it():
    d = Driver()
    free = d.ask(text_ids(70), 20)
    d.run()
    stop = d.tokens(free)[7]
    first = d.tokens(free).index(stop)
    request = d.ask(text_ids(70), 20, stop_token_ids=[stop], ignore_eos=False)
    d.run()
    assert d.tokens(request) == d.tokens(free)[: first + 1]
    assert d.finish(request) == wire.Finish(0, "stop", wire.Usage(70, first + 1, 64), stop)


@pytest.mark.parametrize("count", [0, 1, 5])
def test_length(count):
    d = Driver()
    request = d.ask(text_ids(30), count)
    d.run()
    assert len(d.tokens(request)) == count
    assert d.finish(request) == wire.Finish(0, "length", wire.Usage(30, count, 0))
    assert isinstance(d.replies[request][-1], wire.Done)


def test_the_first_line_of_a_choice_tells_the_cached_tokens():
    d = Driver()
    for hit in (0, 48):
        request = d.ask(text_ids(50), 3)
        d.run()
        tokens = [r for r in d.replies[request] if isinstance(r, wire.Tokens)]
        assert [t.cached_tokens for t in tokens] == [hit, None, None]


def test_a_request_may_fill_the_whole_cache():
    d = Driver(kv_pages=8)
    request = d.ask(text_ids(100), 8 * PAGE - 100)
    other = d.ask(text_ids(100, 2), 8 * PAGE - 100)
    d.run()
    assert len(d.tokens(request)) == len(d.tokens(other)) == 28


def test_a_failing_step_leaves_the_books_in_order(monkeypatch):
    d = Driver()
    request = d.ask(text_ids(40), 5)
    d.step()
    monkeypatch.setattr(d.core.model, "forward", lambda *_: (_ for _ in ()).throw(torch.OutOfMemoryError("no memory")))
    with pytest.raises(torch.OutOfMemoryError):
        d.core.step()
    assert d.core.fail(request, "engine_error", "no memory", retryable=True) == [
        wire.Failure("engine_error", "no memory", True)
    ]
    d.core.scheduler.check()
    assert d.pages_used() == 0


def test_media_that_fail_end_their_request_alone(monkeypatch):
    d = Driver()
    other = d.ask(POOL[0], COUNT)
    d.step()
    request = d.ask(POOL[3], 5)
    net = d.core.model.net.model
    monkeypatch.setattr(net, "get_image_features", lambda *_, **__: 1 / 0)
    d.run()
    assert d.replies[request] == [
        wire.Failure("media_error", "ZeroDivisionError while computing an image or video", False)
    ]
    assert d.tokens(other) == transformers_greedy(POOL[0], COUNT)
    assert d.pages_used() == 0


def test_embeddings_are_not_shared_between_salts():
    d = Driver()
    for salt, computed in (("a", 1), ("b", 2), ("a", 2)):
        d.ask(Prompt().text(3).image(4, 4, 1).text(2), 1, salt=salt)
        d.run()
        assert d.core.features.computed == computed
