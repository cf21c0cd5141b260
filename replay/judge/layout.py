"""Which layouts of KV memory can be judged. What is not known is refused in words, before anything is run."""

from __future__ import annotations

import torch

from checkengine.replay.executor import CannotReplayError
from checkengine.replay.judge.fills import FINITE_FILLS
from checkengine.replay.memory import MemoryImage

KINDS = ("key", "value")
"""Of a tensor's name, behind the last dot. A key may be wider than a value, as multi-head latent attention has it where
its keys and values are written out for each head."""
SEE = "docs/replay.md lists the layouts that can be judged"


def refuse_layout(image: MemoryImage) -> None:
    """CannotReplayError where the image holds what fills cannot reach slot by slot: scales apart from their values, a
    latent that stands for keys and values at once, several numbers in a byte, or a dtype without the fills' numbers."""
    for name, tensor in image.tensors.items():
        if name.rpartition(".")[2] not in KINDS:
            raise CannotReplayError(
                f"the KV memory holds a tensor {name!r} besides keys and values: scales kept apart and latents of MLA "
                f"cannot be judged; {SEE}"
            )
        if not holds_fills(tensor.dtype):
            raise CannotReplayError(
                f"the KV memory's {name!r} is {str(tensor.dtype).removeprefix('torch.')}, which does not hold the "
                f"fills {FINITE_FILLS[0]:g} and {FINITE_FILLS[1]:g}: packed caches and FP4 cannot be judged; {SEE}"
            )


def holds_fills(dtype: torch.dtype) -> bool:
    """Does the dtype hold the finite patterns, exactly? FP8 does: E4M3 ends at 448."""
    fills = torch.tensor(FINITE_FILLS, dtype=torch.float32)
    try:
        return bool(torch.equal(fills.to(dtype).to(torch.float32), fills))
    except (RuntimeError, NotImplementedError):
        return False  # Several numbers in a byte: there is no conversion.
