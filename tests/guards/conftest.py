"""Steps and findings made by hand, for the guards' tests."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from checkengine.detectors.logits.stats import RowStats
from checkengine.detectors.vocabulary import Vocabulary
from checkengine.guards.finding import Finding, Severity
from checkengine.guards.step import StepView

MakeStats = Callable[..., RowStats]
MakeStep = Callable[..., StepView]


class WordTokenizer:
    """One token a word, in the order given: what `Vocabulary.from_tokenizer` asks of a tokenizer and no more."""

    all_special_ids = (0, 1)

    def __init__(self, words: Sequence[str], holes: int = 0) -> None:
        self._vocabulary = {"<|im_end|>": 0, "<|im_start|>": 1}
        for word in words:
            self._vocabulary.setdefault(word, len(self._vocabulary) + holes)

    def get_vocab(self) -> Mapping[str, int]:
        return self._vocabulary

    def get_added_vocab(self) -> Mapping[str, int]:
        return self._vocabulary


@pytest.fixture
def vocabulary_of() -> Callable[..., Vocabulary]:
    """Vocabulary of single-word tokens: ids 0 and 1 are <|im_end|> and <|im_start|>, the words follow."""

    def make(words: Sequence[str], holes: int = 0) -> Vocabulary:
        return Vocabulary.from_tokenizer(WordTokenizer(words, holes))

    return make


@pytest.fixture
def stats_of() -> MakeStats:
    """Row statistics from a matrix of logits, worked out with numpy alone."""

    def make(logits: Sequence[Sequence[float]], level: str = "full") -> RowStats:
        rows = np.asarray(logits, np.float64)
        nonfinite = ~np.isfinite(rows).all(axis=1)
        with np.errstate(all="ignore"):
            shifted = rows - np.max(rows, axis=1, keepdims=True)
            log_probability = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
            entropy = -(np.exp(log_probability) * log_probability).sum(axis=1).astype(np.float32)
        clean = np.where(np.isnan(rows), -np.inf, rows)
        screen: dict[str, Any] = {
            "nonfinite": nonfinite,
            "maximum": clean.max(axis=1).astype(np.float32),
            "minimum": np.where(np.isnan(rows), np.inf, rows).min(axis=1).astype(np.float32),
        }
        if level == "screen":
            return RowStats("screen", **screen)
        return RowStats(
            "full",
            **screen,
            nan=np.isnan(rows).sum(axis=1).astype(np.int32),
            positive_infinite=np.isposinf(rows).sum(axis=1).astype(np.int32),
            negative_infinite=np.isneginf(rows).sum(axis=1).astype(np.int32),
            entropy=entropy,
        )

    return make


@pytest.fixture
def step_of() -> MakeStep:
    """A step from {sequence: tokens of this step}; `before` is each row's output length before it."""

    def make(
        tokens: Mapping[str, Sequence[int]], *, step: int = 0, before: int = 0, stats: RowStats | None = None
    ) -> StepView:
        rows = len(tokens)
        return StepView(
            step=step,
            time=0.0,
            sequences=tuple(tokens),
            tokens=tuple(tuple(row) for row in tokens.values()),
            stats=stats,
            prompt_lengths=np.zeros(rows, np.int32),
            output_lengths=np.full(rows, before, np.int32),
        )

    return make


@pytest.fixture
def drive(step_of: MakeStep) -> Callable[..., list[Finding]]:
    """Feed one sequence to a guard, a token a step; returns all findings."""

    def run(guard: Any, tokens: Sequence[int], *, sequence: str = "a", before: int = 0) -> list[Finding]:
        found: list[Finding] = []
        for index, token in enumerate(tokens):
            found += guard.observe(step_of({sequence: [token]}, step=index, before=before + index))
        return found

    return run


@pytest.fixture
def finding_of() -> Callable[..., Finding]:
    def make(
        kind: str, sequence: str = "a", *, guard: str = "nonfinite", severity: Severity = Severity.ERROR, token: int = 3
    ) -> Finding:
        return Finding(kind, sequence, severity, step=7, token=token, guard=guard)

    return make


class Clock:
    """Seconds that pass only when a test says so."""

    def __init__(self, now: float = 1_800_000_000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock() -> Clock:
    return Clock()
