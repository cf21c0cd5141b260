"""A million damaged outputs of ops: does the hash of each differ, and is the damage found in its place?"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch

from checkengine.benchmarks.figure import figure
from checkengine.replay.op_tree import OpTree, diverging

TRIALS, QUICK_TRIALS = 1_000_000, 6_000
SHAPES = ((1, 9, 64), (1, 576), (5, 9, 64), (33, 4, 16))
"""(tokens, heads, dim) of attention, (tokens, width) of a hidden state."""
AT_ONCE = 500
"""Damages of one output, each of the right one."""
Damage = Callable[[torch.Tensor, np.random.Generator], torch.Tensor]


def flipped(output: torch.Tensor, random: np.random.Generator) -> torch.Tensor:
    """One bit of one element."""
    damaged = output.clone()
    words = damaged.view(torch.int32).view(-1)
    words[int(random.integers(len(words)))] ^= int(np.int32(np.uint32(1 << int(random.integers(32)))))
    return damaged


def swapped(output: torch.Tensor, random: np.random.Generator) -> torch.Tensor:
    """Two elements."""
    damaged = output.clone()
    flat = damaged.view(-1)
    one, other = random.choice(len(flat), 2, replace=False).tolist()
    flat[one], flat[other] = float(output.view(-1)[other]), float(output.view(-1)[one])
    return damaged


def rotated(output: torch.Tensor, random: np.random.Generator) -> torch.Tensor:
    """All elements of a range by some places: a stride that is off."""
    damaged = output.clone()
    flat = damaged.view(-1)
    first = int(random.integers(len(flat) - 3))
    last = int(random.integers(first + 3, len(flat) + 1))
    flat[first:last] = flat[first:last].roll(int(random.integers(1, last - first)))
    return damaged


DAMAGES: dict[str, Damage] = {"bit flips": flipped, "swaps": swapped, "rotations": rotated}


def op_hash_figures(*, quick: bool = False) -> Iterator[dict[str, Any]]:
    trials = (QUICK_TRIALS if quick else TRIALS) // len(DAMAGES)
    for name, damage in DAMAGES.items():
        yield from figures_of(name, damage, trials)


def figures_of(name: str, damage: Damage, trials: int) -> list[dict[str, Any]]:
    random = np.random.default_rng(0)
    missed, misplaced, most, made = 0, 0, 0.0, 0
    while made < trials:
        shape = SHAPES[(made // AT_ONCE) % len(SHAPES)]
        output = torch.from_numpy(random.standard_normal(shape, np.float32))
        tree = OpTree(output)
        for _ in range(min(AT_ONCE, trials - made)):
            made += 1
            damaged = damage(output, random)
            different = torch.nonzero(damaged.view(torch.int32).view(-1) != output.view(torch.int32).view(-1)).view(-1)
            if not len(different):
                continue  # Equal numbers changed places.
            found = diverging(tree.range, OpTree(damaged).range, tree.elements)
            missed += found is None
            if found is not None:
                misplaced += (found.first, found.last) != (int(different[0]), int(different[-1]))
                most = max(most, found.comparisons / math.ceil(math.log2(tree.elements)))
    return [
        figure(f"op hashes.missed, {trials:,} {name}", missed, "outputs", 0),
        figure(f"op hashes.misplaced, {name}", misplaced, "outputs", 0),
        figure(f"op hashes.comparisons of ⌈log₂ elements⌉, {name}", most, "times", 1.0),
    ]
