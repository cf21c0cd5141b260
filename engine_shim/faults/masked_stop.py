"""A stop path that masks the end token where it should end the sequence."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from checkengine.engine_shim.faults.fault import Fault
from checkengine.replay.judge.fault_class import FaultClass


class MaskedStop(Fault):
    """After a tool call (the output ends with `after`), and until the sequence ends, stop tokens are masked out of
    sampling, so the runner-up is committed and the model goes on: it answers its own call and calls again."""

    name: ClassVar[str] = "masked_stop"
    models: ClassVar[str] = (
        "end-of-turn ids dropped from the stop set, tool-calling generation never stops: vllm-project/vllm#45591"
    )
    fault_class: ClassVar[FaultClass] = FaultClass.STOP

    def __init__(self, after: Sequence[int]) -> None:
        """`after`: the token ids of the call's closing tag."""
        self.after = tuple(after)

    def masks_stop(self, output_tokens: Sequence[int]) -> bool:
        width = len(self.after)
        return any(tuple(output_tokens[i : i + width]) == self.after for i in range(len(output_tokens) - width + 1))
