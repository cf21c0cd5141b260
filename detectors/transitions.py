"""Word salad from the looks of neighbouring tokens alone: a sequential likelihood-ratio test (CUSUM, Page 1954).

Every token has a class (`token_classes`). Corrupted attention lets tokens follow each other nearly at random, so
"responsible" is glued to "The", and a bracket opens after a line break in the middle of a word. Each pair of
neighbours adds log P(class, salad) − log P(class | class before, healthy), floored at 0.

Healthy text is a mixture of a few kinds (prose, code, markup, base64 …), each with its own transitions, whose weights
follow the sequence (fixed share, Herbster and Warmuth 1998) and begin with the prompt's. Structure that is odd but
regular is no salad: a pair of classes or a token that has been evidence already counts less each time.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from checkengine.detectors.joins import WordJoins
from checkengine.detectors.token_classes import CLASSES, FORMS, TokenClass, classes_of, in_order_of_frequency
from checkengine.detectors.transition_tables import load_tables
from checkengine.detectors.vocabulary import Vocabulary

_C = TokenClass
STEEPEST = 4.0
"""Nats that one pair of neighbours counts at most, for or against."""
CEILINGS = {
    _C.BYTES: 1.0,
    _C.SYMBOL: 0.7,
    _C.OTHER_SCRIPT: 0.7,
    _C.SPACE: 0.7,
    _C.SPACES: 0.7,
    _C.ODD_SPACE: 1.5,
    _C.ACCENTED: 1.0,
    _C.ACCENTED_WORD: 1.0,
    _C.INDENT: 1.5,
}
"""…and less where a class depends on the vocabulary or the language more than on the text."""
SWITCH = 0.01
"""Share of the mixture's weight that is spread over all kinds at every token."""
KEEP_SAME_PAIR, KEEP_SAME_TOKEN = 0.6, 0.5
"""What is left of evidence that repeats itself."""
STRANGE_JOIN = 2.5
"""Two parts of a word that the tokenizer would have cut elsewhere: 2.4 to 4.7 % of the tokens of salad, 0.04 % of
SmolLM2's own at temperature 0.7 and 0.2 % at 1."""
LONGEST = 128
"""Tokens in which the evidence has to add up, or it is let go: salad takes a fifth of that."""
PROMPT_TOKENS = 256
PROMPT_MINIMUM = 32
CALMEST = 1.0
"""A prompt that is odd itself takes its mean evidence off each pair, up to so much."""


@dataclass(frozen=True, slots=True)
class TransitionReading:
    """`start` is the pushed token at which the evidence began, `evidence` is in nats, over `tokens` tokens."""

    start: int
    evidence: float
    tokens: int


class TransitionTables:
    """Made once a vocabulary. `available` is False where its ids are in no order of frequency: nothing is read then."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.available = in_order_of_frequency(vocabulary.pieces)
        self.classes = bytes(classes_of(vocabulary.pieces, vocabulary.special))
        self.joins = WordJoins(vocabulary)
        self.forms = [form * CLASSES for form in FORMS]
        self.healthy, self.salad, self.ceiling = _tables()


@cache
def _tables() -> tuple[NDArray[np.float64], list[float], list[float]]:
    """P healthy, shape (forms · CLASSES, kinds); log P salad, one a class; the ceilings, one a pair."""
    salad, healthy = load_tables()
    own = np.full(CLASSES, STEEPEST)
    for token_class, most in CEILINGS.items():
        own[token_class] = most
    ceiling = np.minimum(own[: len(TokenClass), None], own[None, :])
    pairs = healthy.transpose(1, 2, 0).reshape(-1, len(healthy))
    return np.ascontiguousarray(pairs), np.log(salad).tolist(), ceiling.ravel().tolist()


class TransitionTest:
    """State of one sequence: a weight a kind, and what was evidence since the sum was last zero."""

    def __init__(self, tables: TransitionTables, prompt: Sequence[int] = (), threshold: float = 16.0) -> None:
        self._tables = tables
        self._threshold = threshold
        kinds = tables.healthy.shape[1]
        self._share: NDArray[np.float64] = np.full(kinds, 1.0 / kinds)
        self._spread = SWITCH / kinds
        self._calm = 0.0
        self._form = tables.forms[_C.SPECIAL]
        self._token = prompt[-1] if prompt else -1
        self._count = 0
        self._evidence = 0.0
        self._start = 0
        self._pairs: dict[int, float] = {}
        self._tokens: set[int] = set()
        if tables.available and prompt:
            self._read_prompt(prompt[-PROMPT_TOKENS:])

    @property
    def evidence(self) -> float:
        """Nats since the sum was last zero."""
        return self._evidence

    @property
    def tokens(self) -> int:
        """Pushed so far."""
        return self._count

    def push(self, token: int) -> TransitionReading | None:
        """Takes the next output token."""
        tables = self._tables
        self._count += 1
        if not tables.available:
            return None
        now = tables.classes[token] if 0 <= token < len(tables.classes) else int(_C.SPECIAL)
        pair = self._form + now
        self._form = tables.forms[now]
        healthy = _follow(self._share, tables.healthy[pair], self._spread)
        weight = tables.salad[now] - math.log(healthy) - self._calm
        if not tables.joins.agree(self._token, token):
            weight += STRANGE_JOIN
        self._token = token
        if weight > 0.0:
            return self._add(pair, token, min(weight, tables.ceiling[pair]))
        if self._evidence:
            self._evidence += max(weight, -STEEPEST)
            if self._evidence <= 0.0:
                self._let_go()
        return None

    def _add(self, pair: int, token: int, weight: float) -> TransitionReading | None:
        if self._evidence and self._count - self._start > LONGEST:
            self._let_go()
        if not self._evidence:
            self._start = self._count - 1
        keep = self._pairs.get(pair, 1.0)
        self._pairs[pair] = keep * KEEP_SAME_PAIR
        if token in self._tokens:
            keep *= KEEP_SAME_TOKEN
        self._tokens.add(token)
        self._evidence += weight * keep
        if self._evidence < self._threshold:
            return None
        return TransitionReading(self._start, self._evidence, self._count - self._start)

    def _let_go(self) -> None:
        self._evidence = 0.0
        self._pairs.clear()
        self._tokens.clear()

    def _read_prompt(self, prompt: Sequence[int]) -> None:
        tables = self._tables
        ids = np.asarray(prompt, np.int64)
        table = np.frombuffer(tables.classes, np.uint8).astype(np.int64)
        inside = (ids >= 0) & (ids < len(table))
        classes = np.where(inside, table[np.where(inside, ids, 0)], int(_C.SPECIAL))
        forms = np.array(tables.forms)[classes]
        self._form = int(forms[-1])
        pairs = forms[:-1] + classes[1:]
        if len(pairs) < PROMPT_MINIMUM:
            return
        rows = tables.healthy[pairs]
        fit = np.log(rows).sum(axis=0)
        share = np.exp(fit - fit.max())
        share /= share.sum()
        self._share = (1.0 - SWITCH) * share + self._spread
        odd = np.array(tables.salad)[classes[1:]] - np.log(rows @ self._share)
        self._calm = float(np.clip(np.clip(odd, -STEEPEST, STEEPEST).mean(), 0.0, CALMEST))


def _follow(share: NDArray[np.float64], row: NDArray[np.float64], spread: float) -> float:
    """Probability under the mixture; its weights move in place."""
    total = float(share.dot(row))
    share *= row
    share *= (1.0 - SWITCH) / total
    share += spread
    return total
