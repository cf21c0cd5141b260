"""Charts as SVG, made here: no script, no style attribute, and a sentence for who cannot see them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

from checkengine.dashboards.web.text import visible

WIDTH, HEIGHT = 120.0, 28.0
PLOT_WIDTH, PLOT_HEIGHT = 640.0, 160.0
LEFT, BOTTOM, TOP = 46.0, 20.0, 8.0


def sparkline(values: Sequence[float | None], words: str) -> Markup:
    """Bars, one a value, the tallest fills the height; None leaves a gap. `words` is its text alternative. Empty where
    there is nothing to draw."""
    known = [value for value in values if value is not None and math.isfinite(value)]
    top = max(known, default=0.0)
    if top <= 0:
        return Markup("")
    step = WIDTH / max(1, len(values))
    bars = []
    for place, value in enumerate(values):
        if value is None or not math.isfinite(value) or value < 0:
            continue
        height = max(1.0, value / top * (HEIGHT - 2))
        kind = "" if value > 0 else ' class="zero"'
        width = max(1.0, step - 1)
        bars.append(
            f'<rect{kind} x="{place * step:.1f}" y="{HEIGHT - height:.1f}" width="{width:.1f}" height="{height:.1f}"/>'
        )
    return Markup(
        f'<svg class="spark" role="img" aria-label="{escape(visible(words))}" viewBox="0 0 {WIDTH:g} {HEIGHT:g}" '
        f'preserveAspectRatio="none">{"".join(bars)}</svg>'
    )


def ratio_line(values: Sequence[float | None], objective: float, words: str) -> Markup:
    """A share over time against its objective: the line is the share, the rule is the objective."""
    known = [value for value in values if value is not None]
    if not known:
        return Markup("")
    low = min([*known, objective])
    low -= max((1 - low) * 0.2, 1e-6)
    scale = (HEIGHT - 4) / (1 - low)

    def y(value: float) -> float:
        return HEIGHT - 2 - (value - low) * scale

    step = WIDTH / max(1, len(values) - 1)
    points = " ".join(f"{place * step:.1f},{y(value):.1f}" for place, value in enumerate(values) if value is not None)
    rule = f'<line class="rule" x1="0" y1="{y(objective):.1f}" x2="{WIDTH:g}" y2="{y(objective):.1f}"/>'
    return Markup(
        f'<svg class="spark" role="img" aria-label="{escape(visible(words))}" viewBox="0 0 {WIDTH:g} {HEIGHT:g}" '
        f'preserveAspectRatio="none">{rule}<polyline points="{points}"/></svg>'
    )


@dataclass(frozen=True, slots=True)
class Point:
    time: float
    log_evidence: float
    """Natural logarithm of the e-value."""


def evidence_chart(points: Sequence[Point], threshold: float, words: str) -> Markup:
    """E-values on a logarithmic scale over time, and the threshold at which an alarm is given."""
    if not points:
        return Markup("")
    first, last = points[0].time, points[-1].time
    span = max(1.0, last - first)
    tens = [point.log_evidence / math.log(10) for point in points]
    limit = threshold / math.log(10)
    high = math.ceil(max([limit, *tens]) + 0.5)
    low = min(0.0, math.floor(min(tens)))
    plot = PLOT_HEIGHT - BOTTOM - TOP

    def x(time: float) -> float:
        return LEFT + (time - first) / span * (PLOT_WIDTH - LEFT - 8)

    def y(ten: float) -> float:
        return TOP + plot - (ten - low) / (high - low) * plot

    ticks = "".join(
        f'<line class="grid" x1="{LEFT:g}" y1="{y(ten):.1f}" x2="{PLOT_WIDTH - 8:g}" y2="{y(ten):.1f}"/>'
        f'<text x="{LEFT - 6:g}" y="{y(ten) + 4:.1f}" text-anchor="end">1e{ten:g}</text>'
        for ten in ticks_of(low, high)
    )
    line = " ".join(f"{x(point.time):.1f},{y(ten):.1f}" for point, ten in zip(points, tens, strict=True))
    marks = "".join(
        f'<circle cx="{x(point.time):.1f}" cy="{y(ten):.1f}" r="3"/>'
        for point, ten in zip(points, tens, strict=True)
        if ten >= limit
    )
    rule = f'<line class="rule" x1="{LEFT:g}" y1="{y(limit):.1f}" x2="{PLOT_WIDTH - 8:g}" y2="{y(limit):.1f}"/>'
    name = f'<text class="rule" x="{PLOT_WIDTH - 10:g}" y="{y(limit) - 4:.1f}" text-anchor="end">threshold</text>'
    return Markup(
        f'<svg class="plot" role="img" aria-label="{escape(visible(words))}" '
        f'viewBox="0 0 {PLOT_WIDTH:g} {PLOT_HEIGHT:g}">'
        f'{ticks}{rule}{name}<polyline points="{line}"/>{marks}</svg>'
    )


def ticks_of(low: float, high: float) -> list[float]:
    step = max(1, math.ceil((high - low) / 5))
    return [low + step * place for place in range(int((high - low) // step) + 1)]
