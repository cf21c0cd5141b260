"""A stopped request ends like any other one: finish reason `stop`, with `checkengine:<kind>` as its stop reason.

vLLM's FINISHED_ERROR would be an HTTP 500 for all who share the connection's request; an abort tells the client
nothing. Tokens of the step from the first bad one on are taken back; those of earlier steps have been sent.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

PREFIX = "checkengine:"


@dataclass(frozen=True, slots=True)
class Stop:
    """`keep` is how many tokens of this step stay."""

    request: str
    kind: str
    keep: int

    @property
    def reason(self) -> str:
        return PREFIX + self.kind


def end_in(outputs: Mapping[int, Any], stops: Mapping[str, Stop], finish_reason: Any) -> set[str]:
    """Rewrite what the scheduler is about to send, {client: EngineCoreOutputs}; returns the requests that were found.

    The end goes in a message of its own where tokens are kept: vLLM's detokenizer leaves out the last token of a
    message that ends a request by stop, taking it for a stop token.
    """
    ended: set[str] = set()
    for client in outputs.values():
        if any(output.request_id in stops for output in client.outputs):
            client.outputs = [
                part
                for output in client.outputs
                for part in _ended(output, stops.get(output.request_id), finish_reason)
            ]
            ended |= {output.request_id for output in client.outputs} & stops.keys()
    return ended


def _ended(output: Any, stop: Stop | None, finish_reason: Any) -> list[Any]:
    if stop is None:
        return [output]
    kept = output.new_token_ids[: stop.keep]
    end = output if not kept else type(output)(output.request_id, [], trace_headers=output.trace_headers)
    if kept:
        output.new_token_ids = kept
        output.new_logprobs = _first(output.new_logprobs, len(kept))
        output.finish_reason = output.stop_reason = None
    else:
        output.new_token_ids = []
        output.new_logprobs = output.new_sampling_mask = None
    end.finish_reason, end.stop_reason = finish_reason, stop.reason
    return [output, end] if kept else [output]


def _first(logprobs: Any, tokens: int) -> Any:
    """vLLM slices the logprobs of a request by position; this one's begin at 0."""
    slice_request: Callable[[int, int], Any] | None = getattr(logprobs, "slice_request", None)
    return slice_request(0, tokens) if slice_request is not None else logprobs
