"""The small vocabulary of this package that text is read with, and how other vocabularies' tokens look in it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from checkengine.detectors.salad.tables import load_tables


@cache
def text_tokenizer() -> Tokenizer:
    return tokenizer_of(load_tables().merges.tolist())


def tokenizer_of(pairs: Sequence[Sequence[int]]) -> Tokenizer:
    """Byte-level byte pairs, like the vocabularies of most models; `pairs` are merges of two ids each."""
    characters = sorted(pre_tokenizers.ByteLevel.alphabet())
    names = list(characters)
    merges: list[tuple[str, str]] = []
    for first, second in pairs:
        merges.append((names[first], names[second]))
        names.append(names[first] + names[second])
    tokenizer = Tokenizer(models.BPE({name: number for number, name in enumerate(names)}, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def ends_in(tokenizer: Tokenizer, pieces: Sequence[bytes]) -> NDArray[np.int32]:
    """First and last token that `tokenizer` writes each piece with, shape (pieces, 2); -1 where it writes none."""
    texts = [piece.decode("utf-8", "ignore") for piece in pieces]
    encoded = tokenizer.encode_batch_fast(texts, add_special_tokens=False)
    return np.array([(each.ids[0], each.ids[-1]) if each.ids else (-1, -1) for each in encoded], np.int32)
