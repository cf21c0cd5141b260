"""From vLLM's scheduler and a step's output to what guards see. Reads attributes only, so it needs no vLLM."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from checkengine.detectors.logits.stats import RowStats
from checkengine.engine_shim.vllm.carried import StepReading
from checkengine.guards.step import SequenceStart, StepView
from checkengine.replay.refire import take

NUMBERS = (
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "seed",
    "min_tokens",
    "max_tokens",
)
"""Of vLLM's SamplingParams, under the names that guards know."""
SWITCHES = ("logit_bias", "bad_words", "allowed_token_ids", "structured_outputs", "thinking_token_budget")
"""Of these guards need to know whether they are there, not what they say."""


@dataclass(frozen=True, slots=True)
class Produced:
    """Requests that produced tokens in a step, in the order of the output's rows; row-aligned."""

    requests: tuple[Any, ...]
    tokens: tuple[tuple[int, ...], ...]
    drafts: tuple[int, ...]
    """Draft tokens that were verified for the request; 0 without speculation."""


def produced(requests: Mapping[str, Any], scheduler_output: Any, model_runner_output: Any) -> Produced:
    """As the scheduler will take them: not of requests that are over, nor a preempted run's late tokens that it drops,
    nor of prompts that are not yet whole."""
    rows: list[Any] = []
    tokens: list[tuple[int, ...]] = []
    drafts: list[int] = []
    proposed = scheduler_output.scheduled_spec_decode_tokens
    sampled = model_runner_output.sampled_token_ids
    for name, row in model_runner_output.req_id_to_index.items():
        request = requests.get(name)
        if not sampled or not sampled[row] or request is None or name not in scheduler_output.num_scheduled_tokens:
            continue
        if request.is_finished() or (request.drop_stale_output and request.num_stale_output_tokens > 0):
            continue
        rows.append(request)
        tokens.append(tuple(sampled[row]))
        drafts.append(len(proposed.get(name, ())))
    return Produced(tuple(rows), tuple(tokens), tuple(drafts))


def step_view(step: int, made: Produced, reading: StepReading | None, when: float | None = None) -> StepView:
    """Statistics that do not fit the rows are left out rather than given to another sequence."""
    stats, stats_of = aligned(made, reading)
    speculated = any(made.drafts)
    return StepView(
        step=step,
        time=time.monotonic() if when is None else when,
        sequences=tuple([request.request_id for request in made.requests]),
        tokens=made.tokens,
        stats=stats,
        prompt_lengths=np.array([request.num_prompt_tokens for request in made.requests], np.int32),
        output_lengths=np.array([request.num_output_tokens for request in made.requests], np.int32),
        proposed=np.array(made.drafts, np.int32) if speculated else None,
        accepted=np.array(accepted(made), np.int32) if speculated else None,
        stats_of=stats_of,
    )


def accepted(made: Produced) -> list[int]:
    return [min(drafts, len(tokens) - 1) for drafts, tokens in zip(made.drafts, made.tokens, strict=True)]


def aligned(made: Produced, reading: StepReading | None) -> tuple[RowStats | None, NDArray[np.int32] | None]:
    """Statistics of the view's rows, and which row each belongs to where there are several a row."""
    if reading is None or not made.requests:
        return None, None
    names = tuple([request.request_id for request in made.requests])
    one_each = len(reading.of) == len(reading.requests)
    if one_each and reading.requests == names:
        return reading.stats, None
    place = {name: row for row, name in enumerate(reading.requests)}
    wanted = np.array([place.get(name, -1) for name in names])
    if (wanted < 0).any():
        return None, None
    rows = [np.flatnonzero(reading.of == row) for row in wanted]
    stats = take(reading.stats, np.concatenate(rows))
    if one_each:
        return stats, None
    return stats, np.repeat(np.arange(len(rows), dtype=np.int32), [len(own) for own in rows])


def sequence_start(handle: int, request: Any, *, now: float | None = None) -> SequenceStart:
    """What guards know of a request; `now` is Unix seconds."""
    parameters = request.sampling_params
    return SequenceStart(
        handle=handle,
        name=request.request_id,
        prompt_tokens=tuple(request.prompt_token_ids or ()),
        sampling=sampling_of(parameters),
        stop_tokens=stop_tokens_of(parameters),
        ignores_stop=bool(getattr(parameters, "ignore_eos", False)),
        arrived=time.monotonic() - max(0.0, (time.time() if now is None else now) - request.arrival_time),
    )


def sampling_of(parameters: Any) -> dict[str, object]:
    if parameters is None:
        return {}
    numbers = {name: getattr(parameters, name) for name in NUMBERS if getattr(parameters, name, None) is not None}
    return {**numbers, **{name: True for name in SWITCHES if getattr(parameters, name, None)}}


def stop_tokens_of(parameters: Any) -> tuple[int, ...]:
    """End of turn, and the request's own; vLLM keeps the model's further end tokens among these."""
    if parameters is None:
        return ()
    own: Sequence[int] = getattr(parameters, "stop_token_ids", None) or ()
    end = getattr(parameters, "eos_token_id", None)
    return tuple(sorted({*own, *(() if end is None else (end,))}))
