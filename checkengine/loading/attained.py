"""What a run attained: TTFT and time between tokens against their limits, by length of prompt and share of hits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from checkengine.benchmarks.figure import figure
from checkengine.loading.client import Sample
from checkengine.loading.drive import Run
from checkengine.loading.planned import Planned

LENGTHS = (0, 128, 512, 2048, 8192, 1 << 62)
"""Bounds of the bands, in tokens of the prompt as planned."""
HITS = (0.0, 0.25, 0.5, 0.9, 1.01)
"""Bounds of the bands, in shares of the prompt that an earlier request of the run held."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Of the service level: the lecture's TTFT < 500 ms and TBT < 30 ms, for `share` of the requests."""

    ttft: float = 0.5
    tbt: float = 0.03
    share: float = 0.99


def meets(sample: Sample, limits: Limits) -> bool:
    """Failed requests do not. Of an answer of one token only the first limit is asked."""
    if sample.error is not None or sample.ttft is None:
        return False
    return sample.ttft < limits.ttft and (sample.tbt is None or sample.tbt < limits.tbt)


def attainment(run: Run, limits: Limits) -> float:
    return float(np.mean([meets(sample, limits) for sample in run.samples])) if run.samples else 0.0


def figures_of(run: Run, limits: Limits, rate: float) -> list[dict[str, Any]]:
    """Of one run at `rate` requests a second."""
    samples = run.samples
    good = [each for each in samples if each.error is None]
    found = [
        figure("load.attained", attainment(run, limits), "share", limits.share, at_least=True, peer=("QPS", rate)),
        figure("load.failed", len(samples) - len(good), "requests", 0.0, peer=("requests", len(samples))),
    ]
    for name, values, limit in (
        ("ttft", [each.ttft for each in good if each.ttft is not None], limits.ttft),
        ("tbt", [each.tbt for each in good if each.tbt is not None], limits.tbt),
    ):
        for percentile in (50, 99):
            if values:
                value = 1e3 * float(np.percentile(values, percentile))
                found.append(figure(f"load.{name}_p{percentile}", value, "ms", 1e3 * limit))
    worst = [max(each.gaps) for each in good if each.gaps]
    if worst:
        found.append(figure("load.longest_gap_p50", 1e3 * float(np.median(worst)), "ms", 1e3 * limits.ttft))
    found += _counts(run, good)
    return [*found, *bands(run, limits)]


def _counts(run: Run, good: Sequence[Sample]) -> Iterator[dict[str, Any]]:
    seconds = max(1e-9, run.seconds)
    tokens = sum(each.output_tokens or len(each.pieces) for each in good)
    yield figure("load.output_tokens_per_second", tokens / seconds, "token/s", 0.0, at_least=True)
    planned = sum(request.shared_tokens for request in run.requests) / max(
        1, sum(request.input_tokens for request in run.requests)
    )
    counted = [each for each in good if each.cached_tokens is not None and each.prompt_tokens]
    if counted:
        hits = sum(each.cached_tokens or 0 for each in counted) / sum(each.prompt_tokens or 0 for each in counted)
        yield figure("load.hit_share", hits, "share", 0.0, at_least=True, peer=("planned", planned))
    else:
        yield figure("load.planned_hit_share", planned, "share", 0.0, at_least=True)
    yield figure("load.generator_late", 1e3 * run.late, "ms", 50.0)


def bands(run: Run, limits: Limits) -> list[dict[str, Any]]:
    """Attainment of each band that holds a request, with their number."""
    found = []
    for low, high in pairwise(LENGTHS):
        for least, most in pairwise(HITS):
            own = [
                sample
                for request, sample in zip(run.requests, run.samples, strict=True)
                if _is_in(request, (low, high), (least, most))
            ]
            if own:
                share = float(np.mean([meets(sample, limits) for sample in own]))
                length = f"{low}-{high - 1} tokens" if high < LENGTHS[-1] else f"{low}+ tokens"
                name = f"load.attained, {length}, hits {least:.0%}-{min(1.0, most):.0%}"
                found.append(figure(name, share, "share", limits.share, at_least=True, peer=("requests", len(own))))
    return found


def _is_in(request: Planned, length: tuple[int, int], hits: tuple[float, float]) -> bool:
    return length[0] <= request.input_tokens < length[1] and hits[0] <= request.hit_share < hits[1]
