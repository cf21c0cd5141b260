"""Makes `detectors/salad/tables.npz`; about five minutes on a quiet core.

    python -m checkengine.benchmarks.salad_tables --data DIR [--out tables.npz]

Healthy text is parted into kinds by hard expectation-maximisation over first-order Markov chains of token classes;
salad is one distribution over classes for each strength of corruption, since held-out salad was no likelier under any
chain of higher order. Function words are the commonest of each language; a pair of them is avoided where it is less
than 0.12 times as frequent as the two words by themselves would make it.
"""

from __future__ import annotations

import argparse
import json
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.feature_extraction.text import CountVectorizer
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from checkengine.benchmarks.detectors import DetectorOptions
from checkengine.benchmarks.detectors.tokenizer import encode, tokenizer
from checkengine.benchmarks.salad_data import Text, training_texts
from checkengine.benchmarks.salad_runs import runs_of
from checkengine.detectors import Vocabulary
from checkengine.detectors.salad import tables
from checkengine.detectors.salad.pieces import tokenizer_of
from checkengine.detectors.salad.token_classes import CLASSES, FORMS, TokenClass, classes_of

KINDS, ROUNDS, PRIOR = 32, 8, 30.0
PAIRS = len(TokenClass) * CLASSES
WORDS_OF_A_LANGUAGE = 48
UNSPACED = ("zh", "ja")
DEPLETED, TOO_RARE = 0.12, 0.7
PIECES = 16_384
SALAD = (("garbage slot, scale 5", "shuffled blocks"), ("garbage slot, scale 2",))
RUNS = 32
"""Of each class; every other one is learned from, the figures are measured on the rest."""
Floats = NDArray[np.float64]


def healthy_kinds(texts: Sequence[Text], ids: Sequence[NDArray[Any]], classes: NDArray[Any]) -> Floats:
    """P of a class behind a form, shape (KINDS, forms, CLASSES); `ids` are the texts' tokens."""
    draw = np.random.default_rng(0)
    rows = [(text.kind, classes[row[:512]]) for text, row in zip(texts, ids, strict=True) if len(row) > 8]
    start = {kind: order % KINDS for order, kind in enumerate(draw.permutation(sorted({kind for kind, _ in rows})))}
    labels = np.array([start[kind] for kind, _ in rows])
    forms = np.array(FORMS)
    pairs = np.concatenate([forms[row[:-1]] * CLASSES + row[1:] for _, row in rows])
    lengths = np.array([len(row) - 1 for _, row in rows])
    return _parted(pairs, lengths, labels)


def _parted(pairs: NDArray[np.int64], lengths: NDArray[np.int64], labels: NDArray[np.int64]) -> Floats:
    starts = np.concatenate([[0], np.cumsum(lengths)[:-1]])
    everywhere = np.bincount(pairs % CLASSES, minlength=CLASSES) + 1.0
    everywhere /= everywhere.sum()
    for _ in range(ROUNDS):
        owner = np.repeat(labels, lengths)
        counted = np.bincount(owner * PAIRS + pairs, minlength=KINDS * PAIRS).reshape(KINDS, -1, CLASSES).astype(float)
        usual = counted.sum(axis=1) + 0.05
        usual /= usual.sum(axis=1, keepdims=True)
        counted += PRIOR * (0.7 * usual[:, None, :] + 0.3 * everywhere) + 0.02
        healthy: Floats = counted / counted.sum(axis=2, keepdims=True)
        logs = np.log(healthy).astype(np.float32).reshape(KINDS, -1)
        labels = np.stack([np.add.reduceat(kind[pairs], starts) for kind in logs]).argmax(axis=0)
    return healthy


def salad_kinds(classes: NDArray[np.int64]) -> Floats:
    """P of a class, shape (CLASSES, 2): strong corruption and weak."""
    found = []
    for names in SALAD:
        runs = [run for name in names for run in runs_of(name, RUNS)[::2]]
        drawn = np.concatenate([classes[run.tokens[run.first :]] for run in runs])
        counted = np.bincount(drawn, minlength=CLASSES) + 0.3
        found.append(counted / counted.sum())
    return np.column_stack(found)


