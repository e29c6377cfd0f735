"""Every sampling parameter, seeds, and logprobs."""

import math

import pytest
import torch

from engine.local.sampling import Sampling, sample, uniform
from tests.unit.engine.harness import Driver, model, text_ids

EOS = 498
VOCAB = 512


class Row:
    """Just what the sampler reads of a sequence."""

    def __init__(self, prompt=(1, 2, 3), output=(), logprobs=None, index=0, **fields):
        self.request = type("Request", (), {"logprobs": logprobs})()
        self.request.sampling = Sampling.of(fields, (EOS,), VOCAB)
        self.tokens = [*prompt, *output]
        self.output = list(output)
        self.generated = len(output)
        self.index = index
        self.counts = None
        self.constraint = None


def peaked(*best):
    """Logits whose largest entries are `best`, in that order, one apart."""
    row = torch.full((VOCAB,), -10.0)
    for k, i in enumerate(best):
        row[i] = 10.0 - k
    return row


def pick(row, logits, count=1):
    """Ids drawn at `count` positions from the same logits."""
    out = []
    for position in range(count):
        row.generated = position
        out.append(sample(logits.clone()[None], [row])[0][0])
    return out


@pytest.mark.parametrize(
    ("fields", "want"),
    [
        ({"temperature": 0.0}, 7),
        ({"temperature": 1.0, "top_k": 1}, 7),
        ({"temperature": 1.0, "top_p": 0.5}, 7),
        ({"temperature": 1.0, "min_p": 0.99}, 7),
        ({"temperature": 1e-6}, 7),
        ({"temperature": 0.0, "logit_bias": {"9": 5.0}}, 9),
        ({"temperature": 0.0, "logit_bias": {"7": -100}}, 8),
    ],
    ids=str,
)
def test_the_only_token_left_is_chosen(fields, want):
    assert pick(Row(**fields), peaked(7, 8, 9), 20) == [want] * 20


@pytest.mark.parametrize(
    ("fields", "allowed"),
    [
        ({"top_k": 2}, {7, 8}),
        ({"top_p": 0.7}, {7, 8}),
        ({"min_p": 0.2}, {7, 8}),
        ({"top_k": 3, "top_p": 0.7}, {7, 8}),
        ({}, {7, 8, 9}),
    ],
    ids=str,
)
def test_filters_keep_exactly_what_they_say(fields, allowed):
    """Probabilities are about 0.665, 0.245, 0.090."""
    assert set(pick(Row(temperature=1.0, sampling_seed=3, **fields), peaked(7, 8, 9), 300)) == allowed


def test_draws_follow_the_distribution():
    logits = torch.full((VOCAB,), -math.inf)
    logits[[3, 4, 5]] = torch.log(torch.tensor([0.5, 0.3, 0.2]))
    drawn = pick(Row(temperature=1.0, sampling_seed=11), logits, 4000)
    for token, p in ((3, 0.5), (4, 0.3), (5, 0.2)):
        assert abs(drawn.count(token) / 4000 - p) < 4 * math.sqrt(p * (1 - p) / 4000)


def test_temperature_sharpens_and_flattens():
    cold = pick(Row(temperature=0.5, sampling_seed=1), peaked(7, 8), 1000).count(7) / 1000
    hot = pick(Row(temperature=2.0, sampling_seed=1), peaked(7, 8), 1000).count(7) / 1000
    assert abs(cold - 1 / (1 + math.exp(-2))) < 0.04
    assert abs(hot - 1 / (1 + math.exp(-0.5))) < 0.05


def test_penalties_by_hand():
    base = torch.zeros(VOCAB)
    base[[1, 7, 8]] = torch.tensor([2.0, 3.0, -1.0])

    def after(**fields):
        logits = base.clone()[None]
        sample(logits, [Row(prompt=(1, 2), output=(7, 7, 8), temperature=0.0, **fields)])
        return logits[0]

    repeated = after(repetition_penalty=2.0)  # prompt and output: positive halves, negative doubles
    assert repeated[[1, 7, 8, 9]].tolist() == [1.0, 1.5, -2.0, 0.0]
    frequent = after(frequency_penalty=0.5)  # output only, by count
    assert frequent[[1, 7, 8]].tolist() == [2.0, 2.0, -1.5]
    present = after(presence_penalty=0.5)  # output only, once
    assert present[[1, 7, 8]].tolist() == [2.0, 2.5, -1.5]


