"""Makes `detectors/salad/tables.npz`; about ten minutes on two quiet cores.

    python -m checkengine.benchmarks.salad_tables [--data DIR] [--out tables.npz]

Healthy text is parted into kinds by hard expectation-maximisation over first-order Markov chains of token classes;
salad is one distribution over classes for each strength of corruption, since held-out salad was no likelier under any
chain of higher order. Text is read with a vocabulary made here, whose pieces that were ever neighbours in other healthy
text are kept as well. Function words are the commonest of each language; a pair of them is avoided where it is less
than 0.12 times as frequent as the two words by themselves would make it.
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
from checkengine.benchmarks.salad_runs import runs_of
from checkengine.detectors import Vocabulary
from checkengine.detectors.salad import tables
from checkengine.detectors.salad.columns import EDGE, TELLS
from checkengine.detectors.salad.neighbours import all_new, fill_seen
from checkengine.detectors.salad.table import token_table
from checkengine.detectors.salad.text_vocabulary import ends_in, tokenizer_of
from checkengine.detectors.salad.token_classes import CLASSES, FORMS, TokenClass, classes_of

KINDS, TEXT_KINDS, ROUNDS, PRIOR, NEW_PRIOR = 32, 48, 8, 30.0, 12.0
PAIRS = len(TokenClass) * CLASSES
LANGUAGES = ["en", "ar", "de", "es", "fr", "hi", "id", "it", "ko", "pt", "ru", "tr", "vi", "nl", "pl", "sv", "cs"]
"""Whose function words are kept; those that are in the data."""
WORDS_OF_A_LANGUAGE = 48
DEPLETED, RARER, TOO_RARE = 0.12, 0.6, 0.7
PIECES = 16_384
SEEN_BYTES, SEEN_LEAST = 1 << 20, 2
"""Size of the filter, and how often two pieces must have been neighbours to be in it."""
WILD = ("temperature 3",)
SALAD = (("garbage slot, scale 5", "garbage slot, scale 10", "shuffled blocks"), ("garbage slot, scale 2",))
RUNS = 32
"""Of each class; every other one is learned from, the figures are measured on the rest."""
Floats = NDArray[np.float64]


def healthy_kinds(
    texts: Sequence[Text], classes: Sequence[NDArray[Any]], news: Sequence[NDArray[Any]], kinds: int
) -> list[Floats]:
    """P of a class behind a form, shape (kinds, forms, CLASSES), and P that such a pair is new, alike.

    `classes` are of the texts' tokens; `news` is 0 where a token's pair with the one before was seen, 1 where it is
    new, 2 where that tells nothing.
    """
    draw = np.random.default_rng(0)
    long = [at for at, row in enumerate(classes) if len(row) > 8]
    names = sorted({texts[at].kind for at in long})
    start = {name: order % kinds for order, name in enumerate(draw.permutation(names))}
    labels = np.array([start[texts[at].kind] for at in long])
    forms = np.array(FORMS)
    pairs = np.concatenate([forms[row[:-1]] * CLASSES + row[1:] for row in (classes[at][:512] for at in long)])
    told = np.concatenate([news[at][1:512] for at in long])
    lengths = np.array([len(classes[at][:512]) - 1 for at in long])
    return _parted(3 * pairs + told, lengths, labels, kinds)


def _parted(pairs: NDArray[Any], lengths: NDArray[Any], labels: NDArray[Any], kinds: int) -> list[Floats]:
    """`pairs` are 3 · pair of classes + news."""
    starts = np.concatenate([[0], np.cumsum(lengths)[:-1]])
    everywhere: Floats = np.bincount(pairs // 3 % CLASSES, minlength=CLASSES) + np.float64(1.0)
    everywhere /= everywhere.sum()
    for _ in range(ROUNDS):
        counted = np.bincount(np.repeat(labels, lengths) * (3 * PAIRS) + pairs, minlength=kinds * 3 * PAIRS)
        told = counted.reshape(kinds, len(TokenClass), CLASSES, 3).astype(np.float64)
        healthy, new = _likely(told.sum(axis=3), everywhere), _new(told[..., 0], told[..., 1])
        logs = np.log(healthy)[..., None] + np.log(np.stack([1.0 - new, new, np.ones_like(new)], axis=3))
        flat = logs.reshape(kinds, -1).astype(np.float32)
        labels = np.stack([np.add.reduceat(kind[pairs], starts) for kind in flat]).argmax(axis=0)
    return [healthy, new]


def _likely(counted: Floats, everywhere: Floats) -> Floats:
    usual = counted.sum(axis=1) + 0.05
    usual /= usual.sum(axis=1, keepdims=True)
    counted = counted + PRIOR * (0.7 * usual[:, None, :] + 0.3 * everywhere) + 0.02
    found: Floats = counted / counted.sum(axis=2, keepdims=True)
    return found


def _new(seen: Floats, new: Floats) -> Floats:
    """Share of new pairs, drawn towards that of the kind as a whole where a pair of classes is rare."""
    whole = (new.sum(axis=(1, 2)) + 1.0) / (new.sum(axis=(1, 2)) + seen.sum(axis=(1, 2)) + 2.0)
    found: Floats = (new + NEW_PRIOR * whole[:, None, None]) / (new + seen + NEW_PRIOR)
    return np.clip(found, *tables.SHARES)


def salad_kind(classes: NDArray[Any], news: NDArray[Any]) -> tuple[Floats, Floats]:
    """P of a class, and P that a token of the class is new behind the one before; shape (CLASSES,) each."""
    counted = np.bincount(classes, minlength=CLASSES) + 0.3
    new = np.bincount(classes[news == 1], minlength=CLASSES)
    seen = np.bincount(classes[news == 0], minlength=CLASSES)
    share = (new + NEW_PRIOR * (new.sum() + 1.0) / (new.sum() + seen.sum() + 2.0)) / (new + seen + NEW_PRIOR)
    return counted / counted.sum(), np.clip(share, *tables.SHARES)


def runs_learned(names: Sequence[str]) -> Iterator[list[int]]:
    """Corrupted tokens of every other run."""
    for name in names:
        yield from (run.tokens[run.first :] for run in runs_of(name, RUNS)[::2])


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


class Read:
    """A vocabulary's classes and the pieces of the text's own vocabulary at its tokens' ends."""

    def __init__(self, vocabulary: Vocabulary, ends: NDArray[np.int32]) -> None:
        self.classes = classes_of(vocabulary.pieces, vocabulary.special).astype(np.int64)
        self.tells = token_table(vocabulary)[:-1, EDGE] & TELLS > 0
        self._ends = ends.astype(np.int64)

    def news(self, ids: NDArray[Any], seen: NDArray[np.uint8]) -> NDArray[np.int64]:
        """As `healthy_kinds` wants them, shape (tokens,)."""
        found = np.full(len(ids), 2)
        if len(ids) > 1:
            tells = self.tells[ids[:-1]] & self.tells[ids[1:]]
            found[1:] = np.where(tells, all_new(self._ends[ids[:-1], 1], self._ends[ids[1:], 0], seen), 2)
        return found


