"""What is known of a vocabulary's tokens before a model runs: a row of small numbers a token."""

from __future__ import annotations

import re
from functools import cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from checkengine.detectors.language.scripts import Script
from checkengine.detectors.salad import columns as k
from checkengine.detectors.salad.joins import WordJoins
from checkengine.detectors.salad.tables import Floats, Transitions, fingerprint_of, load_tables
from checkengine.detectors.salad.text_vocabulary import ends_in, text_tokenizer
from checkengine.detectors.salad.token_classes import CLASSES, FORMS, TokenClass, classes_of, in_order_of_frequency
from checkengine.detectors.salad.words import hash_of, letters_of, word_places
from checkengine.detectors.vocabulary import Vocabulary

_C = TokenClass
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
"""Nats that a pair counts at most where a class depends on the vocabulary or the language more than on the text."""
RESERVED = re.compile(
    r"(?i)reserved|unused|special_?\d|control_?\d|extra_id|placeholder|dummy|^[<\[|]*(unk|pad|mask)\b"
)
"""Names of tokens that no model is trained to write."""
CONTROL = re.compile(
    r"(?i)start|bos|begin|inst|system|user|role|sep|cls|fim|repo|file|jupyter|issue|commit|header|text"
)
"""Names of tokens that belong into a prompt. Thoughts, tools and channels may well be part of an answer."""
ANSWERS = re.compile(r"(?i)think|tool|call|channel|message|reason|eot|eom|im_end|box|ref|point|seg")
SHORT = 3
"""Letters of a capitalised word that may be any word at the beginning of a sentence, and no name."""
ALONE = ("A", "I")
"""Capital letters that are words; others are parts of names ("X.509")."""
JAPANESE = {Script.KANA: Script.HAN}
"""Two writing systems of one language are one here."""


VAGUE = (*(_C.SPECIAL, _C.BYTES, _C.OTHER_SCRIPT, _C.SYMBOL, _C.ODD_SPACE, _C.ACCENTED, _C.ACCENTED_WORD),)
"""Classes of which it tells nothing that two pieces were never neighbours: of most languages too little was read."""
SMALLEST_VOCABULARY = 2048
FEWEST_WORDS = 32
"""Function words that every natural vocabulary holds as pieces."""


class Pairs(NamedTuple):
    """Of classes and states, shared by all vocabularies."""

    healthy: NDArray[np.float32]
    """P healthy, shape (forms · CLASSES · STATES, kinds)."""
    salad: NDArray[np.float32]
    """P salad, shape (CLASSES · STATES, kinds): no salad is likelier under a chain of higher order."""
    ceiling: NDArray[np.float32]
    """Nats, one a pair of classes."""


class Known(NamedTuple):
    """All that the kernel reads of a vocabulary, in its words."""

    tokens: NDArray[np.int32]
    healthy: NDArray[np.float32]
    salad: NDArray[np.float32]
    ceiling: NDArray[np.float32]
    counts: NDArray[np.uint8]
    logs: NDArray[np.float32]
    word_hashes: NDArray[np.int64]
    word_numbers: NDArray[np.int16]
    word_pairs: NDArray[np.uint8]


@cache
def pairs() -> Pairs:
    return pairs_of(load_tables().tokens)


@cache
def text_pairs() -> Pairs:
    """Over the vocabulary that text is read with; random ids of it are among its kinds of salad."""
    return pairs_of(load_tables().text)


def pairs_of(known: Transitions) -> Pairs:
    own = np.full(CLASSES, k.STEEPEST)
    for token_class, most in CEILINGS.items():
        own[token_class] = most
    ceiling = np.minimum(own[: len(TokenClass), None], own[None, :])
    healthy = joint(known.healthy, known.healthy_states)
    return Pairs(healthy, joint(known.salad, known.salad_states), ceiling.ravel().astype(np.float32))


def joint(classes: Floats, states: Floats) -> NDArray[np.float32]:
    """P of class and state together, kinds last."""
    both = (classes[..., None] * states).reshape(len(classes), -1)
    return np.ascontiguousarray(both.T, np.float32)


def with_random(known: Pairs, classes: NDArray[np.int32]) -> Pairs:
    """Ids drawn at random from this vocabulary in place of those of the demo model, the last kind of salad."""
    drawn = np.bincount(classes, minlength=CLASSES) + 0.5
    states = load_tables().tokens.salad_states[-1:]
    salad = known.salad.copy()
    salad[:, -1:] = joint(drawn[None] / drawn.sum(), states)
    return known._replace(salad=salad)


