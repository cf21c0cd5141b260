"""Where a planted fault may act: inside the engine, never on the output text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

Ints = NDArray[np.int32]


class Fault:
    """Does nothing; a fault overrides the seam it acts on. Conditions depend on the step's numbers only, so that
    a replay meets them again."""

    name: ClassVar[str]
    models: ClassVar[str]
    """The public bug that it models, with its source."""

    def reads(self, layer: int, tables: Ints, lengths: Ints, query_lengths: Ints) -> tuple[Ints, Ints]:
        """What the attention kernel of `layer` is told to read: block tables (rows, max blocks; recorded block
        numbers, padded with -1) and lengths (rows,) in tokens including this step's."""
        return tables, lengths

    def attention_output(self, layer: int, output: torch.Tensor, lengths: Ints, query_lengths: Ints) -> None:
        """Change the packed attention output of shape (tokens, heads, dim) in place."""

    def logits(self, logits: torch.Tensor, lengths: Ints) -> None:
        """Change raw logits of shape (sampling rows, vocabulary) in place; `lengths` of the sampling rows."""

    def masks_stop(self, output_tokens: Sequence[int]) -> bool:
        """True where the engine masks the stop tokens out of sampling for the token that follows these."""
        return False

    def loses(self, logits: torch.Tensor, position: int) -> Sequence[int]:
        """Tokens that the sampler loses when it draws the token at `position` of a sequence from these raw logits of
        shape (vocabulary,)."""
        return ()
