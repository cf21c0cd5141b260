"""What audits without a conviction prove: an upper bound on the rate of faults."""

from __future__ import annotations

import math

HALVINGS = 100


def rate_bound(audited: int, convicted: int = 0, confidence: float = 0.95) -> float:
    """One-sided upper bound on the share of faulty rows, after Clopper and Pearson (1934).

    Without a conviction it is 1 - (1 - confidence)^(1 / audited): the rule of three, about 3 / audited at 95 %.
    1.0 where nothing was audited. Raises ValueError where more were convicted than audited.
    """
    if not 0 <= convicted <= audited:
        raise ValueError(f"{convicted} convicted of {audited} audited")
    if convicted == audited:
        return 1.0
    if not convicted:
        return -math.expm1(math.log1p(-confidence) / audited)
    low, high = convicted / audited, 1.0
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if at_most(convicted, audited, middle) > 1 - confidence else (low, middle)
    return high


def at_most(convicted: int, audited: int, rate: float) -> float:
    """Probability of so few convictions, or fewer, at a rate in (0, 1)."""
    logs = (
        math.lgamma(audited + 1)
        - math.lgamma(k + 1)
        - math.lgamma(audited - k + 1)
        + k * math.log(rate)
        + (audited - k) * math.log1p(-rate)
        for k in range(convicted + 1)
    )
    return math.fsum(math.exp(log) for log in logs)
