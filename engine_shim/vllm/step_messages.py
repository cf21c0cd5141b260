"""A replay's step as vLLM's messages: every row is a request that a preemption left behind and that now resumes.

So each step stands by itself: its rows, tables and tokens come from the record, and nothing from the step before but
memory. vLLM's own bookkeeping makes the batch of it, in the order in which the rows are told.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from checkengine.engine_shim.vllm.ledger import UNREPLAYABLE
from checkengine.guards.step import SequenceStart
from checkengine.replay.executor import CannotReplayError, ReplayStep
from checkengine.replay.record import Ints
from checkengine.replay.recorded import row_slices

GREEDY: Mapping[str, object] = {"temperature": 0.0}


@dataclass(frozen=True, slots=True)
class Row:
    """A request as it stood just before the step."""

    name: str
    prompt: list[int]
    outputs: list[int]
    sampling: Mapping[str, object]
    blocks: list[int]
    computed: int
    scheduled: int


def rows_of(step: ReplayStep, locate: Callable[[Ints], Ints]) -> list[Row]:
    """`locate` maps recorded block numbers to those of the memory at hand."""
    rows = []
    parts = zip(row_slices(step.record), step.block_tables, step.record.samples.tolist(), strict=True)
    for index, ((handle, start, count, where), table, samples) in enumerate(parts):
        begun = step.starts.get(handle)
        prompt, outputs = tokens_of(begun, step.outputs.get(handle, ()), start, step.record.token_ids[where], samples)
        sampling = GREEDY if begun is None else begun.sampling
        if reason := sampling.get(UNREPLAYABLE):
            raise CannotReplayError(f"sequence {begun.name if begun else handle} cannot run again: {reason}")
        rows.append(Row(f"row-{index}", prompt, outputs, sampling, locate(table).tolist(), start, count))
    return rows


def tokens_of(
    begun: SequenceStart | None, outputs: Sequence[int], start: int, inputs: Ints, samples: bool
) -> tuple[list[int], list[int]]:
    """Prompt and output tokens of which the step computes the last (all but one, where the row does not sample)."""
    length = start + len(inputs)
    prompt = list(begun.prompt_tokens) if begun is not None else []
    tokens = [*prompt, *outputs][:length]
    if len(tokens) < length or not samples:
        # A stand-in, or a chunk: what lies before its own inputs is in memory only.
        tokens, prompt = [0] * length, []
    tokens[start:length] = inputs.tolist()
    if not samples:
        tokens.append(0)
    known = len(prompt) if 0 < len(prompt) <= length else len(tokens)
    return tokens[:known], tokens[known:]


class StepMessages:
    """Makes what the worker is sent. Rows of the step before leave with the next message."""

    def __init__(self, worker: Any) -> None:
        from vllm.sampling_params import SamplingParams
        from vllm.v1.core.sched.output import CachedRequestData, SchedulerOutput
        from vllm.v1.worker.gpu_input_batch import CachedRequestState

        self._kinds = SamplingParams, CachedRequestData, SchedulerOutput, CachedRequestState
        self._runner = worker.model_runner
        self._present: set[str] = set()

    def message(self, rows: Sequence[Row], parameters: Callable[[Mapping[str, object], type[Any]], Any]) -> Any:
        """A SchedulerOutput; the runner's own table of requests is filled beside it."""
        sampling, cached_data, scheduler_output, state = self._kinds
        for row in rows:
            self._runner.requests[row.name] = state(
                req_id=row.name,
                prompt_token_ids=row.prompt,
                mm_features=[],
                sampling_params=parameters(row.sampling, sampling),
                generator=None,
                block_ids=(row.blocks,),
                num_computed_tokens=row.computed,
                output_token_ids=list(row.outputs),
            )
        message = scheduler_output.make_empty()
        message.scheduled_cached_reqs = cached_data(
            req_ids=[row.name for row in rows],
            resumed_req_ids=set(),
            new_token_ids=[],
            all_token_ids={row.name: [*row.prompt, *row.outputs] for row in rows},
            new_block_ids=[None] * len(rows),
            num_computed_tokens=[row.computed for row in rows],
            num_output_tokens=[len(row.outputs) for row in rows],
        )
        message.num_scheduled_tokens = {row.name: row.scheduled for row in rows}
        message.total_num_scheduled_tokens = sum(row.scheduled for row in rows)
        return message

    def finished(self, rows: Sequence[Row]) -> Any:
        """The message that takes the step's rows out again."""
        message = self._kinds[2].make_empty()
        message.finished_req_ids = {row.name for row in rows}
        return message


def compact(blocks: Ints) -> Callable[[Ints], Ints]:
    """Recorded block numbers to places among `blocks` (sorted). ReplayError text for one that is not there."""

    def locate(table: Ints) -> Ints:
        places = np.searchsorted(blocks, np.maximum(table, 0)).astype(np.int32)
        inside = np.minimum(places, len(blocks) - 1)
        if (table < 0).any() or (blocks[inside] != table).any():
            missing = table[(table < 0) | (blocks[inside] != table)]
            raise CannotReplayError(
                f"a row's block table names blocks that the capture does not hold: {missing[:4].tolist()}"
            )
        return places

    return locate
