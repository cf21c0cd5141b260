"""The tokenizer that benchmarks cut text with: the demo model's, a real byte-level BPE of 49,152 tokens."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from checkengine.engine_shim.models import model_directory

MODEL = "smollm2-135m"


@lru_cache(maxsize=1)
def tokenizer() -> Tokenizer:
    """Text that looks like a special token is encoded as the text it is. Raises ModelError where it is not here."""
    found = Tokenizer.from_file(str(model_directory(MODEL) / "tokenizer.json"))
    found.encode_special_tokens = True
    return found


def encode(texts: Sequence[str]) -> list[NDArray[np.int32]]:
    """Token ids of each text, without special tokens."""
    encodings = tokenizer().encode_batch_fast(list(texts), add_special_tokens=False)
    return [np.asarray(encoding.ids, np.int32) for encoding in encodings]


@lru_cache(maxsize=1)
def token_bytes() -> NDArray[np.int64]:
    """Bytes of each token: the byte-level alphabet spells each byte as one character."""
    words = tokenizer().get_vocab(with_added_tokens=True)
    lengths = np.zeros(max(words.values()) + 1, np.int64)
    for word, token in words.items():
        lengths[token] = len(word)
    return lengths
