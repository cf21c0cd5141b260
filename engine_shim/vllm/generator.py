"""States of the random generator, step by step, packed: one in full, of the others what changed."""

from __future__ import annotations

import base64
import zlib
from collections import deque
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from checkengine.replay.executor import CannotReplayError

Bytes = NDArray[np.uint8]
MOST_BYTES = 1 << 16
"""Of one state; a record that tells more was tampered with."""


class GeneratorRing:
    """The states before each of the last `steps` steps that drew random numbers."""

    def __init__(self, steps: int) -> None:
        self._states: deque[tuple[int, torch.Tensor]] = deque(maxlen=max(1, steps))

    def note(self, step: int, state: torch.Tensor) -> None:
        self._states.append((step, state))

    def since(self, first_step: int) -> dict[int, Bytes]:
        return {step: state.numpy() for step, state in tuple(self._states) if step >= first_step}


def pack_states(states: Mapping[int, Bytes]) -> dict[str, Any]:
    """As JSON. A Mersenne Twister changes one number from draw to draw: five kilobytes become some ten."""
    packed: dict[str, Any] = {"steps": [], "states": []}
    before: Bytes | None = None
    for step in sorted(states):
        state = np.asarray(states[step], np.uint8)
        change = state if before is None or len(before) != len(state) else state ^ before
        packed["steps"].append(step)
        packed["states"].append(base64.b64encode(zlib.compress(change.tobytes(), 6)).decode())
        before = state
    return packed


def unpack_states(packed: Mapping[str, Any]) -> dict[int, Bytes]:
    """CannotReplayError where the text is not what `pack_states` gave."""
    states: dict[int, Bytes] = {}
    before: Bytes | None = None
    try:
        for step, text in zip(packed["steps"], packed["states"], strict=True):
            inflate = zlib.decompressobj()
            change = np.frombuffer(inflate.decompress(base64.b64decode(text, validate=True), MOST_BYTES), np.uint8)
            before = change if before is None or len(before) != len(change) else change ^ before
            states[int(step)] = before
    except (KeyError, TypeError, ValueError, zlib.error) as error:
        raise CannotReplayError(f"the record's generator states cannot be read: {error}") from None
    return states
