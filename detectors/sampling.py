"""Whether a sampled token is one that the sampler may draw, and how likely it was.

Read from what the sampler got (one row of logits a token) and from the request's parameters. What a row's parameters
leave open (penalties, biases, masks that are not in the logits) is for the caller to leave out: see `rule_of`.

A set's border is not sharp: engines divide by the temperature and sum probabilities in their own precision and order,
and they apply top-k, min-p and top-p in different orders. So a token is outside only where it is outside for every
order, beyond rounding: `Tolerance` says how much. Ties at the k-th value belong to the set.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    # A process without logits never imports torch.
    import torch

Precision = Literal["float32", "float16", "bfloat16"]

GREEDY_BELOW = 1e-5
"""vLLM and others take a lower temperature for greedy."""
LOWEST_TEMPERATURE = 0.01
"""vLLM raises what is below it. Reckoning with a higher temperature than the engine's accuses nobody: it makes
every token but the best one likelier."""

NEUTRAL: Mapping[str, tuple[object, ...]] = {
    "presence_penalty": (0, None),
    "frequency_penalty": (0, None),
    "repetition_penalty": (1, None),
    "logit_bias": ({}, (), None),
    "typical_p": (1, None),
    "top_h": (None,),
    "epsilon_cutoff": (0, None),
    "eta_cutoff": (0, None),
    "min_tokens": (0, None),
    "bad_words": ((), [], None),
    "allowed_token_ids": ((), [], None),
    "structured_outputs": (None,),
    "guided_decoding": (None,),
    "response_format": (None,),
    "grammar": (None,),
    "xtc_probability": (0, None),
    "mirostat": (0, None),
    "dry_multiplier": (0, None),
    "masked": (False, None),
}
"""Parameters that change what is sampled from, by the names that engines give them, with the values that switch them
off. An engine with a mask or a rule that has no name here says `masked: True`."""

IN_FINAL_LOGITS = frozenset(
    (
        "presence_penalty",
        "frequency_penalty",
        "repetition_penalty",
        "logit_bias",
        "min_tokens",
        "bad_words",
        "allowed_token_ids",
        "structured_outputs",
        "guided_decoding",
        "response_format",
        "grammar",
    )
)
"""Those that are in the logits already where an engine gives what its sampler gets."""


class Breach(IntEnum):
    """Why a token may not have been drawn."""

    NONE = 0
    NOT_THE_BEST = 1
    OUTSIDE_TOP_K = 2
    OUTSIDE_TOP_P = 3
    OUTSIDE_MIN_P = 4
    MASKED = 5
    """Its logit is -inf."""


@dataclass(frozen=True, slots=True)
class Rule:
    """How one sequence is sampled. temperature 0 is greedy; top_k 0, top_p 1 and min_p 0 are off."""

    temperature: float
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0

    @property
    def greedy(self) -> bool:
        return self.temperature < GREEDY_BELOW


@dataclass(frozen=True, slots=True)
class Rules:
    """Of the rows of a batch; arrays of shape (rows,)."""

    greedy: NDArray[np.bool_]
    drawn: NDArray[np.bool_]
    """Sampled with a temperature. A row that is neither is not judged."""
    temperature: NDArray[np.float64]
    top_k: NDArray[np.int64]
    top_p: NDArray[np.float64]
    min_p: NDArray[np.float64]

    @classmethod
    def of(cls, rules: Sequence[Rule | None]) -> Rules:
        """None: of this row nothing is known."""
        known = [Rule(1.0) if rule is None else rule for rule in rules]
        temperature = np.array([rule.temperature for rule in known], np.float64)
        judged = np.array([rule is not None for rule in rules], np.bool_)
        return cls(
            greedy=judged & (temperature < GREEDY_BELOW),
            drawn=judged & (temperature >= GREEDY_BELOW),
            temperature=np.maximum(temperature, LOWEST_TEMPERATURE),
            top_k=np.array([rule.top_k for rule in known], np.int64),
            top_p=np.array([rule.top_p for rule in known], np.float64),
            min_p=np.array([rule.min_p for rule in known], np.float64),
        )


@dataclass(frozen=True, slots=True)
class Tolerance:
    """What a sampler of this precision may be off by."""

    precision: Precision
    tie: float
    """Relative difference of two logits that may be one after a division: one unit in the last place, and some."""
    mass: float
    """Of a running sum of probabilities at top-p's border."""

    @classmethod
    def of(cls, precision: Precision) -> Tolerance:
        tie, mass = {"float32": (2.0**-21, 1e-4), "float16": (2.0**-10, 5e-3), "bfloat16": (2.0**-7, 3e-2)}[precision]
        return cls(precision, tie, mass)

    def ties(self, maximum: NDArray[np.float32], chosen: NDArray[np.float32]) -> NDArray[np.float32]:
        """Shape (rows,): how far below another logit one may be and still equal it for the sampler."""
        return (np.maximum(np.abs(maximum), np.abs(chosen)) * np.float32(self.tie)).astype(np.float32)

    def equal(self, left: NDArray[np.float32], right: NDArray[np.float32]) -> NDArray[np.bool_]:
        """At the sampler's precision."""
        if self.precision == "float32":
            return np.equal(left, right)
        import torch

        dtype = getattr(torch, self.precision)
        pair = torch.from_numpy(np.stack((left, right))).to(dtype)
        equal: NDArray[np.bool_] = (pair[0] == pair[1]).numpy()
        return equal


