"""What is told of a vLLM request that is over: numbers, no content."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from typing import Any

from checkengine.engine_shim.vllm.stopping import PREFIX
from checkengine.guards.events import SequenceEnded

REASONS = {"abort": "cancelled", "error": "engine"}
"""Of vLLM's finish reasons, those that have another name here."""


SUFFIX = re.compile(r"-[0-9a-f]{8}")
CHILD = re.compile(r"[0-9]+_(?=(chat)?cmpl-)")
"""In front of each of several answers to a prompt (n > 1)."""
PROMPT = re.compile(r"(cmpl-.+)-[0-9]+")
"""Of /v1/completions: which of its prompts."""


def answered_as(sequence: str) -> str:
    """The id in the client's answer, of vLLM's internal one."""
    name = sequence[:-9] if SUFFIX.fullmatch(sequence[-9:]) else sequence
    name = CHILD.sub("", name, count=1)
    found = PROMPT.fullmatch(name)
    return found[1] if found else name


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
