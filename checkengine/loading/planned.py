"""One request of a workload before it is sent: when, how long, and which prefix it shares with others."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Planned:
    """Blocks of equal name have equal content, and so has everything before them."""

    at: float
    """Seconds from the start at which it is meant to be sent."""
    input_tokens: int
    output_tokens: int
    chain: tuple[int, ...] = ()
    """Names of its prompt's blocks, f(content, parent); the last one may be partly filled."""
    block_tokens: int = 512
    shared_tokens: int = 0
    """Of the prompt, in the prompts of earlier requests: the hit of a cache that forgets nothing."""
    session: int = 0
    turn: int = 1

    @property
    def hit_share(self) -> float:
        return self.shared_tokens / max(1, self.input_tokens)

    @property
    def whole_blocks(self) -> tuple[int, ...]:
        return self.chain[: self.input_tokens // self.block_tokens]


def with_shared(requests: Iterable[Planned]) -> list[Planned]:
    """`shared_tokens` set from the chains, in the order of sending."""
    seen: set[int] = set()
    found = []
    for request in requests:
        shared = 0
        for name in request.whole_blocks:
            if name not in seen:
                break
            shared += request.block_tokens
        seen.update(request.whole_blocks)
        found.append(replace(request, shared_tokens=min(shared, request.input_tokens)))
    return found


def faster(requests: Sequence[Planned], factor: float) -> list[Planned]:
    """The same requests in the same order, `factor` times as many a second."""
    return [replace(request, at=request.at / factor) for request in requests]


def rate_of(requests: Sequence[Planned]) -> float:
    """Requests a second, from the first one to the last."""
    if len(requests) < 2:
        return 0.0
    return (len(requests) - 1) / max(1e-9, requests[-1].at - requests[0].at)
