"""Word salad told from the looks of neighbouring tokens alone, on vocabularies trained here."""

from __future__ import annotations

import json
import random
import statistics
from pathlib import Path
from pydoc_data import topics

import numpy as np
import pytest
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from checkengine.detectors.salad import SaladBatch, SaladReading, SaladTables
from checkengine.detectors.salad.columns import REMEMBER
from checkengine.detectors.vocabulary import Vocabulary
from checkengine.guards.settings import SaladSettings

THRESHOLD = SaladSettings().evidence
SOURCES = [path.read_text() for path in sorted(Path(json.__file__).parents[1].glob("*.py"))]
TEXTS = [text for _, text in sorted(topics.topics.items())] + SOURCES


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
    return tokenizer, vocabulary, SaladTables(vocabulary)


def reading(tables: SaladTables, tokens, prompt=()) -> tuple[int, SaladReading] | None:
    batch = SaladBatch(tables, THRESHOLD, slots=1)
    slot = batch.open(prompt)
    fired = batch.push(np.full(len(tokens), slot), np.asarray(tokens, np.int64))
    return (int(fired[0]), batch.reading(slot)) if len(fired) else None


def salad(vocabulary: Vocabulary, seed: int, length: int = 64) -> list[int]:
    draw = random.Random(seed)
    return [draw.randrange(len(vocabulary)) for _ in range(length)]


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
    batch = SaladBatch(tables, float("inf"), slots=1)
    slot = batch.open()
    taken = []
    for token in salad(vocabulary, 3, 3000):
        batch.push(np.array([slot]), np.array([token]))
        found = batch.reading(slot)
        taken.append(found.tokens)
    assert max(taken) < 2 * REMEMBER
