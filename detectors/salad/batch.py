"""Word salad in all sequences of a batch at once, from token ids and, where there are some, from entropies.

Evidence is in nats, in sums that are floored at 0 (CUSUM, Page 1954), of two channels with a limit each:

- looks: every token has a class (`token_classes`); each adds log P(class, salad) - log P(class | class before,
  healthy), over few broad kinds of healthy text and the salad of one model's corrupted attention.
- everything else, added up. Neighbours: the same over many kinds of healthy text and of salad, and whether the two
  pieces were ever neighbours in healthy text. Marks: reserved and control tokens, broken characters, words of a foreign
  script inside a sentence. Words: function words that follow each other as in no healthy text.

Entropy above the model's own running mean hastens either.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from checkengine.detectors.language.scripts import Script
from checkengine.detectors.salad import columns as k
from checkengine.detectors.salad import kernel
from checkengine.detectors.salad.table import SaladTables
from checkengine.detectors.salad.token_classes import CLASSES, FORMS, TokenClass

PROMPT_TOKENS = 256
PROMPT_MINIMUM = 32
CALMEST = 1.0
"""A prompt that is odd itself takes its mean evidence off each pair, up to so much."""
PRIOR = (
    kernel.PRIOR_MEAN,
    kernel.PRIOR_MEAN**2 + kernel.PRIOR_DEVIATION**2,
    kernel.PRIOR_WEIGHT,
)
NONE: NDArray[np.float32] = np.empty(0, np.float32)
NO_JOINS: NDArray[np.uint8] = np.empty(0, np.uint8)


class SaladLimits(NamedTuple):
    """Nats at which a channel alarms."""

    looks: float = 16.0
    other: float = 24.0


@dataclass(frozen=True, slots=True)
class SaladReading:
    """Evidence is in nats, of the channel that is nearest to its limit. `start` is the pushed token at which it began
    to add up, `tokens` how many it took."""

    start: int
    tokens: int
    evidence: float
    looks: float
    neighbours: float
    marks: float
    words: float
    logits: float


class SaladBatch:
    """State of many sequences in flat arrays, 3 KiB a sequence; slots are handed out and taken back."""

    def __init__(self, tables: SaladTables, limits: SaladLimits | None = None, slots: int = 16) -> None:
        self._tables = tables
        self._limits = np.array(limits or SaladLimits())
        self._free: list[int] = []
        self._fired: NDArray[np.int64] = np.zeros(16, np.int64)
        self._shared = np.array(PRIOR)
        self._fresh_whole, self._fresh_real = fresh_state(tables)
        self._whole = np.zeros((0, k.WHOLE_COLUMNS), np.int64)
        self._real = np.zeros((0, len(self._fresh_real)), np.float32)
        self._memory = np.zeros((0, k.CHANNELS, k.REMEMBER, 2), np.int32)
        self._grow(slots)

    @property
    def baseline(self) -> tuple[float, float]:
        """Mean and standard deviation of healthy tokens' entropy in nats, as far as it was measured."""
        mean, square, _ = self._shared.tolist()
        return mean, max(square - mean * mean, 0.05) ** 0.5

    def open(self, prompt: Sequence[int] = (), scripts: int = 0) -> int:
        """A slot for a new sequence; `scripts` is a bit mask of writing systems that are no surprise."""
        if not self._free:
            self._grow(2 * len(self._whole))
        slot = self._free.pop()
        self._whole[slot], self._real[slot] = self._fresh_whole, self._fresh_real
        self._whole[slot, k.EXPECTED] |= scripts
        if self._tables.available and len(prompt):
            self._read_prompt(slot, np.asarray(prompt[-PROMPT_TOKENS:], np.int64))
        return slot

    def close(self, slot: int) -> None:
        """The sequence is over; its slot goes to another."""
        self._free.append(slot)

    def push(
        self, slots: NDArray[np.int64], tokens: NDArray[np.int64], entropies: NDArray[np.float32] = NONE
    ) -> NDArray[np.int64]:
        """The next token of each slot (a slot may stand several times, in order; -1 is left out); returns the rows at
        which a sequence reached a limit. A sequence that has is read no further."""
        tables = self._tables
        if not tables.available:
            return self._fired[:0]
        if len(self._fired) < len(slots):
            self._fired = np.zeros(2 * len(slots), np.int64)
        strange = tables.joins.strange(slots, tokens, self._whole) if tables.joins.available else NO_JOINS
        state = (self._whole, self._real, self._memory, self._shared)
        count = kernel.push_batch(slots, tokens, entropies, strange, self._limits, self._fired, tables.known, *state)
        return self._fired[:count]

    def compile(self) -> None:
        """Before the engine is ready: compiling takes seconds the first time on a machine."""
        slot = self.open()
        self.push(np.full(1, slot, np.int64), np.zeros(1, np.int64), np.zeros(1, np.float32))
        self.push(np.full(1, slot, np.int64), np.zeros(1, np.int64))
        self.close(slot)
        self._shared[:] = PRIOR

    def reading(self, slot: int) -> SaladReading:
        """What is held against a sequence now."""
        whole, real = self._whole[slot].tolist(), self._real[slot].tolist()
        looks, neighbours = real[k.EVIDENCE + k.LOOKS], real[k.EVIDENCE + k.NEIGHBOURS]
        marks, words, logits = real[k.ODD], real[k.WORDS], real[k.LOGITS]
        parts = [
            (neighbours, whole[k.START + k.NEIGHBOURS]),
            (marks, whole[k.MARKS_START]),
            (words, whole[k.WORD_RUN]),
        ]
        text = neighbours + marks + words
        if looks / self._limits[0] >= text / self._limits[1]:
            text, parts = looks, [(looks, whole[k.START + k.LOOKS])]
        # A source that tells next to nothing does not say where it began.
        count = whole[k.COUNT]
        start = min((at for nats, at in parts if nats > 0.2 * text), default=max(count - 1, 0))
        evidence = text + min(logits, text)
        return SaladReading(start, count - start, evidence, looks, neighbours, marks, words, logits)

    def _grow(self, slots: int) -> None:
        before, more = len(self._whole), slots - len(self._whole)
        self._whole = np.concatenate([self._whole, np.zeros((more, k.WHOLE_COLUMNS), np.int64)])
        self._real = np.concatenate([self._real, np.zeros((more, self._real.shape[1]), np.float32)])
        self._memory = np.concatenate([self._memory, np.zeros((more, *self._memory.shape[1:]), np.int32)])
        self._free += range(slots - 1, before - 1, -1)

    def _read_prompt(self, slot: int, ids: NDArray[np.int64]) -> None:
        known, whole, real = self._tables.known, self._whole[slot], self._real[slot]
        size = len(self._tables)
        rows = known.tokens[np.where((ids >= 0) & (ids < size), ids, size)]
        used = np.unique(rows[:, k.SCRIPT])
        whole[k.EXPECTED] |= sum(1 << int(script) for script in used if script >= Script.LATIN)
        whole[k.LAST_FORM], whole[k.LAST_TOKEN] = rows[-1, k.FORM], ids[-1]
        pairs, classes = rows[:-1, k.FORM] + rows[1:, k.CLASS], rows[1:, k.CLASS]
        if len(pairs) < PROMPT_MINIMUM:
            return
        first = k.SHARES + known.looks.shape[1]
        split = first + known.healthy.shape[1]
        if first > k.SHARES:
            healthy = learn(known.looks[pairs], real[k.SHARES : first])
            real[k.CALM + k.LOOKS] = calm(known.looks_salad[classes] - healthy)
        healthy = learn(known.healthy[pairs], real[first:split])
        real[k.CALM + k.NEIGHBOURS] = calm(np.log(known.salad[classes] @ real[split:]) - healthy)


