"""Word salad in all sequences of a batch at once, from token ids and, where there are some, from entropies.

Four kinds of evidence, in nats, add up; each is a sum that is floored at 0 (CUSUM, Page 1954):

- transitions: how tokens look, whether neighbours like each other, whether words come back (`transitions`).
- marks: reserved and control tokens, broken characters, words of a foreign script inside a sentence.
- words: function words that follow each other as in no healthy text ("the the of to the").
- logits: entropy above the model's own running mean.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from checkengine.detectors.language.scripts import Script
from checkengine.detectors.salad import columns as k
from checkengine.detectors.salad import kernel
from checkengine.detectors.salad.table import SaladTables
from checkengine.detectors.salad.token_classes import CLASSES, FORMS, TokenClass
from checkengine.detectors.salad.transitions import states_of

PROMPT_TOKENS = 256
PROMPT_MINIMUM = 32
CALMEST = 1.0
"""A prompt that is odd itself takes its mean evidence off each pair, up to so much."""
PRIOR = (
    kernel.PRIOR_MEAN,
    kernel.PRIOR_MEAN**2 + kernel.PRIOR_DEVIATION**2,
    kernel.PRIOR_WEIGHT,
)
OTHER_VOCABULARY = 1.4
"""Times as much evidence is asked for where tokens are not of the vocabulary that was counted over: healthy text in
such ones, trained on other text and cut in other ways, comes so much nearer to salad."""
NONE: NDArray[np.float32] = np.empty(0, np.float32)


@dataclass(frozen=True, slots=True)
class SaladReading:
    """Evidence is in nats. `start` is the pushed token at which it began to add up, `tokens` how many it took."""

    start: int
    tokens: int
    evidence: float
    transitions: float
    marks: float
    words: float
    logits: float


class SaladBatch:
    """State of many sequences in flat arrays, 4 KiB a sequence; slots are handed out and taken back."""

    def __init__(self, tables: SaladTables, threshold: float = 24.0, slots: int = 16) -> None:
        self._tables = tables
        self._threshold = threshold if tables.own else OTHER_VOCABULARY * threshold
        self._free: list[int] = []
        self._fired: NDArray[np.int64] = np.zeros(16, np.int64)
        self._shared = np.array(PRIOR)
        self._fresh_whole, self._fresh_real = fresh_state(tables)
        self._whole = np.zeros((0, k.WHOLE_COLUMNS), np.int64)
        self._real = np.zeros((0, len(self._fresh_real)), np.float32)
        self._memory = np.zeros((0, k.REMEMBER, 2), np.int32)
        self._recent = np.zeros((0, k.RECENT_PLACES, 2), np.int32)
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
        self._recent[slot, :, k.TOKEN] = -1
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
        which a sequence reached the threshold. A sequence that has is read no further."""
        tables = self._tables
        if not tables.available:
            return self._fired[:0]
        if len(self._fired) < len(slots):
            self._fired = np.zeros(2 * len(slots), np.int64)
        strange = tables.joins.strange(slots, tokens, self._whole) if tables.joins.available else NO_JOINS
        state = (self._whole, self._real, self._memory, self._recent, self._shared)
        count = kernel.push_batch(slots, tokens, entropies, strange, self._threshold, self._fired, tables.known, *state)
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
        whole, real = self._whole[slot], self._real[slot]
        transitions, marks = float(real[k.TRANSITIONS]), float(real[k.ODD])
        words, logits = float(real[k.WORDS]), float(real[k.LOGITS])
        count = int(whole[k.COUNT])
        starts = (
            (transitions, int(whole[k.START])),
            (marks, int(whole[k.MARKS_START])),
            (words, int(whole[k.WORD_RUN])),
        )
        text = transitions + marks + words
        # A source that tells next to nothing does not say where it began.
        start = min((at for nats, at in starts if nats > 0.2 * text), default=max(count - 1, 0))
        return SaladReading(start, count - start, text + min(logits, text), transitions, marks, words, logits)

    def _grow(self, slots: int) -> None:
        before, more = len(self._whole), slots - len(self._whole)
        self._whole = np.concatenate([self._whole, np.zeros((more, k.WHOLE_COLUMNS), np.int64)])
        self._real = np.concatenate([self._real, np.zeros((more, self._real.shape[1]), np.float32)])
        self._memory = np.concatenate([self._memory, np.zeros((more, k.REMEMBER, 2), np.int32)])
        self._recent = np.concatenate([self._recent, np.zeros((more, k.RECENT_PLACES, 2), np.int32)])
        self._free += range(slots - 1, before - 1, -1)

    def _read_prompt(self, slot: int, ids: NDArray[np.int64]) -> None:
        known, whole, real = self._tables.known, self._whole[slot], self._real[slot]
        size, states = len(self._tables), np.zeros(len(ids), np.int64)
        states_of(ids, np.array([0, len(ids)]), known.tokens, known.counts, known.logs, self._recent[slot], states)
        rows = known.tokens[np.where((ids >= 0) & (ids < size), ids, size)]
        used = np.unique(rows[:, k.SCRIPT])
        whole[k.EXPECTED] |= sum(1 << int(script) for script in used if script >= Script.LATIN)
        whole[k.LAST_FORM], whole[k.LAST_TOKEN] = rows[-1, k.FORM], ids[-1]
        if len(ids) <= PROMPT_MINIMUM:
            return
        split = k.SHARES + known.healthy.shape[1]
        healthy = known.healthy[(rows[:-1, k.FORM] + rows[1:, k.CLASS]) * k.STATES + states[1:]].astype(np.float64)
        fit = np.log(healthy).sum(axis=0)
        share = np.exp(fit - fit.max())
        share /= share.sum()
        real[k.SHARES : split] = (1.0 - k.SWITCH) * share + k.SWITCH / len(share)
        salad = known.salad[rows[1:, k.CLASS] * k.STATES + states[1:]] @ real[split:]
        odd = np.log(salad) - np.log(healthy @ real[k.SHARES : split])
        real[k.CALM] = np.clip(np.clip(odd, -k.STEEPEST, k.STEEPEST).mean(), 0.0, CALMEST)


NO_JOINS: NDArray[np.uint8] = np.empty(0, np.uint8)


def fresh_state(tables: SaladTables) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """The columns of a sequence that begins."""
    whole = np.zeros(k.WHOLE_COLUMNS, np.int64)
    whole[k.LAST_FORM] = FORMS[TokenClass.SPECIAL] * CLASSES
    whole[k.LAST_TOKEN] = whole[k.LAST_WORD] = whole[k.OPEN_WORD] = -1
    whole[k.EXPECTED] = 0b11 | (1 << Script.LATIN)
    mixtures = [np.full(known.shape[1], 1.0 / known.shape[1]) for known in (tables.known.healthy, tables.known.salad)]
    return whole, np.concatenate([np.zeros(k.SHARES), *mixtures]).astype(np.float32)


def scan_texts(
    tables: SaladTables, tokens: NDArray[np.int64], first: NDArray[np.int64], scripts: int = 0
) -> NDArray[np.float32]:
    """Highest evidence in each of many texts, shape (texts,); text i is tokens[first[i]] … tokens[first[i + 1] - 1].

    As `push` reads them one by one, each without a prompt and without strange joins: encoded text has none.
    """
    highest = np.zeros(len(first) - 1, np.float32)
    whole, real = fresh_state(tables)
    whole[k.EXPECTED] |= scripts
    kernel.scan(np.asarray(tokens, np.int64), np.asarray(first, np.int64), highest, whole, real, tables.known)
    return highest
