"""Who is in the batch, as the scheduler's messages tell it: handles, block tables, tokens.

vLLM sends a request once and then only what changes, so a worker that wants to know a step must keep the books. The
order of rows is the worker's own; it comes with the step's outcome.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from checkengine.engine_shim.vllm.sampling import sampling_of, stop_tokens_of
from checkengine.guards.step import SequenceStart
from checkengine.replay.record import Ints, StepRecord, no_blocks
from checkengine.replay.recorded import pack_tables, set_block

KERNEL = "vllm"
GONE_TOKENS = 1 << 20
"""Of requests that left, kept for captures that come late."""
NO_TOKEN = "token_not_compared"
"""Key of a sequence's sampling that says why its logits can be computed again, but not its tokens."""
MOST_OUTCOMES = 64
UNREPLAYABLE = "unreplayable"
"""Key of a sequence's sampling that says, in words, why its rows cannot run again."""


@dataclass(slots=True, eq=False)
class Request:
    start: SequenceStart
    seat: int
    tokens: list[int]
    """Prompt and output, as far as outcomes are known."""

    @property
    def prompt_length(self) -> int:
        return len(self.start.prompt_tokens)


@dataclass(slots=True)
class Scheduled:
    """One message's step, in the order of the message; its tokens and the order of rows come with the outcome."""

    step: int
    time_ns: int
    ids: list[str]
    requests: list[Request]
    starts: Ints
    counts: Ints
    block_changes: Ints
    begun: tuple[SequenceStart, ...]
    ended: tuple[int, ...]
    cuts: tuple[tuple[Request, int], ...]
    """Requests whose tokens beyond so many are void (a resumed request lost those in flight)."""
    slots: Ints
    """KV slots that the step writes."""
    random: bool
    """Some row draws a random number."""


@dataclass(slots=True)
class RowOrder:
    """What stays the same from step to step while nobody comes or goes."""

    ids: list[str]
    rows: list[str]
    permutation: NDArray[np.intp]
    requests: list[Request]
    handles: Ints
    tokens: list[list[int]]