def function_words(texts: Sequence[Text]) -> tuple[list[str], NDArray[np.uint8]]:
    """The words, and `Tables.word_pairs`."""
    words: dict[str, int] = {}
    for kind in sorted({text.kind for text in texts if _spaced(text.kind)}, key=lambda kind: kind != "language en"):
        counted = Counter(w for text in texts if text.kind == kind for w in _WORD.findall(text.text))
        for word, _ in counted.most_common(WORDS_OF_A_LANGUAGE):
            words.setdefault(word, len(words))
    counts = _neighbours([text.text for text in texts], words)
    alone = np.outer(counts.sum(axis=1), counts.sum(axis=0)) / max(counts.sum(), 1)
    avoided = (alone >= TOO_RARE) & (counts < np.maximum(DEPLETED * alone, 2)) & ~((counts >= 1) & (alone < 3))
    new = (alone < TOO_RARE) & (counts == 0)
    states = np.zeros((len(words), -(-len(words) // 4) * 4), np.uint8)
    states[:, : len(words)] = np.where(avoided, 2, np.where(new, 1, 0))
    fours = states.reshape(len(words), -1, 4)
    return list(words), (fours << np.array([0, 2, 4, 6], np.uint8)).sum(axis=2).astype(np.uint8)


_WORD = re.compile(r"(?<= )[^\W\d_]+(?= )")


def _spaced(kind: str) -> bool:
    return kind.startswith("language ") and kind.removeprefix("language ") not in UNSPACED


def _neighbours(texts: Sequence[str], words: dict[str, int]) -> Floats:
    """How often word b follows word a, a single blank between them."""
    vocabulary = {f"{a} {b}": i * len(words) + j for a, i in words.items() for b, j in words.items()}
    count = CountVectorizer(ngram_range=(2, 2), tokenizer=_split, token_pattern=None, vocabulary=vocabulary)
    total = np.asarray(count.transform(texts).sum(axis=0)).ravel()
    return total.reshape(len(words), len(words)).astype(np.float64)


def _split(text: str) -> list[str]:
    return text.replace("\n", " ").split(" ")


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


def text_salad(merges: NDArray[np.uint16]) -> Floats:
    """P of a class, shape (CLASSES, 3), over the text's own vocabulary: strong, weak, random."""
    read = tokenizer_of(merges.tolist())
    vocabulary = Vocabulary.from_tokenizer(read)
    classes = classes_of(vocabulary.pieces, vocabulary.special)
    found = []
    for names in (*SALAD, ("temperature 3",)):
        texts = [tokenizer().decode(run.tokens[run.first :]) for name in names for run in runs_of(name, RUNS)[::2]]
        if len(found) == len(SALAD):
            drawn = np.random.default_rng(9).integers(17, tokenizer().get_vocab_size(), (60, 64))
            texts += [tokenizer().decode(ids.tolist()) for ids in drawn]
        ids = np.concatenate([read.encode(text, add_special_tokens=False).ids for text in texts]).astype(np.int64)
        counted = np.bincount(classes[ids], minlength=CLASSES) + 0.3
        found.append(counted / counted.sum())
    return np.column_stack(found)


def write(out: Path, texts: Sequence[Text]) -> None:
    vocabulary = Vocabulary.from_tokenizer(tokenizer())
    classes = classes_of(vocabulary.pieces, vocabulary.special).astype(np.int64)
    words, pairs = function_words(texts)
    written = [text.text for text in texts]
    merges = text_merges(written)
    read = tokenizer_of(merges.tolist())
    own_pieces = Vocabulary.from_tokenizer(read)
    own_classes = classes_of(own_pieces.pieces, own_pieces.special).astype(np.int64)
    own = [np.asarray(each.ids) for each in read.encode_batch_fast(written, add_special_tokens=False)]
    arrays: dict[str, Any] = {
        "healthy": tables.levels(healthy_kinds(texts, encode(written), classes)),
        "text_healthy": tables.levels(healthy_kinds(texts, own, own_classes)),
        "salad": tables.levels(salad_kinds(classes)),
        "text_salad": tables.levels(text_salad(merges)),
        "words": np.frombuffer(" ".join(words).encode(), np.uint8),
        "word_pairs": pairs,
        "merges": merges,
    }
    np.savez_compressed(out, **arrays)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder of public data")
    parser.add_argument("--out", type=Path, default=Path(tables.__file__).with_name(tables.FILE))
    given = parser.parse_args()
    write(given.out, training_texts(DetectorOptions(given.data)))


if __name__ == "__main__":
    main()
