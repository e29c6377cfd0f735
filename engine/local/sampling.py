"""From logits to tokens, for all rows of a step at once.

Order of operations on a row (SGLang's, for both engines alike):
    1 logit_bias added       2 repetition, frequency, presence penalties       3 stop ids barred below min_new_tokens
    4 grammar mask           5 temperature (0: the largest logit wins, and that is all)
    6 top_k, top_p and min_p filter the softmax: keep the k largest; keep while the probability before a token is <=
    top_p;
      keep p >= min_p * largest. Each looks at the unfiltered distribution.
    7 one uniform number from (seed, choice, position) picks a token by inverse transform in double precision

Repetition counts prompt and output, frequency and presence count output only. A token's number depends on seed,
choice and position alone, so a seed gives the same tokens whatever shares the batch, and after a preemption.

Logprobs are the model's own: log-softmax of the logits before any of this.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from engine.local.sequence import Sequence
from engine.wire import LogprobRow

DEFAULT_MAX_NEW_TOKENS = 128
"""As in SGLang, when a request does not say."""
MASK64 = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class Sampling:
    """`wire.SAMPLING_FIELDS` with the defaults filled in."""

    max_new_tokens: int = DEFAULT_MAX_NEW_TOKENS
    min_new_tokens: int = 0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    sampling_seed: int = 0
    stop_ids: frozenset[int] = frozenset()

    @classmethod
    def of(cls, fields: Mapping[str, Any], eos_ids: Seq[int], vocab_size: int) -> Sampling:
        """From checked fields (`wire.check_sampling`). `ignore_eos` drops every stop id, as in SGLang. Without a seed
        one is drawn. Raises ValueError for ids outside the vocabulary."""
        values = dict(fields)
        ignore_eos = values.pop("ignore_eos", False)
        stops = values.pop("stop_token_ids", None) or []
        bias = {int(k): v for k, v in (values.pop("logit_bias", None) or {}).items()}
        for name, ids in (("stop_token_ids", stops), ("logit_bias", bias)):
            for i in ids:
                if i >= vocab_size:
                    raise ValueError(f"{name} has id {i}; the vocabulary has {vocab_size} entries")
        seed = values.pop("sampling_seed", None)
        return cls(
            **values,
            logit_bias=bias,
            sampling_seed=secrets.randbits(63) if seed is None else seed,
            stop_ids=frozenset() if ignore_eos else frozenset([*eos_ids, *stops]),
        )

    @property
    def penalised(self) -> bool:
        return self.repetition_penalty != 1 or self.frequency_penalty != 0 or self.presence_penalty != 0

    @property
    def filtered(self) -> bool:
        return self.top_k > 0 or self.top_p < 1 or self.min_p > 0


def uniform(seed: int, choice: int, position: int) -> float:
    """In [0, 1): splitmix64 over the three numbers."""
    x = seed & MASK64
    for part in (choice, position):
        x = (x + 0x9E3779B97F4A7C15 * (part + 1)) & MASK64
        x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK64
        x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK64
        x ^= x >> 31
    return (x >> 11) / (1 << 53)


def sample(logits: Tensor, sequences: Seq[Sequence]) -> tuple[list[int], list[LogprobRow | None]]:
    """Next token of each row. logits fp32 [R, V], changed in place. Grammar states are read, not advanced."""
    raw = _raw_logprobs(logits, sequences)
    _adjust(logits, sequences)
    tokens = logits.argmax(-1)
    drawn = [r for r, s in enumerate(sequences) if s.request.sampling.temperature > 0]
    if drawn:
        tokens[drawn] = _draw(logits[drawn], [sequences[r] for r in drawn])
    ids = tokens.tolist()
    return ids, [_logprob_row(raw, r, s, ids[r]) for r, s in enumerate(sequences)]


def _adjust(logits: Tensor, sequences: Seq[Sequence]) -> None:
    for r, s in enumerate(sequences):
        p = s.request.sampling
        if p.logit_bias:
            ids = torch.tensor(list(p.logit_bias), device=logits.device)
            logits[r, ids] += torch.tensor(list(p.logit_bias.values()), device=logits.device)
        if p.penalised:
            _penalise(logits[r], s)
        if s.generated < p.min_new_tokens and p.stop_ids:
            logits[r, list(p.stop_ids)] = float("-inf")
        if s.constraint is not None:
            s.constraint.mask(logits[r])
            if logits[r].max() == float("-inf"):  # the text is complete below min_new_tokens: end it all the same
                logits[r, list(p.stop_ids or s.constraint.stop_ids)] = 0.0


def _penalise(row: Tensor, s: Sequence) -> None:
    """`s.counts` [2, V]: how often each id occurs in the output, and whether it occurs at all."""
    p = s.request.sampling
    if s.counts is None:
        s.counts = torch.zeros(2, len(row), device=row.device)
        s.counts[1, torch.tensor(s.tokens, device=row.device)] = 1
        for i in s.output:
            s.counts[0, i] += 1
    elif s.generated:
        s.counts[0, s.tokens[-1]] += 1
        s.counts[1, s.tokens[-1]] = 1
    output, seen = s.counts
    if p.repetition_penalty != 1:
        scaled = torch.where(row > 0, row / p.repetition_penalty, row * p.repetition_penalty)
        torch.where(seen > 0, scaled, row, out=row)
    row -= p.frequency_penalty * output + p.presence_penalty * (output > 0)


def _draw(logits: Tensor, sequences: Seq[Sequence]) -> Tensor:
    device = logits.device
    params = [s.request.sampling for s in sequences]

    def column(values: list[float]) -> Tensor:
        return torch.tensor(values, dtype=torch.float64, device=device)[:, None]

    probs = torch.softmax(logits.double() / column([p.temperature for p in params]), -1)
    index = None
    if any(p.filtered for p in params):
        probs, index = probs.sort(dim=-1, descending=True, stable=True)
        before = probs.cumsum(-1) - probs
        rank = torch.arange(probs.shape[1], device=device)
        top_k = column([p.top_k if p.top_k > 0 else probs.shape[1] for p in params])
        min_p = column([p.min_p for p in params])
        keep = (rank < top_k) & (before <= column([p.top_p for p in params])) & (probs >= min_p * probs[:, :1])
        keep[:, 0] = True
        probs = probs.masked_fill(~keep, 0.0)
    total = probs.cumsum(-1)
    numbers = column([uniform(p.sampling_seed, s.index, s.generated) for p, s in zip(params, sequences, strict=True)])
    picked = torch.searchsorted(total, numbers * total[:, -1:], right=True)
    # Rounding may carry the number to the very end, behind the last token with any probability.
    last = (probs > 0).double().mul(torch.arange(1, probs.shape[1] + 1, device=device)).argmax(-1, keepdim=True)
    picked = torch.minimum(picked, last)
    return (picked if index is None else index.gather(1, picked))[:, 0]


def _raw_logprobs(logits: Tensor, sequences: Seq[Sequence]) -> dict[int, Tensor]:
    rows = [r for r, s in enumerate(sequences) if s.request.logprobs is not None]
    if not rows:
        return {}
    return dict(zip(rows, torch.log_softmax(logits[rows], -1), strict=True))


def _logprob_row(raw: dict[int, Tensor], r: int, s: Sequence, token: int) -> LogprobRow | None:
    count = s.request.logprobs
    if count is None:
        return None
    row = raw[r]
    best = row.topk(min(count, len(row)))
    top = list(zip(best.values.tolist(), best.indices.tolist(), strict=True))
    return (row[token].item(), token, top)