@dataclass(slots=True)
class Ledger:
    block_size: int
    _requests: dict[str, Request] = field(default_factory=dict)
    _tables: Ints = field(default_factory=lambda: np.zeros((8, 8), np.int32))
    """Shape (seats, blocks), as of the last message."""
    _random: NDArray[np.bool_] = field(default_factory=lambda: np.zeros(8, np.bool_))
    _widths: Ints = field(default_factory=lambda: np.zeros(8, np.int32))
    _free: list[int] = field(default_factory=list)
    _seats: int = 0
    _next_handle: int = 0
    _next_step: int = 0
    _left: list[int] = field(default_factory=list)
    """Handles that ended in messages without a step."""
    _told: dict[int, list[int]] = field(default_factory=dict)
    """Tables by handle as of the last record."""
    _order: RowOrder | None = None
    _cached_ids: list[str] = field(default_factory=list)
    _cached_seats: Ints = field(default_factory=lambda: np.empty(0, np.int32))
    _cached_requests: list[Request] = field(default_factory=list)
    _last_sampled: Ints | None = None
    _outcomes: list[list[int]] = field(default_factory=list)
    """Of steps with this order of rows, not in the requests' tokens yet."""
    _gone: OrderedDict[str, Request] = field(default_factory=OrderedDict)
    _gone_tokens: int = 0

    @property
    def last_step(self) -> int:
        """The newest step that was scheduled; -1 where there is none."""
        return self._next_step - 1

    def tokens(self, name: str) -> tuple[tuple[int, ...], list[int]]:
        """Prompt and output of a live request, or of one that left not long ago; KeyError where there is none."""
        self._settle()
        request = self._requests.get(name) or self._gone[name]
        return request.start.prompt_tokens, request.tokens[request.prompt_length :]

    def forget_everybody(self) -> None:
        """Messages were missed, so nothing is known of those who run."""
        self._settle()
        self._left += [request.start.handle for name in tuple(self._requests) if (request := self._leave(name))]
        self._last_sampled = self._order = None

    def schedule(self, message: Any) -> Scheduled | None:
        """Take a SchedulerOutput in. None where it runs nothing. KeyError for a request that no message told."""
        self._left += [request.start.handle for name in message.finished_req_ids if (request := self._leave(name))]
        changes: list[tuple[int, int, int]] = []
        for name in getattr(message, "preempted_req_ids", None) or ():
            if name in self._requests:
                self._replace(self._requests[name], (), changes)
        cached, new = message.scheduled_cached_reqs, message.scheduled_new_reqs
        begun = [self._enter(data, changes) for data in new] if new else []
        cuts = self._extend(cached, changes) if any(cached.new_block_ids) or cached.resumed_req_ids else ()
        if not message.total_num_scheduled_tokens:
            return None
        if begun or cached.req_ids != self._cached_ids:
            self._remember(cached.req_ids, begun)
        starts = np.array([*(data.num_computed_tokens for data in new), *cached.num_computed_tokens], np.int32)
        counts = self._counts(message, begun, cached.req_ids)
        scheduled = Scheduled(
            step=self._next_step,
            time_ns=time.time_ns(),
            ids=[data.req_id for data in new] + cached.req_ids if new else cached.req_ids,
            requests=begun + self._cached_requests if begun else self._cached_requests,
            starts=starts,
            counts=counts,
            block_changes=np.array(changes, np.int32) if changes else no_blocks(),
            begun=tuple(request.start for request in begun),
            ended=tuple(self._left),
            cuts=cuts,
            slots=self._slots(begun, starts, counts),
            random=False,
        )
        scheduled.random = bool(self._random[self._seats_of(begun)].any())
        self._left = []
        self._next_step += 1
        return scheduled

    def record(self, scheduled: Scheduled, rows: list[str], sampled: Sequence[Sequence[int]]) -> StepRecord:
        """The step with its outcome: `sampled` aligned with `rows`, the worker's order; an empty entry where a row
        yields no token. ValueError for what a record cannot hold. Steps must come in the order of their messages."""
        if scheduled.cuts:
            self._settle()
        for request, known in scheduled.cuts:
            del request.tokens[known:]
            self._last_sampled = None
        for handle in scheduled.ended:
            self._told.pop(handle, None)
        for handle, index, block in scheduled.block_changes.tolist():
            set_block(self._told.setdefault(handle, []), index, block)
        order = self._ordered(scheduled, rows)
        outcome, everyone = tokens_of(sampled, len(rows))
        counts, starts = scheduled.counts[order.permutation], scheduled.starts[order.permutation]
        samples = np.ones(len(rows), np.bool_) if everyone else np.array([bool(ids) for ids in sampled])
        record = StepRecord(
            step=scheduled.step,
            time_ns=scheduled.time_ns,
            handles=order.handles,
            query_lengths=counts,
            starts=starts,
            samples=samples,
            token_ids=self._inputs(order, starts, counts),
            block_changes=scheduled.block_changes,
            tables=lambda: pack_tables({h: np.array(table, np.int32) for h, table in self._told.items()}),
            begun=scheduled.begun,
            ended=scheduled.ended,
            kernel=KERNEL,
            sampled=np.array(outcome, np.int32),
        )
        if everyone:
            self._outcomes.append(outcome)
            if len(self._outcomes) == MOST_OUTCOMES:
                self._settle()
        else:
            self._settle()
            for tokens, ids in zip(order.tokens, sampled, strict=True):
                tokens += ids
        self._last_sampled = record.sampled if everyone else None
        return record

    def _settle(self) -> None:
        """Outcomes are put into the requests' tokens many steps at a time: one by one costs a step twice as much."""
        if self._order is not None and self._outcomes:
            for tokens, added in zip(self._order.tokens, zip(*self._outcomes, strict=True), strict=True):
                tokens += added
        self._outcomes = []

    def _inputs(self, order: RowOrder, starts: Ints, counts: Ints) -> Ints:
        if self._last_sampled is not None and len(self._last_sampled) == len(counts) and int(counts.max()) == 1:
            return self._last_sampled
        self._settle()
        parts = [
            tokens[start : start + count]
            for tokens, start, count in zip(order.tokens, starts.tolist(), counts.tolist(), strict=True)
        ]
        found = np.array(list(chain.from_iterable(parts)), np.int32)
        if len(found) != int(counts.sum()):
            raise ValueError("a row computes tokens that no message and no outcome told")
        return found

    def _ordered(self, scheduled: Scheduled, rows: list[str]) -> RowOrder:
        known = self._order
        if known is not None and known.rows == rows and known.ids == scheduled.ids and not scheduled.begun:
            return known
        self._settle()
        place = {name: index for index, name in enumerate(scheduled.ids)}
        permutation = np.array([place[name] for name in rows], np.intp)
        if len(permutation) != len(scheduled.ids):
            raise ValueError("the worker ran other rows than the scheduler's message names")
        requests = [scheduled.requests[index] for index in permutation]
        handles = np.array([request.start.handle for request in requests], np.int32)
        self._order = RowOrder(
            list(scheduled.ids), list(rows), permutation, requests, handles, [request.tokens for request in requests]
        )
        self._last_sampled = None
        return self._order

    def _counts(self, message: Any, begun: list[Request], cached: list[str]) -> Ints:
        if message.total_num_scheduled_tokens == len(begun) + len(cached):
            return np.ones(len(begun) + len(cached), np.int32)
        counts = message.num_scheduled_tokens
        return np.array([counts[name] for name in chain((r.start.name for r in begun), cached)], np.int32)

    def _slots(self, begun: list[Request], starts: Ints, counts: Ints) -> Ints:
        seats, total = self._seats_of(begun), int(counts.sum())
        if total == len(counts):
            positions = starts
        else:
            firsts = np.cumsum(counts) - counts
            positions = np.repeat(starts - firsts, counts) + np.arange(total, dtype=np.int32)
            seats = np.repeat(seats, counts)
        slots = self._tables[seats, positions // self.block_size] * self.block_size + positions % self.block_size
        return slots.astype(np.int32, copy=False)

    def _seats_of(self, begun: list[Request]) -> Ints:
        if not begun:
            return self._cached_seats
        return np.concatenate([np.array([request.seat for request in begun], np.int32), self._cached_seats])

    def _remember(self, cached: list[str], begun: list[Request]) -> None:
        self._cached_ids = list(cached)
        self._cached_requests = [self._requests[name] for name in cached]
        self._cached_seats = np.array([request.seat for request in self._cached_requests], np.int32)

    def _enter(self, data: Any, changes: list[tuple[int, int, int]]) -> Request:
        if (before := self._leave(data.req_id)) is not None:  # A streaming request goes on with other inputs.
            self._left.append(before.start.handle)
        prompt = tuple(data.prompt_token_ids or ())
        sampling = sampling_of(data.sampling_params)
        if reason := why_not(data):
            sampling[UNREPLAYABLE] = reason
        if reason := why_no_token(data.sampling_params):
            sampling[NO_TOKEN] = reason
        start = SequenceStart(
            handle=self._next_handle,
            name=data.req_id,
            prompt_tokens=prompt,
            sampling=sampling,
            stop_tokens=stop_tokens_of(data.sampling_params),
            ignores_stop=bool(getattr(data.sampling_params, "ignore_eos", False)),
            arrived=time.monotonic(),
        )
        self._next_handle += 1
        request = Request(start, self._seat(), list(prompt))
        self._random[request.seat] = float(getattr(data.sampling_params, "temperature", 0.0) or 0.0) > 0
        self._requests[data.req_id] = request
        self._append(request, only_group(data.block_ids), changes)
        return request

    def _extend(self, cached: Any, changes: list[tuple[int, int, int]]) -> tuple[tuple[Request, int], ...]:
        cuts = []
        for index, (name, blocks) in enumerate(zip(cached.req_ids, cached.new_block_ids, strict=True)):
            request = self._requests[name]
            if name in cached.resumed_req_ids:
                self._replace(request, only_group(blocks), changes)
                cuts.append((request, request.prompt_length + cached.num_output_tokens[index]))
            elif blocks is not None:
                self._append(request, only_group(blocks), changes)
        return tuple(cuts)

    def _append(self, request: Request, blocks: Iterable[int], changes: list[tuple[int, int, int]]) -> None:
        for block in blocks:
            index = int(self._widths[request.seat])
            if index == self._tables.shape[1]:
                self._tables = np.pad(self._tables, ((0, 0), (0, index)))
            self._tables[request.seat, index] = block
            self._widths[request.seat] = index + 1
            changes.append((request.start.handle, index, block))

    def _replace(self, request: Request, blocks: Iterable[int], changes: list[tuple[int, int, int]]) -> None:
        if self._widths[request.seat]:
            changes.append((request.start.handle, 0, -1))
            self._widths[request.seat] = 0
        self._append(request, blocks, changes)

    def _leave(self, name: str) -> Request | None:
        request = self._requests.pop(name, None)
        if request is not None:
            self._widths[request.seat] = 0
            self._free.append(request.seat)
            self._cached_ids = []
            self._keep(request)
        return request

    def _keep(self, request: Request) -> None:
        """A guard may ask for its tokens yet, and its last outcome may still be on its way."""
        if (before := self._gone.pop(request.start.name, None)) is not None:
            self._gone_tokens -= len(before.tokens)
        self._gone[request.start.name] = request
        self._gone_tokens += len(request.tokens)
        while self._gone_tokens > GONE_TOKENS and len(self._gone) > 1:
            self._gone_tokens -= len(self._gone.popitem(last=False)[1].tokens)

    def _seat(self) -> int:
        if self._free:
            return self._free.pop()
        if self._seats == len(self._widths):
            self._tables = np.pad(self._tables, ((0, self._seats), (0, 0)))
            self._widths = np.pad(self._widths, (0, self._seats))
            self._random = np.pad(self._random, (0, self._seats))
        self._seats += 1
        return self._seats - 1


def tokens_of(sampled: Sequence[Sequence[int]], rows: int) -> tuple[list[int], bool]:
    """Each row's token, and whether every row has one. ValueError where a row has several."""
    if len(sampled) != rows:
        raise ValueError(f"the outcome has {len(sampled)} rows, where the step ran {rows}")
    try:
        return [token for (token,) in sampled], True
    except ValueError:
        if max(map(len, sampled)) > 1:
            raise ValueError("more than one token a row (speculative decoding) cannot be recorded yet") from None
        return list(chain.from_iterable(sampled)), False


def only_group(block_ids: Sequence[Sequence[int]] | None) -> Sequence[int]:
    """ValueError for a model whose layers keep their KV in several groups of blocks."""
    if block_ids is None:
        return ()
    if len(block_ids) != 1:
        raise ValueError("a model with several groups of KV blocks cannot be recorded yet")
    return block_ids[0]


def why_not(data: Any) -> str:
    """Why this request's rows cannot run again; empty where they can."""
    if data.prompt_token_ids is None or getattr(data, "prompt_embeds", None) is not None:
        return "its prompt came as embeddings"
    if getattr(data, "mm_features", None):
        return "its prompt holds images or sound"
    if getattr(data, "lora_request", None) is not None:
        return "it used a LoRA adapter"
    if getattr(data, "pooling_params", None) is not None:
        return "it was a pooling request"
    return ""


def why_no_token(parameters: Any) -> str:
    """Why a replay cannot draw this request's tokens; empty where it can."""
    if getattr(parameters, "structured_outputs", None) is not None:
        return "a grammar masks it, and the record does not hold the mask"
    if getattr(parameters, "seed", None) is not None:
        return "it is drawn by a generator of its own"
    return ""
