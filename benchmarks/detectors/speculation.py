"""How soon a fault shows in the acceptance of drafts, how often honest acceptance is told, and what it costs.

Drafts are made: a sequence has a rate of its own, Beta distributed, that wanders from step to step (logit random walk),
and the drafts of a step are accepted up to the first that is not.
"""

from __future__ import annotations

import statistics
import time
from typing import Any

import numpy as np
from numpy.typing import NDArray

from checkengine.benchmarks.detectors import DetectorOptions
from checkengine.benchmarks.figure import figure
from checkengine.detectors.speculation import Acceptance, AcceptanceCounts

DRAFTS = 3
STEPS = 400


def figures(options: DetectorOptions) -> list[dict[str, Any]]:
    sequences = 500 if options.quick else 10_000
    random = np.random.default_rng(0)
    return [
        *false_figures(random, sequences),
        *(delay_figure(random, name, before, after) for name, before, after in CASES),
        cost_figure(20 if options.quick else 200),
    ]


CASES = (
    ("corrupt from the start", 0.05, 0.05),
    ("corrupt from token 500 on", 0.7, 0.02),
    ("a loop from token 500 on", 0.7, 1.0),
)


def accepted(random: np.random.Generator, rate: NDArray[np.float64]) -> NDArray[np.int64]:
    hits = random.random((len(rate), DRAFTS)) < rate[:, None]
    found: NDArray[np.int64] = np.cumprod(hits, axis=1).sum(axis=1)
    return found


def false_figures(random: np.random.Generator, sequences: int) -> list[dict[str, Any]]:
    """Mean rate 0.7 (Beta(14, 6)), wandering by 0.15 logits a step and pulled back. A few sequences have a rate of
    their own so low that the field's threshold for the length tells them."""
    low, changed = np.zeros(sequences, np.bool_), np.zeros(sequences, np.bool_)
    counts = AcceptanceCounts()
    counts.clear(sequences)
    own = random.beta(14, 6, sequences)
    centre = np.log(own / (1 - own))
    logit, slots, proposed = centre.copy(), np.arange(sequences), np.full(sequences, DRAFTS)
    for _ in range(STEPS):
        logit += 0.05 * (centre - logit) + 0.15 * random.standard_normal(sequences)
        for index, reading in counts.add(slots, proposed, accepted(random, 1 / (1 + np.exp(-logit)))):
            low[index] |= reading.kind is Acceptance.LOW
            changed[index] |= reading.kind in (Acceptance.FALLEN, Acceptance.RISEN)
    unit = f"of {sequences} honest sequences of ~{STEPS * 2} tokens"
    return [
        figure("speculation.false, length below 1.4", int(low.sum()), unit, 0),
        figure("speculation.false, fallen or risen", int(changed.sum()), unit, 0),
    ]


def delay_figure(random: np.random.Generator, name: str, before: float, after: float) -> dict[str, Any]:
    """Output tokens from the fault to the finding."""
    delays = []
    for _ in range(50):
        counts, tokens, struck, step = AcceptanceCounts(), 0, -1, 0
        while step < 4000:
            faulty = before == after or tokens >= 500
            if faulty and struck < 0:
                struck = tokens
            number = accepted(random, np.array([after if faulty else before]))
            tokens += int(number[0]) + 1
            step += 1
            if counts.add(np.zeros(1, np.int64), np.array([DRAFTS]), number) and faulty:
                break
        delays.append(tokens - struck)
    return figure(f"speculation.delay, {name}", float(np.percentile(delays, 95)), "tokens, p95 of 50", 300)


def cost_figure(repeats: int) -> dict[str, Any]:
    counts, random = AcceptanceCounts(), np.random.default_rng(2)
    counts.clear(256)
    slots, proposed = np.arange(256), np.full(256, DRAFTS)
    spent = []
    for _ in range(repeats):
        number = accepted(random, np.full(256, 0.7))
        before = time.process_time_ns()
        counts.add(slots, proposed, number)
        spent.append(time.process_time_ns() - before)
    return figure("speculation.cost, batch 256", statistics.median(spent) / 256, "ns a row", 1000)