@dataclass(frozen=True, slots=True)
class Draws:
    """Of some rows, arrays of shape (rows,). Probabilities are those before top-k and top-p."""

    larger: NDArray[np.int32]
    """Logits above the token's, beyond ties."""
    above: NDArray[np.float64]
    """Probability of those."""
    miss: NDArray[np.float64]
    """Probability of a token below the best ones, an upper bound of it after any truncation."""
    own: NDArray[np.float64]
    """Probability of the token itself, a lower bound of it after any truncation."""


def rule_of(sampling: Mapping[str, object], *, final: bool = False) -> Rule | None:
    """A sequence's rule from its sampling parameters (`SequenceStart.sampling`); None where they do not tell what the
    logits become before they are sampled from. `final`: penalties, biases and masks are in the logits already."""
    for name, off in NEUTRAL.items():
        if name in sampling and sampling[name] not in off and not (final and name in IN_FINAL_LOGITS):
            return None
    try:
        return _rule(sampling)
    except (TypeError, ValueError):
        return None


def _rule(sampling: Mapping[str, Any]) -> Rule | None:
    temperature = sampling.get("temperature")
    if temperature is None or not 0 <= float(temperature) < math.inf:
        return None
    top_k, top_p, min_p = sampling.get("top_k"), sampling.get("top_p"), sampling.get("min_p")
    # vLLM writes "off" as top_k -1.
    rule = Rule(
        float(temperature),
        max(int(top_k or 0), 0),
        1.0 if top_p is None else float(top_p),
        float(min_p or 0.0),
    )
    return rule if rule.top_p > 0 and 0 <= rule.min_p <= 1 else None


def chosen_logits(logits: torch.Tensor, tokens: NDArray[np.int64]) -> NDArray[np.float32]:
    """Shape (rows,): each row's logit of its token; `tokens` must be ids of columns."""
    import torch

    rows = torch.arange(len(tokens), device=logits.device)
    picked: NDArray[np.float32] = logits[rows, torch.from_numpy(tokens).to(logits.device)].float().cpu().numpy()
    return picked


def read_draws(
    logits: torch.Tensor,
    rows: NDArray[np.int64],
    maximum: NDArray[np.float32],
    chosen: NDArray[np.float32],
    ties: NDArray[np.float32],
    rules: Rules,
) -> Draws:
    """One pass over each of `rows` of the logits (rows, vocabulary). `maximum`, `chosen`, `ties` and `rules` are of the
    whole batch. Rows with NaN or +inf give NaN. float16, bfloat16 and float32; CPU memory is read by compiled code."""
    import torch

    from checkengine.detectors.sampling_kernel import read_rows

    picked = logits if len(rows) == len(logits) else logits[torch.from_numpy(rows).to(logits.device)]
    values = picked.detach().float().cpu().contiguous().numpy()
    temperature = rules.temperature[rows]
    with np.errstate(divide="ignore"):
        floor = temperature * np.log(rules.min_p[rows]) - 2.0 * ties[rows]
    counts = np.empty(len(rows), np.int32)
    masses = np.empty((4, len(rows)), np.float64)
    read_rows(
        values,
        maximum[rows],
        chosen[rows],
        ties[rows],
        (1.0 / temperature).astype(np.float32),
        floor.astype(np.float32),
        counts,
        masses,
    )
    top, rest, near, above = masses
    total = top + rest
    own = np.exp((chosen[rows].astype(np.float64) - maximum[rows]) / temperature) / total
    return Draws(larger=counts, above=above / total, miss=near / (top + near), own=own)


def breaches(
    draws: Draws,
    rows: NDArray[np.int64],
    maximum: NDArray[np.float32],
    chosen: NDArray[np.float32],
    ties: NDArray[np.float32],
    rules: Rules,
    tolerance: Tolerance,
) -> NDArray[np.int8]:
    """Shape (len(rows),): Breach of each drawn row. A row whose numbers are NaN has none."""
    found = np.zeros(len(rows), np.int8)
    with np.errstate(divide="ignore", invalid="ignore"):
        gap = (maximum[rows].astype(np.float64) - chosen[rows] - 2.0 * ties[rows]) / rules.temperature[rows]
        below = gap > -np.log(rules.min_p[rows]) + tolerance.mass
    found[below] = Breach.OUTSIDE_MIN_P
    top_k, top_p = rules.top_k[rows], rules.top_p[rows]
    found[(top_p < 1) & (draws.above >= top_p + tolerance.mass)] = Breach.OUTSIDE_TOP_P
    found[(top_k > 0) & (draws.larger >= top_k)] = Breach.OUTSIDE_TOP_K
    found[np.isneginf(chosen[rows]) & np.isfinite(maximum[rows])] = Breach.MASKED
    return found