def test_penalties_are_the_same_step_by_step_and_after_a_preemption():
    """Counts kept up as tokens come equal counts made from the whole output."""
    fields = {"frequency_penalty": 0.7, "presence_penalty": 0.3, "repetition_penalty": 1.2}
    d = Driver()
    request = d.ask(text_ids(20), 30, **fields)
    d.run()
    (s,) = request.sequences
    kept = s.counts.clone()
    s.counts = None
    s.tokens = s.tokens[:-1]  # the last token was never counted
    sample(torch.zeros(1, VOCAB), [s])
    assert torch.equal(kept, s.counts)


def test_stop_ids_wait_for_min_new_tokens():
    row = Row(temperature=0.0, min_new_tokens=2, stop_token_ids=[7])
    logits = peaked(7, EOS, 8)
    assert pick(row, logits, 4) == [8, 8, 7, 7]


def test_ids_outside_the_vocabulary_are_refused():
    for fields in ({"stop_token_ids": [VOCAB]}, {"logit_bias": {str(VOCAB): 1.0}}):
        with pytest.raises(ValueError, match="512 entries"):
            Sampling.of(fields, (), VOCAB)


def test_uniform_numbers_differ_by_seed_choice_and_position():
    numbers = {uniform(s, c, p) for s in (-1, 0, 1) for c in range(5) for p in range(50)}
    assert len(numbers) == 750
    assert all(0 <= x < 1 for x in numbers)


def test_logprobs_are_the_models_own_whatever_the_sampling():
    logits = peaked(7, 8, 9)
    want = torch.log_softmax(logits, -1)
    row = Row(temperature=2.0, sampling_seed=5, logit_bias={"9": 50.0}, logprobs=2)
    ids, rows = sample(logits[None].clone(), [row])
    assert ids == [9]
    lp, token, top = rows[0]
    assert token == 9
    assert lp == pytest.approx(want[9].item())
    assert [i for _, i in top] == [7, 8]
    assert [p for p, _ in top] == pytest.approx(want[[7, 8]].tolist())


SEEDED = {"temperature": 1.0, "top_p": 0.95, "top_k": 40, "sampling_seed": 1234}


def test_a_seed_gives_the_same_tokens_whatever_shares_the_batch():
    alone = Driver()
    request = alone.ask(text_ids(70, 1), 24, **SEEDED)
    want = alone.run().tokens(request)
    crowd = Driver(chunk_tokens=48)
    for seed in range(9):
        crowd.ask(text_ids(30 + 17 * seed, seed + 2), 10 + seed, temperature=0.9, sampling_seed=seed)
    crowd.step()
    request = crowd.ask(text_ids(70, 1), 24, **SEEDED)
    for seed in range(5):
        crowd.ask(text_ids(64, seed + 20), 30, temperature=0.0)
    assert crowd.run().tokens(request) == want


def test_choices_differ_and_repeat():
    first, second = Driver(), Driver()
    a, b = (d.ask(text_ids(40), 16, n=4, **SEEDED) for d in (first, second))
    first.run()
    second.run()
    choices = [tuple(first.tokens(a, i)) for i in range(4)]
    assert len(set(choices)) == 4
    assert choices == [tuple(second.tokens(b, i)) for i in range(4)]


def test_logprob_rows_match_the_ids_one_to_one():
    d = Driver()
    request = d.ask(text_ids(40), 12, logprobs=3)
    d.run()
    rows = d.rows(request)
    assert [token for _, token, _ in rows] == d.tokens(request)
    for lp, token, top in rows:
        assert len(top) == 3
        assert top[0] == (pytest.approx(lp), token)  # greedy: the chosen one leads
    assert model().text_config.vocab_size == VOCAB
