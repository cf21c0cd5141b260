"""What is known of every token id before a model runs: its bytes, its script, and whether it can be sampled at all."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from checkengine.detectors.language.scripts import Script, script_of_piece


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Tables over token ids; `possible` and `script` have shape (size,) where size is the logits' columns."""

    pieces: tuple[bytes, ...]
    possible: NDArray[np.bool_]
    """False for padded head rows and for holes: ids that no tokenizer entry owns."""
    script: NDArray[np.uint8]
    """`Script` of the piece; special tokens and impossible ids are COMMON."""
    words: NDArray[np.bool_]
    """True where the piece holds at least two letters side by side; special tokens are none."""
    special: frozenset[int]
    added: dict[str, int]
    """Added tokens (special ones too) by their text."""
    bpe: Any = None
    """The tokenizer's byte-pair model (`tokenizers.models.BPE`), where it is one."""

    @classmethod
    def from_tokenizer(cls, tokenizer: Any, size: int | None = None) -> Vocabulary:
        """From a transformers tokenizer, or a `tokenizers.Tokenizer`; `size` is the number of logits columns."""
        names: dict[str, int] = tokenizer.get_vocab()
        length = size if size is not None else max(names.values(), default=-1) + 1
        added = _added(tokenizer)
        special = frozenset(_special_ids(tokenizer))
        pieces, possible = [b""] * length, np.zeros(length, np.bool_)
        decode = _decoder(names, set(added))
        for name, token in names.items():
            if 0 <= token < length:
                pieces[token] = name.encode() if name in added and not _BYTE_TOKEN.fullmatch(name) else decode(name)
                possible[token] = True
        script = np.array([script_of_piece(piece) for piece in pieces], np.uint8)
        script[[token for token in special if token < length]] = Script.COMMON
        words = np.array([_is_word(piece) for piece in pieces], np.bool_)
        words[[token for token in special if token < length]] = False
        for table in (script, possible, words):
            table.flags.writeable = False
        return cls(tuple(pieces), possible, script, words, special, added, _byte_pairs(tokenizer))

    def __len__(self) -> int:
        return len(self.pieces)

    def piece(self, token: int) -> bytes:
        """The bytes that the token adds to a text; empty for ids outside the vocabulary."""
        return self.pieces[token] if 0 <= token < len(self.pieces) else b""

    def is_possible(self, token: int) -> bool:
        return 0 <= token < len(self.pieces) and bool(self.possible[token])

    def text(self, tokens: Iterable[int], *, special: bool = False) -> str:
        """The tokens' text; broken UTF-8 becomes U+FFFD. Special tokens are left out unless asked for."""
        kept = (self.piece(token) for token in tokens if special or token not in self.special)
        return b"".join(kept).decode("utf-8", errors="replace")

    def ids_of(self, text: str) -> tuple[int, ...]:
        """Ids whose piece is exactly this text: where a delimiter is a single token, usually one."""
        wanted = text.encode()
        return tuple(token for token, piece in enumerate(self.pieces) if piece == wanted)


def _is_word(piece: bytes) -> bool:
    text = piece.decode("utf-8", errors="replace")
    return any(a.isalpha() and b.isalpha() for a, b in pairwise(text))


_BYTE_TOKEN = re.compile(r"<0x[0-9A-Fa-f]{2}>")
"""A byte that SentencePiece vocabularies fall back on."""


def _added(tokenizer: Any) -> dict[str, int]:
    backend = _backend(tokenizer)
    decoder = getattr(backend, "get_added_tokens_decoder", None) or getattr(tokenizer, "get_added_tokens_decoder", None)
    if decoder is not None:
        return {str(token.content): int(number) for number, token in decoder().items()}
    return {str(name): int(number) for name, number in tokenizer.get_added_vocab().items()}


def _byte_pairs(tokenizer: Any) -> Any:
    model = getattr(_backend(tokenizer), "model", None)
    return model if type(model).__name__ == "BPE" else None


def _backend(tokenizer: Any) -> Any:
    return getattr(tokenizer, "backend_tokenizer", None) or getattr(tokenizer, "_tokenizer", None) or tokenizer


def _special_ids(tokenizer: Any) -> Iterable[int]:
    yield from getattr(tokenizer, "all_special_ids", ())
    backend = _backend(tokenizer)
    decoder = getattr(backend, "get_added_tokens_decoder", None)
    if decoder is not None:
        yield from (int(number) for number, token in decoder().items() if token.special)


def _byte_level_characters() -> dict[str, int]:
    """GPT-2's table: the printable characters of Latin-1 stand for themselves, the rest from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    table = {chr(byte): byte for byte in printable}
    others = (byte for byte in range(256) if byte not in set(printable))
    return table | {chr(0x100 + order): byte for order, byte in enumerate(others)}


_BYTE_LEVEL = _byte_level_characters()


def _decoder(names: dict[str, int], added: set[str]) -> Any:
    """Byte-level vocabularies hold all 256 stand-in characters as entries or mark spaces with Ġ."""
    plain = [name for name in names if name not in added]
    metaspace = any(name.startswith("\u2581") for name in plain)
    marked = any(name.startswith("Ġ") for name in plain)
    byte_level = (marked or not metaspace) and all(c in _BYTE_LEVEL for name in _sample(plain) for c in name)
    return _decode_byte_level if byte_level else _decode_sentencepiece


def _sample(names: Sequence[str]) -> Sequence[str]:
    return names[:: max(1, len(names) // 2000)]


def _decode_byte_level(name: str) -> bytes:
    table = _BYTE_LEVEL
    if all(character in table for character in name):
        return bytes([table[character] for character in name])
    return name.encode()


def _decode_sentencepiece(name: str) -> bytes:
    if _BYTE_TOKEN.fullmatch(name):
        return bytes([int(name[3:5], 16)])
    return name.replace("\u2581", " ").encode()