def learn(known: NDArray[np.float32], shares: NDArray[np.float32]) -> NDArray[np.float64]:
    """Weighs kinds of healthy text by a prompt, in place; returns log P of each of its tokens."""
    rows = known.astype(np.float64)
    fit = np.log(rows).sum(axis=0)
    share = np.exp(fit - fit.max())
    share /= share.sum()
    shares[:] = (1.0 - k.SWITCH) * share + k.SWITCH / len(share)
    found: NDArray[np.float64] = np.log(rows @ shares)
    return found


def calm(odd: NDArray[np.float64]) -> float:
    return float(np.clip(np.clip(odd, -k.STEEPEST, k.STEEPEST).mean(), 0.0, CALMEST))


def fresh_state(tables: SaladTables) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """The columns of a sequence that begins."""
    whole = np.zeros(k.WHOLE_COLUMNS, np.int64)
    whole[k.LAST_FORM] = FORMS[TokenClass.SPECIAL] * CLASSES
    whole[k.LAST_TOKEN] = whole[k.LAST_WORD] = whole[k.OPEN_WORD] = -1
    whole[k.EXPECTED] = 0b11 | (1 << Script.LATIN)
    known = tables.known
    counts = (mixture.shape[1] for mixture in (known.looks, known.healthy, known.salad))
    mixtures = [np.full(kinds, 1.0 / max(kinds, 1)) for kinds in counts]
    return whole, np.concatenate([np.zeros(k.SHARES), *mixtures]).astype(np.float32)


def scan_texts(
    tables: SaladTables, tokens: NDArray[np.int64], first: NDArray[np.int64], scripts: int = 0
) -> NDArray[np.float32]:
    """Highest evidence in each of many texts, by looks and by everything else, shape (texts, 2); text i is
    tokens[first[i]] … tokens[first[i + 1] - 1].

    As `push` reads them one by one, each without a prompt and without strange joins: encoded text has none.
    """
    highest = np.zeros((len(first) - 1, 2), np.float32)
    whole, real = fresh_state(tables)
    whole[k.EXPECTED] |= scripts
    ids, first = np.asarray(tokens, np.int64), np.asarray(first, np.int64)
    kernel.scan(ids, first, highest, whole, real, tables.known)
    return highest
