"""Prompts made of seeded words: blocks of equal name are equal texts, so that prefixes are shared as planned."""

from __future__ import annotations

import random
from functools import lru_cache

from checkengine.loading.planned import Planned

SYLLABLES = ("ba", "con", "der", "fil", "gra", "hen", "lo", "mi", "nor", "pla", "que", "ri", "so", "tal", "ve", "zu")
COMMON_TEXT = """
the of and to in a is that for it as was with be by on not he his but at are this have from or had an they which one you
were all her she there would their we him been has when who will no more if out so up said what its about than into them
can only other time new some could these two may first then do any like my now over such our
"""
COMMON = COMMON_TEXT.split()
TOKENS_A_WORD = 1.3
"""Assumed until the server has counted a prompt of ours."""
TAIL = 1 << 62
"""Names of the parts that no other request has begin here."""


class PromptMaker:
    """`tokens_a_word` as the server's tokenizer counts these words. Deterministic for a seed."""

    def __init__(self, seed: int, tokens_a_word: float = TOKENS_A_WORD) -> None:
        self._seed = seed
        self.tokens_a_word = tokens_a_word

    def prompt(self, request: Planned, number: int) -> str:
        """About `input_tokens` long; shares the planned prefix to within a token at its end, and no more of it.

        `number` is the request's own: what is not in whole blocks is nobody else's.
        """
        blocks = request.whole_blocks
        pieces = [self._block(name, request.block_tokens) for name in blocks]
        rest = request.input_tokens - len(blocks) * request.block_tokens
        if rest > 0:
            pieces.append(made_words((self._seed, TAIL, number), self._count(rest)))
        return " ".join(piece for piece in pieces if piece)

    def probe(self, words: int) -> str:
        """That nothing else begins with: to count the tokens of a word."""
        return made_words((self._seed, TAIL, -1), words)

    def _block(self, name: int, tokens: int) -> str:
        return made_words((self._seed, name, 0), self._count(tokens))

    def _count(self, tokens: int) -> int:
        return max(1, round(tokens / self.tokens_a_word))


@lru_cache(4096)
def made_words(seed: tuple[int, ...], count: int) -> str:
    dice = random.Random(repr(seed))
    return " ".join(dice.choice(COMMON) if dice.random() < 0.75 else _made(dice) for _ in range(count))


def _made(dice: random.Random) -> str:
    return "".join(dice.choices(SYLLABLES, k=dice.randrange(1, 4)))
