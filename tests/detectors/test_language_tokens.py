"""The batched reader of token ids against the reader of text."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from checkengine.detectors import LanguageReader, expectation_of
from checkengine.detectors.language import Script
from checkengine.detectors.language.tokens import GROUP, KEPT, TokenReader, foreign_rows

FRENCH = "Le vieux port était calme ce matin, et les bateaux étaient serrés contre le quai pendant que les enfants "
ENGLISH = "The old harbour was quiet in the morning, and the boats lay close to the wall while the children went home "
RUSSIAN = "Старая гавань была тихой утром, и лодки стояли близко к стене, пока дети шли в школу. "
PIECES = tuple(bytes([byte]) for byte in range(256))
"""A vocabulary of single bytes: every token but ASCII is a piece of a character."""


class Rows:
    """Feeds rows of byte tokens, one a step; keeps what each row's readings were."""

    def __init__(self, languages: list[str | None], pieces: tuple[bytes, ...] = PIECES) -> None:
        self.reader = TokenReader(pieces)
        for slot, language in enumerate(languages):
            self.reader.begin(slot, expectation_of("", language))
        self.found: list[list[tuple[str, str, int]]] = [[] for _ in languages]

    def step(self, rows: list[list[int]], urgent: int = -1) -> None:
        slots = np.arange(len(rows), dtype=np.int64)
        ends = np.cumsum([len(row) for row in rows], dtype=np.int64)
        tokens = np.array([token for row in rows for token in row], np.int64)
        for row, reading in self.reader.push(slots, ends, tokens, np.full(len(rows), urgent, np.int64)):
            self.found[row].append((reading.stage, reading.foreign, reading.start))

    def read(self, texts: list[str], step: int = 1) -> list[list[tuple[str, str, int]]]:
        encoded = [text.encode() for text in texts]
        for at in range(0, max(map(len, encoded)), step):
            self.step([list(data[at : at + step]) for data in encoded])
        return self.found


@pytest.mark.parametrize("step", [1, 3, 50])
def test_rows_of_a_batch_are_read_as_their_texts_would_be(step):
    texts = [FRENCH + ENGLISH * 3, FRENCH * 4, FRENCH + RUSSIAN * 2, ENGLISH * 4]
    found = Rows(["fr"] * 4).read([text + " " * KEPT for text in texts], step)
    for text, readings in zip(texts, found, strict=True):
        reader = LanguageReader(expectation_of("", "fr"))
        starts = [len(text[: each.start].encode()) for each in reader.push(text)]
        assert [start for _, _, start in readings] == starts
    assert [len(readings) for readings in found] == [2, 0, 2, 2]


def test_a_row_that_is_urgent_is_read_at_once():
    rows = Rows(["fr"])
    for token in (FRENCH + RUSSIAN[:30]).encode():
        rows.step([[token]], urgent=0)
    assert rows.found[0][0][:2] == ("warning", "cyrillic")


def test_a_slot_that_is_taken_again_knows_nothing_of_its_last_output():
    rows = Rows(["fr"])
    rows.read([FRENCH + ENGLISH])
    assert rows.found[0]
    rows.found[0].clear()
    rows.reader.begin(0, expectation_of("", "en"))
    assert rows.read([ENGLISH * 3]) == [[]]


def test_slots_may_be_any_and_grow():
    reader = TokenReader(PIECES)
    for slot in (70, 3):
        reader.begin(slot, expectation_of("", "fr"))
    tokens = np.array([*(ENGLISH * 2).encode(), *(FRENCH * 2).encode()], np.int64)
    ends = np.array([2 * len(ENGLISH), len(tokens)], np.int64)
    found = reader.push(np.array([70, 3]), ends, tokens, np.array([-1, -1]))
    assert {row for row, _ in found} == {0}


def test_an_unknown_request_takes_the_outputs_own_start_for_its_expectation():
    rows = Rows([None])
    rows.read([FRENCH * 3 + ENGLISH * 3])
    assert rows.found[0][0][1] == "en"


def test_ids_outside_the_vocabulary_are_passed_over():
    rows = Rows(["fr"])
    rows.step([[-1, 256, 2**40, *FRENCH.encode(), -(2**40)] * 3])
    assert rows.found == [[]]


@settings(max_examples=30, deadline=None)
@given(st.lists(st.binary(max_size=40), max_size=20), st.sampled_from(["fr", "ru", "ja", None]))
def test_any_bytes_pass_through(chunks, language):
    rows = Rows([language])
    for chunk in chunks:
        rows.step([list(chunk)])


def test_the_look_up_finds_the_first_foreign_token_of_each_row():
    scripts = np.array([Script.COMMON, Script.LATIN, Script.CYRILLIC, Script.HAN], np.uint8)
    familiar = np.array([(1 << Script.COMMON) | (1 << Script.LATIN), -1, 0], np.int64)
    tokens = np.array([1, 0, 2, 3, 2, 1, 0, 99, -5], np.int64)
    ends = np.array([4, 5, 6, 6, 9], np.int64)
    foreign = np.zeros(5, np.int64)
    slots = np.array([0, 1, 2, 0, 0], np.int64)
    assert foreign_rows(tokens, ends, slots, scripts, familiar, foreign) == 2
    assert foreign.tolist() == [2, -1, 5, -1, -1]


def test_a_reading_is_told_within_a_group_of_tokens():
    late, early = Rows(["fr"]), Rows(["fr"])
    data = (FRENCH + ENGLISH).encode()
    told = []
    for rows, urgent in ((late, -1), (early, 0)):
        for at, token in enumerate(data):
            rows.step([[token]], urgent)
            if rows.found[0]:
                told.append(at)
                break
    assert 0 <= told[0] - told[1] < GROUP
