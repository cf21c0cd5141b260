"""How far a step is from what its device could do at best.

A decode step must read every weight and the KV slots of its rows once; a prefill must do two floating-point operations
a weight and token. Over the step's time, as a share of what was measured on the device, that is the distance to the
physical limit. Attention's own operations, activations and whatever the engine does beside are not counted, so the
share is what is useful, not what is busy. Gaps between kernel launches are not seen here: that takes a profiler.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PhysicalLimit:
    """Zero where unknown."""

    weight_bytes: int = 0
    kv_bytes_per_token: int = 0
    """Keys and values of all layers for one token."""
    parameters: int = 0
    """That take part in a token; of a mixture of experts those of the chosen experts."""
    bandwidth: float = 0.0
    """Bytes a second that the device was measured to read."""
    flops: float = 0.0
    """Floating-point operations a second that it was measured to multiply matrices with."""

    def bytes_of(self, context_tokens: int) -> int:
        """Of a step that only decodes, with so many KV slots over all its rows."""
        return self.weight_bytes + context_tokens * self.kv_bytes_per_token if self.weight_bytes else 0

    def flops_of(self, tokens: int) -> int:
        return 2 * self.parameters * tokens


NO_LIMIT = PhysicalLimit()