class SaladTables:
    """Made once a vocabulary and shared by all sequences, in about a second for 150,000 tokens.

    `available` is False where ids are in no order of frequency or the pieces are those of no language: nothing is read
    then.
    """

    def __init__(self, vocabulary: Vocabulary, known: Pairs | None = None) -> None:
        """`known`: what was counted over this very vocabulary; without it, what holds in general."""
        self.available = is_natural(vocabulary)
        self.own = known is not None or fingerprint_of(vocabulary.pieces) == load_tables().counted_over
        """Whether this very vocabulary was counted over."""
        if known is None:
            self.tokens = token_table(vocabulary, ends_in(text_tokenizer(), vocabulary.pieces))
            known = with_random(pairs(), self.tokens[:-1, k.CLASS])
        else:
            self.tokens = token_table(vocabulary, np.arange(len(vocabulary), dtype=np.int32)[:, None].repeat(2, 1))
        """Shape (size + 1, TOKEN_COLUMNS), int32; the last row stands for ids outside the vocabulary."""
        tables = load_tables()
        self.joins = WordJoins(vocabulary, self.tokens, tables.counts, tables.logs)
        self.known = Known(self.tokens, *known, tables.counts, tables.logs, *word_places(), tables.word_pairs)

    def __len__(self) -> int:
        return len(self.tokens) - 1


def is_natural(vocabulary: Vocabulary) -> bool:
    """Whether it was made from texts of languages, its common pieces first."""
    if len(vocabulary) < SMALLEST_VOCABULARY:
        return False
    held = {piece.strip() for piece in vocabulary.pieces}
    words = sum(word.encode() in held for word in load_tables().words)
    return words >= FEWEST_WORDS and in_order_of_frequency(vocabulary.pieces)


def token_table(vocabulary: Vocabulary, ends: NDArray[np.int32]) -> NDArray[np.int32]:
    """`ends`: first and last piece of the text's own vocabulary in each token, shape (size, 2), -1 where there is
    none."""
    size = len(vocabulary)
    table = np.zeros((size + 1, k.TOKEN_COLUMNS), np.int32)
    table[size, k.EDGE] = k.PLAIN
    table[size, k.FORM] = FORMS[_C.SPECIAL] * CLASSES
    if not size:
        return table
    classes = classes_of(vocabulary.pieces, vocabulary.special)
    table[:size, k.CLASS] = classes
    table[:size, k.FORM] = np.array(FORMS)[classes] * CLASSES
    table[:size, k.SCRIPT] = [JAPANESE.get(Script(script), script) for script in vocabulary.script.tolist()]
    table[:size, k.LENGTH] = [len(piece.strip()) for piece in vocabulary.pieces]
    for token, piece in enumerate(vocabulary.pieces):
        table[token, k.EDGE], table[token, k.LEADING], table[token, k.END] = edges(piece)
        if (letters := letters_of(piece)) is not None:
            table[token, k.EDGE] |= k.LETTERS_ONLY
            table[token, k.LETTERS_HASH], table[token, k.POWER] = hash_of(letters)
    table[:size, k.FIRST_PIECE : k.LAST_PIECE + 1] = ends
    table[:size, k.EDGE] |= np.where(np.isin(classes, VAGUE) | (ends[:, 0] < 0), 0, k.TELLS)
    outside = vocabulary.special | set(vocabulary.added.values())
    for token in outside:
        if 0 <= token < size:
            table[token, k.EDGE] = k.PLAIN
    for token in vocabulary.special:
        if 0 <= token < size:
            table[token, k.MARK] = mark_of(vocabulary.pieces[token])
    return table


def mark_of(piece: bytes) -> int:
    """What it tells that a special token of this name stands in an output."""
    name = piece.decode("utf-8", "replace")
    if RESERVED.search(name):
        return k.RESERVED
    return k.CONTROL if CONTROL.search(name) and not ANSWERS.search(name) else 0


def edges(piece: bytes) -> tuple[int, int, int]:
    """Bits of EDGE, leading bytes that continue a character, and bytes that the last one still needs (-1: broken)."""
    try:
        text = piece.decode("utf-8")
    except UnicodeDecodeError:
        leading, more, end = utf8_parts(piece)
        begins = k.BEGINS_SPACE if piece[:1] == b" " else k.BEGINS_LETTER if piece[0] >= 0xC2 else 0
        return (k.BROKEN if more else 0) | begins, leading, end
    if not text:
        return k.PLAIN, 0, 0
    bits = k.PLAIN | (k.BLANK if text == " " else 0)
    bits |= k.BEGINS_LETTER if text[0].isalpha() else 0
    # Behind a contraction ('s) every tokenizer cuts.
    bits |= k.ENDS_LETTER if text[-1].isalpha() and text[0] not in "'’" else 0
    bits |= k.BEGINS_SPACE if text[0] == " " else 0
    bits |= k.ENDS_SPACE if text[-1].isspace() else 0
    body = text[1:] if text[0] == " " else text
    bits |= k.SMALL if body.isalpha() and (body.islower() or 1 < len(body) <= SHORT or body in ALONE) else 0
    return bits, 0, 0


def utf8_parts(piece: bytes) -> tuple[int, bool, int]:
    """Leading continuation bytes, whether anything follows them, bytes that the end still needs (-1 if broken)."""
    leading = 0
    while leading < len(piece) and 0x80 <= piece[leading] < 0xC0:
        leading += 1
    rest = piece[leading:]
    for needed in (0, 1, 2, 3):
        if any(_is_valid(rest + filler * needed) for filler in (b"\x80", b"\xa0", b"\x90")):
            return leading, bool(rest), needed
    return leading, bool(rest), -1


def _is_valid(piece: bytes) -> bool:
    try:
        piece.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True
