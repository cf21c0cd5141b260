"""Makes `detectors/salad/tables.npz`; about ten minutes on two quiet cores.

    python -m checkengine.benchmarks.salad_tables [--data DIR] [--out tables.npz]

Healthy text is parted into kinds by hard expectation-maximisation over first-order Markov chains of token classes and
of the states of neighbours; salad is one distribution for each way to break a model, since held-out salad was no
likelier under any chain of higher order. Text is read with a vocabulary made here, whose pieces that were neighbours in
other healthy text are counted as well. Function words are the commonest of each language; a pair of them is avoided
where it is less than 0.12 times as frequent as the two words by themselves would make it.

The file is made wholly here. What was read is printed: files of this machine, runs of the demo model
(`salad_runs`), public replies where there are any.
"""

from __future__ import annotations

import argparse
import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from checkengine.benchmarks.detectors import DetectorOptions
from checkengine.benchmarks.detectors.corpus import Corpus, hard_negatives
from checkengine.benchmarks.detectors.tokenizer import encode, tokenizer
from checkengine.benchmarks.salad_data import Text, kinds_of_text, running_texts, seen_texts
from checkengine.benchmarks.salad_kinds import Reader, healthy_kinds, salad_kinds
from checkengine.benchmarks.salad_runs import SaladRun, runs_of
from checkengine.detectors import Vocabulary
from checkengine.detectors.salad import tables
from checkengine.detectors.salad.neighbours import BUCKET, OFTEN, fill, piece_logs
from checkengine.detectors.salad.text_vocabulary import ends_in, tokenizer_of

LANGUAGES = ["en", "ar", "de", "es", "fr", "hi", "id", "it", "ko", "pt", "ru", "tr", "vi", "nl", "pl", "sv", "cs"]
"""Whose function words are kept; those that are in the data."""
WORDS_OF_A_LANGUAGE = 48
DEPLETED, RARER, TOO_RARE = 0.12, 0.6, 0.7
PIECES = 16_384
BUCKETS = 1 << 20
SALAD = (
    ("garbage slot, scale 5", "garbage slot, scale 10", "shuffled blocks", "garbage slot, scale 2"),
    ("temperature 3",),
)
RUNS = 64
"""Of each class; every other one is learned from, the figures are measured on the rest."""
DRAWN, DRAWN_TOKENS = 1000, 64
"""Sequences of ids drawn at random, the last kind of salad, and tokens of each."""
Floats = NDArray[np.float64]


def runs_learned(names: Sequence[str]) -> Iterator[SaladRun]:
    """Every other run."""
    for name in names:
        yield from runs_of(name, RUNS)[::2]


