"""Row statistics against faults that are planted: disagreement, non-finite values, masks, shards, fingerprints."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from checkengine.benchmarks.figure import figure
from checkengine.detectors.logits import RowStats, merge, row_stats
from checkengine.detectors.logits.fingerprint import OFFSET, column_keys
from checkengine.guards.nonfinite import NonFiniteGuard
from checkengine.guards.settings import UniformSettings
from checkengine.guards.step import StepView
from checkengine.guards.uniform import UniformGuard

EXACT = ("nonfinite", "invalid", "maximum", "minimum", "nan", "positive_infinite", "negative_infinite", "argmax")
EXACT_AT_FULL = (*EXACT, "margin", "runner_up", "fingerprint")
CLOSE = ("logsumexp", "entropy")
DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
VOCABULARY = 151_936
ROTATED = 48
"""Columns of a rotation; they lie anywhere in the row."""
Bits = NDArray[np.uint64]
Figures = list[dict[str, Any]]


def agreement_figures() -> Figures:
    """numba beside torch, and shards merged beside the whole, on ordinary rows and rows with every fault."""
    backends, shards, distance = 0, 0, 0.0
    for dtype in DTYPES:
        logits = faulty_rows(dtype)
        whole, plain = row_stats(logits, backend="numba"), row_stats(logits, backend="torch")
        backends += differing(whole, plain)
        for ranks in (2, 3, 8):
            edges = [logits.shape[1] * rank // ranks for rank in range(ranks + 1)]
            parts = [row_stats(logits[:, a:b], first_column=a) for a, b in pairwise(edges)]
            merged = merge(parts)
            shards += differing(merged, whole)
            distance = max(distance, farthest(merged, whole))
        distance = max(distance, farthest(whole, plain))
    return [
        figure("logits.backends.differ", backends, "values that must be equal", 0),
        figure("logits.merge.differ", shards, "values that must be equal", 0),
        figure("logits.logsumexp_entropy.apart", distance, "nats (relative above 1)", 1e-5),
    ]


def faulty_rows(dtype: torch.dtype, columns: int = 30_011) -> torch.Tensor:
    logits = torch.randn(16, columns, generator=torch.Generator().manual_seed(7)) * 5
    logits[0, 5], logits[1, -1], logits[2, 9000] = math.nan, math.inf, -math.inf
    logits[3], logits[4], logits[5, 1:] = -math.inf, math.nan, -math.inf
    logits[6, : columns // 2], logits[6, columns // 2 :] = math.nan, -math.inf
    logits[7], logits[8, ::7] = 0.0, -0.0
    return logits.to(dtype)


def differing(a: RowStats, b: RowStats) -> int:
    names = EXACT_AT_FULL if a.level == "full" else ("nonfinite", "invalid", "maximum", "minimum")
    pairs = [(getattr(a, name), getattr(b, name)) for name in names]
    return sum(int((~((x == y) | ((x != x) & (y != y)))).sum()) for x, y in pairs)


def farthest(a: RowStats, b: RowStats) -> float:
    """NaN and infinities must match, or the distance is infinite."""
    largest = 0.0
    for name in CLOSE:
        x, y = (np.asarray(getattr(stats, name), np.float64) for stats in (a, b))
        same = (x == y) | (np.isnan(x) & np.isnan(y))
        with np.errstate(invalid="ignore"):
            distance = np.abs(x - y) / np.maximum(np.abs(y), 1)
        largest = max(largest, float(np.where(same, 0, np.nan_to_num(distance, nan=np.inf)).max()))
    return largest


def fault_figures(steps: int) -> Figures:
    """Steps of eight sequences with one to four verify rows each, half of them masked; a fault in half the steps."""
    random = np.random.default_rng(11)
    missed = wrong = healthy = planted = 0
    for number in range(steps):
        stats_of = np.repeat(np.arange(8), random.integers(1, 5, 8)).astype(np.int32)
        logits = torch.from_numpy(random.standard_normal((len(stats_of), 2048), np.float32) * 4)
        masked = random.random(len(stats_of)) < 0.5
        for row in np.flatnonzero(masked).tolist():
            mask(logits[row], random)
        expected = ""
        if number % 2:
            row = int(random.integers(len(stats_of)))
            plant(logits[row], random, masked=bool(masked[row]))
            expected = f"s{stats_of[row]}"
            planted += 1
        dtype = DTYPES[number % len(DTYPES)]
        stats = row_stats(logits.to(dtype), "full" if number % 3 else "screen")
        found = {finding.sequence for finding in findings(view(stats, stats_of, masked))}
        missed += bool(expected) and expected not in found
        wrong += len(found - {expected})
        healthy += len(stats_of) - bool(expected)
    return [
        figure("logits.faults.missed", missed, f"of {planted} planted", 0),
        figure("logits.masked.false", wrong, f"findings on {healthy} healthy rows, half of them masked", 0),
    ]


def mask(row: torch.Tensor, random: np.random.Generator) -> None:
    """A grammar, a top-k, banned tokens, a forced token, or a bias that masks with a large negative number."""
    kind = random.integers(5)
    allowed = int((20, 50, len(row) - 3, 1, 40)[kind])
    value = -1e4 if kind == 4 else -math.inf
    row[torch.from_numpy(random.permutation(len(row))[allowed:])] = value


def plant(row: torch.Tensor, random: np.random.Generator, *, masked: bool) -> None:
    """NaN or an infinity in one place or in all; -inf alone is no fault in a masked row that has others."""
    values = (math.nan, math.inf, math.nan, math.inf, -math.inf, -math.inf)
    kind = int(random.integers(6))
    everywhere = kind in (2, 3, 4) or (kind == 5 and masked)
    row[slice(None) if everywhere else int(random.integers(len(row)))] = values[kind]


def findings(step: StepView) -> list[Any]:
    return [*NonFiniteGuard().observe(step), *UniformGuard(UniformSettings(), 2048).observe(step)]


def view(stats: RowStats, stats_of: NDArray[np.int32], masked: NDArray[np.bool_]) -> StepView:
    return StepView(
        step=0,
        time=0.0,
        sequences=tuple(f"s{row}" for row in range(8)),
        tokens=tuple((1,) * int(count) for count in np.bincount(stats_of, minlength=8)),
        stats=stats,
        prompt_lengths=np.zeros(8, np.int32),
        output_lengths=np.zeros(8, np.int32),
        masked=masked,
        stats_of=stats_of,
    )


def fingerprint_figures(tries: int) -> Figures:
    """Changes that a fingerprint did not notice. Each try changes a row of 151,936 float32 logits; terms that stay
    the same cancel, so only the changed ones are computed."""
    random = np.random.default_rng(5)
    row = (random.standard_normal(VOCABULARY).astype(np.float32) * 4).view(np.uint32)
    return [
        figure(f"logits.fingerprint.{name}", changes(random, row, tries), f"missed of {tries}", 0)
        for name, changes in (("flips", missed_flips), ("swaps", missed_swaps), ("rotations", missed_rotations))
    ]


def terms(bits: NDArray[np.uint32], columns: NDArray[np.int64]) -> Bits:
    product = (bits.astype(np.uint64) + np.uint64(OFFSET)) * column_keys(VOCABULARY)[columns]
    return product ^ (product >> np.uint64(32))


def missed_flips(random: np.random.Generator, row: NDArray[np.uint32], tries: int) -> int:
    """One bit of one element, and the same bit of two."""
    first = random.integers(0, VOCABULARY, tries)
    second = (first + random.integers(1, VOCABULARY, tries)) % VOCABULARY
    bit = np.uint32(1) << random.integers(0, 32, tries).astype(np.uint32)
    change = terms(row[first] ^ bit, first) - terms(row[first], first)
    both = change + terms(row[second] ^ bit, second) - terms(row[second], second)
    return int((change == 0).sum() + (both == 0).sum())


def missed_swaps(random: np.random.Generator, row: NDArray[np.uint32], tries: int) -> int:
    first = random.integers(0, VOCABULARY, tries)
    second = (first + random.integers(1, VOCABULARY, tries)) % VOCABULARY
    before = terms(row[first], first) + terms(row[second], second)
    after = terms(row[second], first) + terms(row[first], second)
    return int(((before == after) & (row[first] != row[second])).sum())


def missed_rotations(random: np.random.Generator, row: NDArray[np.uint32], tries: int) -> int:
    """A stretch of ROTATED columns turned by 1 to ROTATED - 1 places."""
    missed, at_once = 0, 50_000
    place = np.arange(ROTATED)
    for first in range(0, tries, at_once):
        count = min(at_once, tries - first)
        columns = random.integers(0, VOCABULARY - ROTATED, count)[:, None] + place
        turned = (place + random.integers(1, ROTATED, count)[:, None]) % ROTATED
        before = row[columns]
        after = np.take_along_axis(before, turned, 1)
        missed += int((terms(before, columns).sum(1) == terms(after, columns).sum(1)).sum())
    return missed
