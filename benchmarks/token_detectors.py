"""What the token detectors cost, a token of one stream at a time, in CPU time."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from checkengine.detectors import (
    CallLoops,
    SaladBatch,
    SaladTables,
    Script,
    ScriptSwitch,
    Vocabulary,
)

TOKENS = 20_000


def token_detector_figures(vocabulary: Vocabulary, text_tokens: Sequence[int]) -> list[dict[str, Any]]:
    """Nanoseconds a token over `text_tokens` (real output, repeated as needed); repetition has a module of its own."""
    text = [text_tokens[i % len(text_tokens)] for i in range(TOKENS)]
    pieces = [vocabulary.piece(token) for token in text]
    scripts = [int(vocabulary.script[token]) for token in text]
    latin = 1 << Script.LATIN
    return [
        _figure("script turns", 1000, ScriptSwitch(latin).push, scripts),
        _figure("tool calls, no call in the text", 1500, CallLoops().push, pieces),
        _figure("word salad, one row a call", 20000, _salad(vocabulary), text),
    ]


def _salad(vocabulary: Vocabulary) -> Callable[[int], object]:
    batch = SaladBatch(SaladTables(vocabulary), threshold=float("inf"))
    batch.compile()
    slots, tokens = np.array([batch.open()], np.int64), np.zeros(1, np.int64)

    def push(token: int) -> object:
        tokens[0] = token
        return batch.push(slots, tokens)

    return push


def _figure(name: str, target: float, push: Callable[[Any], object], items: Sequence[Any]) -> dict[str, Any]:
    best = float("inf")
    for _ in range(3):
        began = time.process_time()
        for item in items:
            push(item)
        best = min(best, (time.process_time() - began) / len(items) * 1e9)
    return {"name": name, "value": round(best), "unit": "ns/token", "target": target, "ok": best <= target}