def count_seen(own: Read, encoder: Tokenizer, texts: Iterator[str]) -> NDArray[np.uint8]:
    """`Tables.seen`."""
    parts = []
    while batch := list(islice(texts, 4096)):
        ids = encoded(encoder, batch)
        keys = np.concatenate([row[:-1] << 14 | row[1:] for row in ids if len(row) > 1])
        parts.append(keys[own.tells[keys >> 14] & own.tells[keys & 0x3FFF]].astype(np.int32))
    keys = np.sort(np.concatenate(parts))
    first = np.flatnonzero(np.diff(keys, prepend=-1))
    often = keys[first[np.diff(first, append=len(keys)) >= SEEN_LEAST]].astype(np.int64)
    seen = np.zeros(SEEN_BYTES, np.uint8)
    fill_seen(often >> 14, often & 0x3FFF, seen)
    print(f"{len(keys)} pairs read, {len(often)} kept, {np.unpackbits(seen).mean():.2f} of the bits set")
    return seen


def encoded(encoder: Tokenizer, texts: Sequence[str]) -> list[NDArray[np.int64]]:
    found = encoder.encode_batch_fast(list(texts), add_special_tokens=False)
    return [np.asarray(each.ids, np.int64) for each in found]


def salad_kinds(read: Read, seen: NDArray[np.uint8], groups: Sequence[Sequence[NDArray[Any]]]) -> list[Floats]:
    """P of a class and P new, shape (CLASSES, groups) each."""
    found = []
    for rows in groups:
        classes = np.concatenate([read.classes[row] for row in rows])
        found.append(salad_kind(classes, np.concatenate([read.news(row, seen) for row in rows])))
    return [np.column_stack(parts) for parts in zip(*found, strict=True)]


def salad_texts() -> list[list[str]]:
    """Strong, weak, wild, random."""
    read = tokenizer()
    groups = [[read.decode(ids) for ids in runs_learned(names)] for names in (*SALAD, WILD)]
    drawn = np.random.default_rng(9).integers(17, read.get_vocab_size(), (200, 64))
    return [*groups, [read.decode(ids.tolist()) for ids in drawn]]


def arrays_of(options: DetectorOptions, corpus: Corpus) -> dict[str, NDArray[Any]]:
    texts = kinds_of_text(options, corpus)
    written = [text.text for text in texts]
    merges = text_merges(written)
    encoder = tokenizer_of(merges.tolist())
    pieces = Vocabulary.from_tokenizer(encoder)
    own = Read(pieces, np.repeat(np.arange(len(pieces), dtype=np.int32)[:, None], 2, axis=1))
    seen = count_seen(own, encoder, seen_texts(options, corpus))
    vocabulary = Vocabulary.from_tokenizer(tokenizer())
    demo = Read(vocabulary, ends_in(encoder, vocabulary.pieces))
    arrays: dict[str, NDArray[Any]] = {"seen": seen, "merges": merges}
    drawn = [[np.asarray(ids) for ids in runs_learned(names)] for names in (*SALAD, WILD)]
    arrays |= named("", texts, demo, seen, encode(written), drawn)
    drawn = [encoded(encoder, group) for group in salad_texts()]
    arrays |= named("text_", texts, own, seen, encoded(encoder, written), drawn)
    words, pairs = function_words([*texts, *running_texts(options)])
    return arrays | {"words": np.frombuffer(" ".join(words).encode(), np.uint8), "word_pairs": pairs}


def named(
    prefix: str,
    texts: Sequence[Text],
    read: Read,
    seen: NDArray[np.uint8],
    ids: Sequence[NDArray[Any]],
    drawn: Sequence[Sequence[NDArray[Any]]],
) -> dict[str, NDArray[Any]]:
    classes, news = [read.classes[row] for row in ids], [read.news(row, seen) for row in ids]
    healthy, new = healthy_kinds(texts, classes, news, TEXT_KINDS if prefix else KINDS)
    salad, salad_new = salad_kinds(read, seen, drawn)
    return {
        f"{prefix}healthy": tables.levels(healthy),
        f"{prefix}healthy_new": tables.parts(new),
        f"{prefix}salad": tables.levels(salad),
        f"{prefix}salad_new": tables.parts(salad_new),
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