def function_words(texts: Sequence[Text]) -> tuple[list[str], NDArray[np.uint8]]:
    """The words, and `Tables.word_pairs`."""
    words: dict[str, int] = {}
    for language in LANGUAGES:
        of_language = [text.text for text in texts if text.kind == f"language {language}"]
        of_language = of_language or [text.text for text in texts if text.kind == f"catalogue {language}"]
        counted = Counter(word for text in of_language for word in _WORD.findall(text))
        for word, _ in counted.most_common(WORDS_OF_A_LANGUAGE):
            words.setdefault(word, len(words))
    counts, alone = np.zeros((len(words), len(words))), np.zeros((len(words), len(words)))
    for language in sorted({_language(text) for text in texts}):
        # Chance is that of one language: pooled, words of two languages would make it look small.
        own = _neighbours([text.text for text in texts if _language(text) == language], words)
        counts += own
        alone += np.outer(own.sum(axis=1), own.sum(axis=0)) / max(own.sum(), 1)
    avoided = (alone >= TOO_RARE) & (counts < np.maximum(DEPLETED * alone, 2)) & ~((counts >= 1) & (alone < 3))
    new = (alone < TOO_RARE) & (counts == 0)
    states = np.zeros((len(words), -(-len(words) // 4) * 4), np.uint8)
    rarer = (alone >= TOO_RARE) & (counts < RARER * alone) & ~avoided
    states[:, : len(words)] = np.select([avoided, new, rarer], [2, 1, 3], 0)
    fours = states.reshape(len(words), -1, 4)
    return list(words), (fours << np.array([0, 2, 4, 6], np.uint8)).sum(axis=2).astype(np.uint8)


_WORD = re.compile(r"(?<= )[^\W\d_]+(?= )")


def _language(text: Text) -> str:
    """Code of a reply's or a catalogue's; what lies in files is one more."""
    return text.kind.partition(" ")[2].split("_")[0]


def _neighbours(texts: Sequence[str], words: dict[str, int]) -> Floats:
    """How often word b follows word a, a single blank between them."""
    rows = [[words.get(word, -1) for word in (text.replace("\n", " ") + " |").split(" ")] for text in texts]
    read = np.array([number for row in rows for number in row])
    first, then = read[:-1], read[1:]
    both = (first >= 0) & (then >= 0)
    counts = np.bincount(first[both] * len(words) + then[both], minlength=len(words) ** 2)
    return counts.reshape(len(words), len(words)).astype(np.float64)


def text_merges(texts: Sequence[str]) -> NDArray[np.uint16]:
    """Merges of a byte-level vocabulary of PIECES, two ids each, the alphabet's ids in its own order."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    made.train_from_iterator(texts, trainers.BpeTrainer(vocab_size=PIECES, initial_alphabet=alphabet))
    numbers: dict[str, int] = {name: number for number, name in enumerate(sorted(alphabet))}
    merges = []
    for merge in json.loads(made.to_str())["model"]["merges"]:
        first, second = merge.split(" ") if isinstance(merge, str) else merge
        merges.append((numbers[first], numbers[second]))
        numbers[first + second] = len(numbers)
    return np.array(merges, np.uint16)


def count_pairs(encoder: Tokenizer, texts: Iterator[str]) -> tuple[NDArray[np.uint8], NDArray[np.float64]]:
    """`Tables.counts` and `Tables.logs`."""
    parts, alone = [], np.zeros(PIECES, np.int64)
    while batch := list(islice(texts, 4096)):
        ids = encoded(encoder, batch)
        parts.append(np.concatenate([row[:-1] << 14 | row[1:] for row in ids if len(row) > 1]).astype(np.int32))
        alone += np.bincount(np.concatenate(ids), minlength=PIECES)
    keys = np.sort(np.concatenate(parts))
    first = np.flatnonzero(np.diff(keys, prepend=-1))
    often = np.diff(first, append=len(keys))
    kept = np.flatnonzero(often >= OFTEN[0])
    kept = kept[np.argsort(-often[kept], kind="stable")]
    pairs = keys[first[kept]].astype(np.int64)
    counts = np.zeros(BUCKETS * BUCKET, np.uint8)
    steps = np.searchsorted(np.array(OFTEN), often[kept], side="right") - 1
    lost = fill(pairs >> 14, pairs & (PIECES - 1), steps.astype(np.uint8), counts)
    print(f"{len(keys)} pairs read, {len(kept)} kept, {lost} of them lost for want of place")
    return counts, piece_logs(alone)


def encoded(encoder: Tokenizer, texts: Sequence[str]) -> list[NDArray[np.int64]]:
    found = encoder.encode_batch_fast(list(texts), add_special_tokens=False)
    return [np.asarray(each.ids, np.int64) for each in found]


Drawn = list[list[tuple[NDArray[np.int64], int]]]
"""By kind of salad: token ids, and index of the first that is salad."""


def salad_ids() -> Drawn:
    """Of the demo model, behind the ends of its prompts; the last kind are ids drawn at random."""
    found = [
        [(np.array(run.prompt_tokens + run.tokens), len(run.prompt_tokens) + run.first) for run in group]
        for group in (list(runs_learned(names)) for names in SALAD)
    ]
    drawn = np.random.default_rng(9).integers(17, tokenizer().get_vocab_size(), (DRAWN, DRAWN_TOKENS))
    return [*found, [(ids, 0) for ids in drawn]]


def as_text(drawn: Drawn, encoder: Tokenizer) -> Drawn:
    """The same, read with another vocabulary."""
    read, found = tokenizer(), []
    for group in drawn:
        before = encoded(encoder, [read.decode(ids[:first].tolist()) for ids, first in group])
        after = encoded(encoder, [read.decode(ids[first:].tolist()) for ids, first in group])
        found.append([(np.concatenate(both), len(both[0])) for both in zip(before, after, strict=True)])
    return found


def arrays_of(options: DetectorOptions, corpus: Corpus) -> dict[str, NDArray[Any]]:
    texts = kinds_of_text(options, corpus)
    written, kinds = [text.text for text in texts], [text.kind for text in texts]
    merges = text_merges(written)
    encoder = tokenizer_of(merges.tolist())
    counts, logs = count_pairs(encoder, seen_texts(options, corpus))
    pieces, vocabulary = Vocabulary.from_tokenizer(encoder), Vocabulary.from_tokenizer(tokenizer())
    itself = np.arange(len(pieces), dtype=np.int32)[:, None].repeat(2, 1)
    reader = Reader(vocabulary, ends_in(encoder, vocabulary.pieces), counts, logs)
    own = Reader(pieces, itself, counts, logs)
    drawn = salad_ids()
    tokens = tables.Transitions(*healthy_kinds(reader, kinds, encode(written)), *salad_kinds(reader, drawn))
    text = tables.Transitions(
        *healthy_kinds(own, kinds, encoded(encoder, written)), *salad_kinds(own, as_text(drawn, encoder))
    )
    words, pairs = function_words([*texts, *running_texts(options)])
    print(f"{len(texts)} texts of {len(set(kinds))} kinds, {sum(map(len, drawn))} runs of salad, {len(words)} words")
    return {
        **tables.stored(tokens, ""),
        **tables.stored(text, "text_"),
        "counts": counts,
        "logs": np.round(logs * tables.LOG_STEPS).astype(np.int16),
        "counted_over": np.array([tables.fingerprint_of(vocabulary.pieces)]),
        "merges": merges,
        "words": np.frombuffer(" ".join(words).encode(), np.uint8),
        "word_pairs": pairs,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder of public data: replies in fifteen languages, agents' runs")
    parser.add_argument("--out", type=Path, default=Path(tables.__file__).with_name(tables.FILE))
    given = parser.parse_args()
    options = DetectorOptions(given.data)
    arrays: dict[str, Any] = arrays_of(options, hard_negatives(options))
    np.savez_compressed(given.out, **arrays)


if __name__ == "__main__":
    main()
