"""How numbers, times and kinds of findings are said."""

from __future__ import annotations

import math
import time as clocks

KINDS = {
    "logits.nonfinite": "NaN or infinity in raw logits",
    "logits.uniform": "a uniform row of logits",
    "logits.magnitude": "logits of an absurd size",
    "embedding.nonfinite": "NaN or infinity in an embedding",
    "embedding.zero": "an embedding of zeros",
    "embedding.constant": "the same embedding for different inputs",
    "token.impossible": "a token id that the tokenizer cannot decode",
    "sampler.inconsistent": "sampled tokens that the logits do not explain",
    "kv.integrity": "KV memory that is not what was written",
    "audit.defect": "a sampled step that an audit convicted",
    "audit.masked_read": "a kernel that lets NaN in through masked memory",
    "recurrence.divergence": "a looped block that does not settle",
    "speculation.acceptance": "a speculative acceptance that changed",
    "stop.ignored": "a stop token that was not honoured",
    "repetition.loop": "a loop of repeated tokens",
    "tool_call.loop": "the same tool call again and again",
    "tool_call.runaway": "a tool call that does not end",
    "tool_call.malformed": "a malformed tool call",
    "text.salad": "word salad",
    "language.switch": "a switch of language",
    "latency.slo": "latency beyond its objective",
}


def kind(name: str) -> str:
    """What a kind of finding means, in words that fit behind "found"."""
    if name.startswith("drift."):
        return f"a change of {name.removeprefix('drift.').replace('_', ' ')}"
    return KINDS.get(name, name)


def count(number: int, one: str, many: str = "") -> str:
    """ "1 sequence", "2 sequences"."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def duration(seconds: float) -> str:
    """Two significant units at most: "45 s", "3 min", "2 h 5 min", "4 d"."""
    if not math.isfinite(seconds):
        return "?"
    seconds = max(0.0, seconds)
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 90 * 60:
        return f"{seconds / 60:.0f} min"
    if seconds < 36 * 3600:
        minutes = int(seconds % 3600 // 60)
        return f"{seconds // 3600:.0f} h {minutes} min" if minutes else f"{seconds // 3600:.0f} h"
    return f"{seconds / 86400:.0f} d"


def age(when: float, now: float) -> str:
    return f"{duration(now - when)} ago" if now - when >= 1 else "just now"


def iso(when: float) -> str:
    """UTC, for a time element; empty for what is no time."""
    try:
        return clocks.strftime("%Y-%m-%dT%H:%M:%SZ", clocks.gmtime(when))
    except (OverflowError, ValueError, OSError):
        return ""


def clock(when: float) -> str:
    """UTC, for people."""
    return iso(when).replace("T", " ").replace("Z", " UTC")


def size(number: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if number < 1000:
            return f"{number:.0f} {unit}" if unit == "B" else f"{number:.1f} {unit}"
        number /= 1000
    return f"{number:.1f} TB"


def share(ratio: float | None) -> str:
    """With as many nines as it has."""
    if ratio is None:
        return "–"
    digits = 2 if ratio < 0.999 or ratio >= 1 else min(4, 1 + int(-math.log10(1 - ratio)))
    told = f"{math.floor(ratio * 100 * 10**digits + 1e-6) / 10**digits:.{digits}f}"
    return f"{told.rstrip('0').rstrip('.')} %" if ratio < 1 else "100 %"


def power(nats: float) -> str:
    """An e-value by its logarithm: "1e7.3"."""
    return f"1e{nats / math.log(10):.1f}"
