"""Word salad told from classes of neighbouring tokens, on vocabularies trained here and on the demo model's."""

from __future__ import annotations

import json
import random
import statistics
from pathlib import Path
from pydoc_data import topics

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from checkengine.detectors.token_classes import (
    CLASSES,
    FORMS,
    RANKED,
    TokenClass,
    class_of,
    classes_of,
    in_order_of_frequency,
)
from checkengine.detectors.transition_tables import load_tables
from checkengine.detectors.transitions import LONGEST, TransitionReading, TransitionTables, TransitionTest
from checkengine.detectors.vocabulary import Vocabulary

THRESHOLD = 16.0
SOURCES = [path.read_text() for path in sorted(Path(json.__file__).parents[1].glob("*.py"))]
TEXTS = [text for _, text in sorted(topics.topics.items())] + SOURCES
_C = TokenClass


def _trained(byte_level: bool) -> tuple[Tokenizer, Vocabulary]:
    tokenizer = Tokenizer(models.BPE(byte_fallback=not byte_level))
    if byte_level:
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
        alphabet = pre_tokenizers.ByteLevel.alphabet()
    else:
        spaces = pre_tokenizers.Metaspace(prepend_scheme="never", split=False)
        scripts = Regex(r"▁?\p{L}+|▁?\p{N}|▁?[^\p{L}\p{N}▁\s]+|▁+|\s+")
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([spaces, pre_tokenizers.Split(scripts, "isolated")])
        alphabet = []
    trainer = trainers.BpeTrainer(vocab_size=16000, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(TEXTS[::2], trainer)
    return tokenizer, Vocabulary.from_tokenizer(tokenizer)


@pytest.fixture(scope="module", params=[True, False], ids=["byte-level", "metaspace"])
def trained(request):
    tokenizer, vocabulary = _trained(request.param)
    return tokenizer, vocabulary, TransitionTables(vocabulary)


def reading(tables: TransitionTables, tokens, prompt=(), threshold=THRESHOLD) -> tuple[int, TransitionReading] | None:
    test = TransitionTest(tables, prompt, threshold)
    for index, token in enumerate(tokens):
        if found := test.push(token):
            return index, found
    return None


def salad(vocabulary: Vocabulary, seed: int, length: int = 64) -> list[int]:
    draw = random.Random(seed)
    return [draw.randrange(len(vocabulary)) for _ in range(length)]


@pytest.mark.parametrize(
    ("piece", "expected"),
    [
        (" a", _C.WORD_1),
        (" the", _C.WORD_3),
        (" nature", _C.WORD_6),
        (" responsible", _C.WORD_LONG),
        ("ing", _C.PART_3),
        ("The", _C.CAPITAL_PART),
        (" The", _C.CAPITAL_WORD),
        (" I", _C.CAPITAL_LETTER_WORD),
        ("HTTP", _C.UPPER_PART),
        ("getValue", _C.MIXED),
        ("'s", _C.CONTRACTION),
        (" 42", _C.SPACED_DIGITS),
        (".", _C.SENTENCE_END),
        ('."', _C.SIGNS),
        (" (", _C.SPACED_OPEN),
        ("\n\n", _C.NEWLINE),
        ("\n    ", _C.INDENT),
        ("\xa0", _C.ODD_SPACE),
        ("海", _C.OTHER_SCRIPT),
        (" été", _C.ACCENTED_WORD),
        ("😀", _C.SYMBOL),
    ],
)
def test_a_token_is_classed_by_its_looks(piece, expected):
    assert class_of(piece.encode()) is expected


def test_a_piece_of_a_character_a_special_token_and_a_hole_have_classes_of_their_own():
    classes = classes_of([b"\xe6\xb5", b"<end>", b""], frozenset({1}))
    assert classes.tolist() == [_C.BYTES, _C.SPECIAL, _C.SPECIAL]


def test_rare_tokens_are_told_from_common_ones_of_the_same_looks():
    classes = classes_of([b" word"] * 96)
    assert [int(value) for value in sorted(set(classes.tolist()))] == [
        _C.WORD_6,
        len(TokenClass) + 2 * RANKED.index(_C.WORD_6),
        len(TokenClass) + 2 * RANKED.index(_C.WORD_6) + 1,
    ]
    assert {FORMS[value] for value in classes} == {_C.WORD_6}
    assert len(FORMS) == CLASSES
    assert np.bincount(classes).max() == 72


def test_the_tables_hold_probabilities():
    salad_classes, healthy = load_tables()
    assert salad_classes.shape == (CLASSES,)
    assert healthy.shape[1:] == (len(TokenClass), CLASSES)
    assert salad_classes.sum() == pytest.approx(1)
    np.testing.assert_allclose(healthy.sum(axis=2), 1)
    assert healthy.min() > 0


def test_random_tokens_of_any_vocabulary_are_salad_within_32(trained):
    _, vocabulary, tables = trained
    assert tables.available
    delays = [found[0] + 1 for seed in range(40) if (found := reading(tables, salad(vocabulary, seed)))]
    assert len(delays) == 40
    assert statistics.median(delays) <= 16
    assert sorted(delays)[37] <= 32


def held_out(tokenizer, texts, every: int = 2048) -> list[list[int]]:
    encoded = [tokenizer.encode(text).ids for text in texts]
    return [ids[at : at + 512] for ids in encoded for at in range(0, len(ids), every)]


def test_documentation_in_any_vocabulary_passes(trained):
    tokenizer, _, tables = trained
    slices = held_out(tokenizer, TEXTS[1 : len(topics.topics) : 2], 512)
    assert sum(map(len, slices)) > 40_000
    assert [found for ids in slices if (found := reading(tables, ids[64:], ids[:64]))] == []


@pytest.mark.parametrize("trained", [True], ids=["byte-level"], indirect=True)
def test_source_code_in_a_byte_level_vocabulary_passes(trained):
    tokenizer, _, tables = trained
    slices = held_out(tokenizer, SOURCES[1::2])
    assert sum(map(len, slices)) > 60_000
    assert [found for ids in slices if (found := reading(tables, ids[64:], ids[:64]))] == []


def test_the_evidence_begins_where_the_text_turns_to_salad(trained):
    tokenizer, vocabulary, tables = trained
    texts = [ids for text in TEXTS[1:100:4] if len(ids := tokenizer.encode(text).ids) >= 120][:20]
    found = [reading(tables, ids[64:120] + salad(vocabulary, seed), ids[:64]) for seed, ids in enumerate(texts)]
    assert len(found) >= 10
    assert all(index >= 56 for index, _ in found)
    assert abs(statistics.median(entry.start for _, entry in found) - 56) <= 3


def test_odd_structure_that_repeats_is_no_salad(trained):
    _, vocabulary, tables = trained
    for seed in range(5):
        assert reading(tables, salad(vocabulary, seed, 3) * 200) is None


def test_a_prompt_of_random_tokens_calms_the_test_and_an_ordinary_one_does_not(trained):
    tokenizer, vocabulary, tables = trained

    def delays(prompt):
        found = [reading(tables, salad(vocabulary, seed, 200), prompt) for seed in range(20)]
        return [entry[0] if entry else 200 for entry in found]

    ordinary = tokenizer.encode(TEXTS[3]).ids[:200]
    assert statistics.median(delays(ordinary)) <= 20
    assert statistics.median(delays(salad(vocabulary, 99, 200))) > 1.5 * statistics.median(delays(ordinary))


def test_evidence_that_does_not_add_up_in_time_is_let_go(trained):
    _, vocabulary, tables = trained
    test = TransitionTest(tables, (), float("inf"))
    for token in salad(vocabulary, 3, 3000):
        test.push(token)
        assert len(test._tokens) <= LONGEST + 1


def test_ids_in_no_order_of_frequency_are_not_read():
    draw = random.Random(0)
    pieces = [b"x" * draw.randrange(1, 12) for _ in range(400)]
    assert not in_order_of_frequency(sorted(pieces, key=len, reverse=True))
    assert not in_order_of_frequency(pieces)
    assert in_order_of_frequency(sorted(pieces, key=len))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(-5, 7000), max_size=80), st.lists(st.integers(-5, 7000), max_size=80))
def test_any_ids_at_all_leave_the_evidence_finite(prompt, tokens):
    test = TransitionTest(_BYTE_LEVEL, prompt, float("inf"))
    for token in tokens:
        assert test.push(token) is None
        assert 0.0 <= test.evidence < 4.0 * (len(tokens) + 1)
    assert test.tokens == len(tokens)


_BYTE_LEVEL = TransitionTables(_trained(True)[1])
