"""Kinds of healthy text and of salad, estimated from token ids: what `salad_tables` writes down."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from checkengine.detectors import Vocabulary
from checkengine.detectors.salad import columns as k
from checkengine.detectors.salad.table import token_table
from checkengine.detectors.salad.token_classes import CLASSES, FORMS, TokenClass
from checkengine.detectors.salad.transitions import states_of

KINDS, ROUNDS, LONGEST = 32, 8, 512
PRIOR, STATE_PRIOR, PAIR_PRIOR, KIND_PRIOR = 30.0, 12.0, 8.0, 20.0
"""Tokens that what holds in general is worth: of a class behind a form; of a state given two classes in one kind; in
all kinds; given one class in one kind."""
RAREST = 5e-4
PAIRS = len(TokenClass) * CLASSES
TELLING = np.arange(k.STATES) < 2 * k.NOT_TOLD
Floats = NDArray[np.float64]
Ids = NDArray[np.int64]


class Reader:
    """A vocabulary's classes and the states of its tokens, as the kernel sees them."""

    def __init__(
        self, vocabulary: Vocabulary, ends: NDArray[np.int32], counts: NDArray[np.uint8], logs: NDArray[np.float64]
    ) -> None:
        self.tokens = token_table(vocabulary, ends)
        self.classes = self.tokens[:, k.CLASS].astype(np.int64)
        self._counts, self._logs = counts, logs.astype(np.float32)

    def states(self, ids: Sequence[NDArray[Any]]) -> list[Ids]:
        """Of the tokens of each text."""
        first = np.concatenate([[0], np.cumsum([len(row) for row in ids])])
        together = np.concatenate(ids).astype(np.int64)
        found = np.zeros(len(together), np.int64)
        recent = np.zeros((k.RECENT_PLACES, 2), np.int32)
        states_of(together, first, self.tokens, self._counts, self._logs, recent, found)
        return np.split(found, first[1:-1])


def healthy_kinds(reader: Reader, names: Sequence[str], ids: Sequence[NDArray[Any]]) -> tuple[Floats, Floats]:
    """`Transitions.healthy` and `healthy_states`; `names` are of the texts' kinds to begin with."""
    draw = np.random.default_rng(0)
    long = [at for at, row in enumerate(ids) if len(row) > 8]
    known = sorted({names[at] for at in long})
    start = {name: order % KINDS for order, name in enumerate(draw.permutation(known))}
    labels = np.array([start[names[at]] for at in long])
    rows = [np.asarray(ids[at][:LONGEST], np.int64) for at in long]
    forms = np.array(FORMS)[reader.classes] * CLASSES
    pairs = np.concatenate([forms[row[:-1]] + reader.classes[row[1:]] for row in rows])
    states = np.concatenate([row[1:] for row in reader.states(rows)])
    return _parted(pairs * k.STATES + states, np.array([len(row) - 1 for row in rows]), labels)


def _parted(pairs: Ids, lengths: NDArray[Any], labels: NDArray[Any]) -> tuple[Floats, Floats]:
    """`pairs` are of classes, times STATES, plus the state."""
    starts = np.concatenate([[0], np.cumsum(lengths)[:-1]])
    for _ in range(ROUNDS):
        size = PAIRS * k.STATES
        counted = np.bincount(np.repeat(labels, lengths) * size + pairs, minlength=KINDS * size)
        told = counted.reshape(KINDS, len(TokenClass), CLASSES, k.STATES).astype(np.float64)
        healthy, states = _likely(told.sum(axis=3)), _states(told)
        logs = (np.log(healthy)[..., None] + np.log(states)).reshape(KINDS, -1).astype(np.float32)
        labels = np.stack([np.add.reduceat(kind[pairs], starts) for kind in logs]).argmax(axis=0)
    return healthy, states


def _likely(counted: Floats) -> Floats:
    everywhere = _shares(counted.sum(axis=(0, 1)) + 1.0)
    usual = _shares(counted.sum(axis=1) + 0.05)
    return _shares(counted + PRIOR * (0.7 * usual[:, None, :] + 0.3 * everywhere) + 0.02)


def _states(told: Floats) -> Floats:
    """Drawn towards what the pair of classes is in all kinds, and to what the kind is for the class as such."""
    of_class = _shares(told.sum(axis=(0, 1)) + 0.5)
    of_pair = _shares(told.sum(axis=0) + PAIR_PRIOR * of_class)
    of_kind = _shares(told.sum(axis=1) + KIND_PRIOR * of_class)
    prior = 0.5 * of_pair[None] + 0.5 * of_kind[:, None]
    return np.maximum(_shares(told + STATE_PRIOR * prior), RAREST)


def salad_kinds(reader: Reader, drawn: Sequence[Sequence[tuple[Ids, int]]]) -> tuple[Floats, Floats]:
    """`Transitions.salad` and `salad_states` of groups of sequences, of which the tokens from an index on count."""
    kinds = [_salad_kind(reader, group) for group in drawn]
    return np.stack([classes for classes, _ in kinds]), np.stack([states for _, states in kinds])


def _salad_kind(reader: Reader, group: Sequence[tuple[Ids, int]]) -> tuple[Floats, Floats]:
    told = np.zeros((CLASSES, k.STATES))
    for (ids, first), states in zip(group, reader.states([ids for ids, _ in group]), strict=True):
        first = max(first, 1)
        np.add.at(told, (reader.classes[ids[first:]], states[first:]), 1.0)
    # Where a class never tells, its states are of the two that say so; elsewhere a little is left for them.
    silent = told[:, ~TELLING].sum(axis=1) > told[:, TELLING].sum(axis=1)
    lean = told.sum(axis=0) + 0.5
    leans = _shares(np.where(silent[:, None] == TELLING, 0.02, lean))
    return _shares(told.sum(axis=1) + 0.3), np.maximum(_shares(told + STATE_PRIOR * leans), RAREST)


def _shares(counted: Floats) -> Floats:
    found: Floats = counted / counted.sum(axis=-1, keepdims=True)
    return found
