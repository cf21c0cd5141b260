"""The strip of tokens: what the replay read of each, its script, and what was found at it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from checkengine.detectors.language.scripts import Script, script_of_piece
from checkengine.replay.investigate import Investigation
from checkengine.replay.recorded import RecordedWindow

MOST_TOKENS = 2048
"""Of one sequence; the newest."""
MOST_SEQUENCES = 4
LEVELS = 8
"""Heights of a bar."""
HIGH_ENTROPY = 8.0
"""Nats that fill the bar: a language model that is sure of nothing has more."""

Pieces = Callable[[int], bytes]


@dataclass(frozen=True, slots=True)
class Token:
    index: int
    """Output token of its sequence."""
    step: int
    entropy: float | None
    margin: float | None
    script: str
    """Empty where it is not known, or the token belongs to none."""
    text: str | None
    findings: tuple[str, ...]


def token_rows(found: Investigation) -> list[list[Any]]:
    """Handle, step, output token, entropy in nats and margin of each token that the replay gave, as JSON. Rounded, so
    that nobody can tell tokens by them."""
    replay = found.forced
    if replay is None or replay.window is None or len(replay.outputs) != len(replay.window.steps):
        return []
    rows: list[list[Any]] = []
    for step, output in zip(replay.window.steps, replay.outputs, strict=True):
        record, stats = step.replay.record, output.stats
        ends = (record.starts + record.query_lengths)[record.samples].tolist()
        handles = record.sampling_handles.tolist()
        for index in np.flatnonzero(step.sampling_involved).tolist():
            place = ends[index] - len(replay.window.starts[handles[index]].prompt_tokens)
            numbers = [rounded(stats.entropy, index), rounded(stats.margin, index)]
            rows.append([handles[index], record.step, place, *numbers])
    return rows[-MOST_TOKENS * MOST_SEQUENCES :]


def rounded(values: Any, index: int) -> float | None:
    if values is None or not math.isfinite(values[index]):
        return None
    return round(float(values[index]), 2)


def strips(
    window: RecordedWindow,
    handles: Iterable[int],
    rows: Sequence[Any],
    findings: Sequence[Mapping[str, Any]],
    pieces: Pieces | None,
) -> dict[int, list[Token]]:
    """By handle. `rows` as of `token_rows`; `pieces` gives a token's bytes, and is None where content is not shown."""
    numbers = {(row[0], row[1]): (row[3], row[4]) for row in rows}
    chosen = list(handles)[:MOST_SEQUENCES]
    found: dict[int, list[Token]] = {handle: [] for handle in chosen}
    for record in window.records:
        sampled = record.sampled.tolist()
        ends = (record.starts + record.query_lengths)[record.samples].tolist()
        for place, handle in enumerate(record.sampling_handles.tolist()):
            if handle in found:
                start = window.starts[handle]
                index = ends[place] - len(start.prompt_tokens)
                piece = pieces(sampled[place]) if pieces is not None and len(sampled) == len(ends) else None
                named = tuple(
                    str(each["kind"]) for each in findings if each["sequence"] == start.name and each["token"] == index
                )
                entropy, margin = numbers.get((handle, record.step), (None, None))
                found[handle].append(token_of(index, record.step, entropy, margin, piece, named))
    return {handle: tokens[-MOST_TOKENS:] for handle, tokens in found.items() if tokens}


def token_of(index: int, step: int, entropy: Any, margin: Any, piece: bytes | None, findings: tuple[str, ...]) -> Token:
    script = Script.COMMON if piece is None else script_of_piece(piece)
    word = "" if script in (Script.COMMON, Script.PARTIAL) else script.name.capitalize()
    text = None if piece is None else piece.decode("utf-8", "replace")
    return Token(index, step, number(entropy), number(margin), word, text, findings)


def number(value: Any) -> float | None:
    """A result may have been written by a stranger."""
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


def bar(value: float | None, full: float = HIGH_ENTROPY) -> int:
    """1 … LEVELS; 0 where it is not known."""
    return 0 if value is None else 1 + min(LEVELS - 1, int(max(0.0, value) / full * (LEVELS - 1) + 0.5))
