"""py3langid's model (BSD-3-Clause, 139 languages, in its wheel), cut down to the candidates and made integers.

Its multinomial naive Bayes over byte n-grams, found by an automaton, adds up over words: what a sequential test
needs. Loading takes about a second and, once, 60 MB; nothing is downloaded.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from checkengine.detectors.language.characters import kind_table
from checkengine.detectors.language.languages import CANDIDATES, COLUMNS
from checkengine.detectors.language.scripts import Script, script_table

NAT = 16
"""Parts of a nat that evidence is counted in."""


class LanguageModel(NamedTuple):
    """Read by the kernel, in this order."""

    first: NDArray[np.int32]
    """Shape (states,): where in `following` a state's row begins."""
    following: NDArray[np.int32]
    """Shape (rows * 256,): the next state by byte."""
    emits: NDArray[np.int32]
    """Shape (states,): the n-gram that ends in the state, or -1."""
    table: NDArray[np.int8]
    """Shape (n-grams, candidates): log-likelihood in 1/16 nat, the mean over the script's candidates taken off."""
    scripts: NDArray[np.uint8]
    kinds: NDArray[np.uint8]
    lows: NDArray[np.int64]
    """Shape (scripts,): first column of the script's candidates, and…"""
    highs: NDArray[np.int64]
    """…one past the last; equal where the script has none."""


@cache
def language_model() -> LanguageModel:
    """Loaded once a process, at first use."""
    from py3langid.langid import MODEL_FILE, LanguageIdentifier

    source = LanguageIdentifier.from_model_file(MODEL_FILE)
    lows, highs = _columns()
    return LanguageModel(
        first=(np.asarray(source.tk_row, np.int64) * 256).astype(np.int32),
        following=np.asarray(source.tk_nextmove).astype(np.int32),
        emits=np.asarray(source.tk_output, np.int32),
        table=_table(np.asarray(source.nb_ptc), list(source.nb_classes)),
        scripts=script_table(),
        kinds=kind_table(),
        lows=lows,
        highs=highs,
    )


def _columns() -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    lows, highs, at = np.zeros(len(Script), np.int64), np.zeros(len(Script), np.int64), 0
    for script, languages in CANDIDATES.items():
        lows[script], highs[script] = at, at + len(languages)
        at += len(languages)
    lows[Script.KANA], highs[Script.KANA] = lows[Script.HAN], highs[Script.HAN]
    return lows, highs


def _table(likelihoods: NDArray[np.float16], classes: list[str]) -> NDArray[np.int8]:
    table = np.zeros((len(likelihoods), len(COLUMNS)), np.int8)
    at = 0
    for languages in CANDIDATES.values():
        part = np.stack([_column(likelihoods, classes, language) for language in languages], axis=1)
        part -= part.mean(axis=1, keepdims=True)
        table[:, at : at + len(languages)] = np.clip(np.rint(part * NAT), -127, 127)
        at += len(languages)
    return table


def _column(likelihoods: NDArray[np.float16], classes: list[str], language: str) -> NDArray[np.float32]:
    """A language may have several columns (Serbian in two scripts): the likelier one."""
    columns = [at for at, name in enumerate(classes) if name == language]
    return np.asarray(likelihoods[:, columns].astype(np.float32).max(axis=1), np.float32)
