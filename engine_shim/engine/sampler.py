"""From raw logits to a token: a pure function of logits, parameters, the tokens so far and (seed, position).

The draw is a Gumbel maximum: every token has its own noise, a hash of (seed, position, token), and the largest sum of
score and noise wins. So another batch shape, which moves logits by a rounding, changes a token only where two sums
nearly tie. (Maddison et al. 2014, "A* Sampling".)
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from checkengine.engine_shim.engine.compiling import compiled
from checkengine.engine_shim.engine.request import SamplingParameters
from checkengine.engine_shim.faults.fault import Fault

Floats = NDArray[np.float32]


def sample(
    logits: NDArray[Any],
    sampling: SamplingParameters,
    prompt_tokens: Sequence[int],
    output_tokens: Sequence[int],
    position: int,
) -> int:
    """The next token of one row. `logits` has shape (vocabulary,), raw; `position` is the token's in its sequence.

    A row with NaN gives its first NaN's index, as an argmax does: token 0 where all are NaN. It does not raise.
    """
    scores = _penalised(logits, sampling, prompt_tokens, output_tokens)
    if sampling.temperature == 0 or np.isnan(scores).any():
        return int(np.argmax(scores))
    scores = scores / np.float32(sampling.temperature)
    return int(_gumbel_argmax(_filtered(scores, sampling), np.uint64(sampling.seed), np.uint64(position)))


@dataclass(frozen=True, slots=True)
class SamplingRow:
    """What one row's next token depends on, apart from its logits."""

    sampling: SamplingParameters
    prompt_tokens: Sequence[int]
    output_tokens: Sequence[int]
    masked: Sequence[int] = ()
    """Tokens that are masked out of sampling."""


def masked_tokens(
    faults: Sequence[Fault], logits: torch.Tensor, position: int, output_tokens: Sequence[int], stops: Collection[int]
) -> tuple[int, ...]:
    """What planted faults keep one row's token from being: the only masks that this engine has."""
    masked = {token for fault in faults for token in fault.loses(logits, position)}
    if any(fault.masks_stop(output_tokens) for fault in faults):
        masked.update(stops)
    return tuple(sorted(masked))


def sample_rows(logits: torch.Tensor, rows: Sequence[SamplingRow], faults: Sequence[Fault] = ()) -> NDArray[np.int32]:
    """The next token of every row of raw logits (rows, vocabulary)."""
    for fault in faults:
        rows = fault.sampling(rows)
    scores = logits.numpy()
    tokens = np.fromiter((_sample_row(scores[i], row) for i, row in enumerate(rows)), np.int32, len(rows))
    for fault in faults:
        tokens = fault.sampled(tokens, scores.shape[1])
    return tokens


def _sample_row(logits: NDArray[Any], row: SamplingRow) -> int:
    if row.masked:
        logits = logits.copy()
        logits[list(row.masked)] = -np.inf
    position = len(row.prompt_tokens) + len(row.output_tokens)
    return sample(logits, row.sampling, row.prompt_tokens, row.output_tokens, position)


def _penalises(sampling: SamplingParameters) -> bool:
    return bool(sampling.presence_penalty or sampling.frequency_penalty or sampling.repetition_penalty != 1.0)


def _penalised(
    logits: NDArray[Any], sampling: SamplingParameters, prompt_tokens: Sequence[int], output_tokens: Sequence[int]
) -> Floats:
    """Presence and frequency count output tokens, repetition prompt tokens too (OpenAI's and CTRL's definitions)."""
    if not _penalises(sampling):
        return logits
    scores = logits.copy()
    if sampling.repetition_penalty != 1.0:
        seen = np.unique(np.concatenate((np.asarray(prompt_tokens, np.int64), np.asarray(output_tokens, np.int64))))
        factor = np.float32(sampling.repetition_penalty)
        scores[seen] = np.where(scores[seen] > 0, scores[seen] / factor, scores[seen] * factor)
    used, counts = np.unique(np.asarray(output_tokens, np.int64), return_counts=True)
    scores[used] -= np.float32(sampling.frequency_penalty) * counts.astype(np.float32)
    scores[used] -= np.float32(sampling.presence_penalty)
    return scores


def _filtered(scores: Floats, sampling: SamplingParameters) -> Floats:
    """Scores with −inf where top-k, then min-p, then top-p exclude a token."""
    if 0 < sampling.top_k < len(scores):
        floor = np.partition(scores, -sampling.top_k)[-sampling.top_k]
        scores = np.where(scores < floor, np.float32(-np.inf), scores)
    if sampling.min_p > 0:
        floor = scores.max() + np.float32(np.log(sampling.min_p))
        scores = np.where(scores < floor, np.float32(-np.inf), scores)
    if sampling.top_p < 1:
        scores = np.where(scores < _nucleus_floor(scores, sampling.top_p), np.float32(-np.inf), scores)
    return scores


_NUCLEUS_GUESS = 1024


def _nucleus_floor(scores: Floats, top_p: float) -> np.floating[Any]:
    """The smallest score in the smallest set of tokens whose probability reaches top_p."""
    probabilities = np.exp((scores - scores.max()).astype(np.float64))
    wanted = top_p * probabilities.sum()
    size = min(_NUCLEUS_GUESS, len(scores))
    order = np.argpartition(probabilities, -size)[-size:]
    if probabilities[order].sum() < wanted:
        order = np.arange(len(scores))
    order = order[np.argsort(-probabilities[order], kind="stable")]
    last = int(np.searchsorted(np.cumsum(probabilities[order]), wanted))
    return scores[order[min(last, len(order) - 1)]]  # type: ignore[no-any-return]


@compiled
def _mix(value: Any) -> Any:
    """The finaliser of splitmix64 (Steele, Lea, Flood 2014)."""
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return value ^ (value >> np.uint64(31))


@compiled
def _gumbel_argmax(scores: Any, seed: Any, position: Any) -> int:
    golden = np.uint64(0x9E3779B97F4A7C15)
    stream = _mix(_mix(seed + golden) ^ (position * golden + golden))
    best, winner = -np.inf, 0
    for token in range(len(scores)):
        score = np.float64(scores[token])
        # No noise is above 37 (53 bits of a uniform): most tokens need no hash.
        if score + 37.0 <= best or score == -np.inf:
            continue
        uniform = (np.float64(_mix(stream + np.uint64(token) * golden) >> np.uint64(11)) + 0.5) * 2.0**-53
        # The noise -log(-log u) is below -log(1 - u) <= 1 / (1 - u): cheap bounds before two logarithms.
        if score + 1.0 / (1.0 - uniform) <= best:
            continue
        total = score - np.log(-np.log(uniform))
        if total > best:
            best, winner = total, token
    return winner


def warm_up() -> None:
    """Compiles what would else compile on the first draw."""
    _gumbel_argmax(np.zeros(8, np.float32), np.uint64(0), np.uint64(0))
