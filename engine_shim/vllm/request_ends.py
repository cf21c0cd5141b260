"""What is told of a vLLM request that is over: numbers, no content."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from checkengine.engine_shim.vllm.stopping import PREFIX
from checkengine.guards.events import SequenceEnded

REASONS = {"abort": "cancelled", "error": "engine"}
"""Of vLLM's finish reasons, those that have another name here."""


@dataclass(frozen=True, slots=True)
class Followed:
    request: Any
    """vLLM's Request."""
    arrived: float
    """Monotonic seconds, as `first`: when its first token was there."""
    first: float


def ended(followed: Followed) -> SequenceEnded:
    request, now = followed.request, time.monotonic()
    cached = int(getattr(request, "num_cached_tokens", -1))
    return SequenceEnded(
        sequence=request.request_id,
        reason=reason_of(request),
        prompt_tokens=int(request.num_prompt_tokens),
        output_tokens=int(request.num_output_tokens),
        ttft_seconds=followed.first - followed.arrived,
        total_seconds=now - followed.arrived,
        time=time.time(),
        cached_tokens=cached if cached >= 0 else None,
        most_tokens=getattr(request.sampling_params, "max_tokens", None),
    )


def reason_of(request: Any) -> str:
    """Ours where a guard stopped it."""
    stop = getattr(request, "stop_reason", None)
    if isinstance(stop, str) and stop.startswith(PREFIX):
        return stop
    get = getattr(request, "get_finished_reason", lambda: None)
    told = str(get() or "cancelled")
    return REASONS.get(told, told)
