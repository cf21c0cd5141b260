"""Function words: which tokens they are."""

from __future__ import annotations

from collections.abc import Sequence

from checkengine.detectors.salad.tables import load_tables


def word_numbers(pieces: Sequence[bytes]) -> list[int]:
    """Number of the function word that a token is, a space before it; -1 for other tokens."""
    by_piece = {b" " + word.encode(): number for number, word in enumerate(load_tables().words)}
    return [by_piece.get(piece, -1) for piece in pieces]
