"""A probe's result as one SVG: the ratio of copies to shared over the weight's size, and where the cache ends."""

from __future__ import annotations

import math

from checkengine.probing.residency import Residency

WIDTH, HEIGHT, MARGIN = 720, 360, 56
MIB = 2**20


def as_svg(found: Residency) -> str:
    """Readable on light and dark ground alike; no script, no font from outside."""
    sizes = [each.bytes for each in found.sharing]
    if not sizes:
        return _page('<text x="20" y="40">no size was measured</text>')
    across = _scale(math.log2(min(sizes)), math.log2(max(*sizes, found.cache)), MARGIN, WIDTH - 20)
    up = _scale(0.5, max(2.0, *(each.high for each in found.sharing)), HEIGHT - MARGIN, 20)
    points = [(across(math.log2(each.bytes)), each) for each in found.sharing]
    line = " ".join(f"{x:.1f},{up(each.ratio):.1f}" for x, each in points)
    parts = [
        f'<line class="rule" x1="{MARGIN}" x2="{WIDTH - 20}" y1="{up(1):.1f}" y2="{up(1):.1f}"/>',
        f'<line class="cache" x1="{across(math.log2(found.cache)):.1f}" x2="{across(math.log2(found.cache)):.1f}"'
        f' y1="20" y2="{HEIGHT - MARGIN}"/>',
        f'<text x="{across(math.log2(found.cache)) - 6:.1f}" y="34" text-anchor="end">'
        f"last cache: {found.cache / MIB:.0f} MiB</text>",
        *(
            f'<line class="bar" x1="{x:.1f}" x2="{x:.1f}" y1="{up(e.low):.1f}" y2="{up(e.high):.1f}"/>'
            for x, e in points
        ),
        f'<polyline points="{line}"/>',
        *(f'<circle cx="{x:.1f}" cy="{up(each.ratio):.1f}" r="3"/>' for x, each in points),
        *(
            f'<text x="{x:.1f}" y="{HEIGHT - MARGIN + 18}" text-anchor="middle">{_short(each.bytes)}</text>'
            for x, each in points
        ),
        *(f'<text x="{MARGIN - 8}" y="{up(y) + 4:.1f}" text-anchor="end">{y:g}</text>' for y in (0.5, 1.0, 1.5, 2.0)),
        f'<text x="{WIDTH / 2}" y="{HEIGHT - 12}" text-anchor="middle">weight, MiB</text>',
        f'<text x="{MARGIN}" y="14">time of eight copies ÷ time of one shared weight (above 1: sharing pays)</text>',
    ]
    return _page("".join(parts))


def _short(size: int) -> str:
    mib = size / MIB
    return f"{mib:.0f}" if mib >= 10 else f"{mib:.2g}"


def _scale(low: float, high: float, begin: float, end: float) -> _Line:
    return _Line(low, max(high - low, 1e-9), begin, end)


class _Line:
    def __init__(self, low: float, span: float, begin: float, end: float) -> None:
        self.low, self.span, self.begin, self.end = low, span, begin, end

    def __call__(self, value: float) -> float:
        return self.begin + (value - self.low) / self.span * (self.end - self.begin)


def _page(content: str) -> str:
    style = (
        "text{font:12px system-ui,sans-serif;fill:#667}polyline{fill:none;stroke:#2a7de1;stroke-width:2}"
        "circle{fill:#2a7de1}.rule{stroke:#99a;stroke-dasharray:4 4}.cache{stroke:#d9822b}.bar{stroke:#2a7de188}"
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        f'aria-label="Time of eight copies over time of one shared weight, by size"><style>{style}</style>'
        f"{content}</svg>\n"
    )
