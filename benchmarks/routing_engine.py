"""An inference server on a simulated clock: a roofline for the time of a step, chunked prefill, a prefix cache.

Parameters are stated, not fitted; the defaults are those of a dense 70 B model in bf16 on four H100 SXM. Left out: KV
memory as a limit of running sequences, preemption, network and tokenizer, contention on the link of a shared KV store.
"""

from __future__ import annotations

import heapq
from collections import deque
from dataclasses import dataclass, field

from checkengine.engine_shim.proxy.routing.prefix_index import PrefixIndex
from checkengine.loading.planned import Planned


@dataclass(frozen=True, slots=True)
class Hardware:
    parameters: float = 70.6e9
    layers: int = 80
    width: int = 8192
    """Query heads × head size."""
    kv_bytes: float = 2 * 80 * 8 * 128 * 2
    """Of one token."""
    flops: float = 4 * 989e12 * 0.45
    """A second: dense bf16 peak of four H100, of which 45 % is reached."""
    bandwidth: float = 4 * 3.35e12 * 0.7
    """Bytes a second: HBM3 of four, of which 70 % is reached."""
    overhead: float = 3e-3
    """Seconds a step: scheduling, launches, collectives that nothing hides."""
    link: float = 25e9
    """Bytes a second at which one server gets KV out of a shared store: RDMA of 200 Gbit/s."""
    cache_tokens: int = 500_000
    """Prefix cache of one server: about 160 GB beside 141 GB of weights."""
    store_tokens: int = 3_000_000
    """What one server adds to a shared KV store: 1 TB of its memory."""

    def step(self, prefill: int, context: float, decodes: int, decode_context: int) -> float:
        """Seconds. `prefill` tokens with `context` token pairs of attention, and a token for each of `decodes`."""
        tokens = prefill + decodes
        flop = 2 * self.parameters * tokens + 4 * self.layers * self.width * (context + decode_context)
        read = 2 * self.parameters + self.kv_bytes * (decode_context + prefill)
        return max(flop / self.flops, read / self.bandwidth) + self.overhead

    def prefill(self, tokens: int, cached: int) -> float:
        """Seconds of a prompt's prefill when nothing else runs."""
        return self.step(tokens - cached, pairs(cached, tokens - cached), 0, 0)


def pairs(before: int, count: int) -> float:
    """Token pairs that causal attention computes for `count` tokens after `before`."""
    return count * before + count * (count + 1) / 2


@dataclass(slots=True)
class Job:
    request: Planned
    arrival: float
    cached: int = -1
    """Tokens; -1 until its first chunk is scheduled."""
    done: int = 0
    """Tokens of the prompt that are in KV."""
    first: float = 0.0
    """When the first token came."""
    last: float = 0.0
    begun: int = 0
    """Step in which it began to decode."""


@dataclass(slots=True)
class Server:
    """`decodes`: whether sequences stay for their output; a prefill machine hands them on. First come, first served."""

    name: str
    hardware: Hardware
    cache: PrefixIndex
    decodes: bool
    budget: int
    """Tokens of a step."""
    store: PrefixIndex | None = None
    """KV that all servers share; None: each has its own cache only."""
    waiting: deque[Job] = field(default_factory=deque)
    running: list[tuple[int, int, Job]] = field(default_factory=list)
    """(step in which it ends, a number, job): a heap."""
    context: int = 0
    """Tokens in KV of all that decode."""
    steps: int = 0
    busy: float = 0.0
    _chunk: list[tuple[Job, int]] = field(default_factory=list)
    _number: int = 0

    def fetched(self, request: Planned) -> float:
        """Seconds until what the store has and this server lacks is here."""
        if self.store is None:
            return 0.0
        missing = self.store.hit("", request.whole_blocks) - self.cache.hit("", request.whole_blocks)
        return max(0, missing) * request.block_tokens * self.hardware.kv_bytes / self.hardware.link

    def begin(self) -> float | None:
        """Schedules a step and gives its seconds; None where there is nothing to do."""
        room, prefill, attention = self.budget - len(self.running), 0, 0.0
        self._chunk.clear()
        for job in self.waiting:
            if room <= 0:
                break
            if job.cached < 0:
                job.cached = job.done = self._cached(job.request)
            take = min(room, job.request.input_tokens - job.done)
            self._chunk.append((job, take))
            attention += pairs(job.done, take)
            prefill, room = prefill + take, room - take
        if not prefill and not self.running:
            return None
        seconds = self.hardware.step(prefill, attention, len(self.running), self.context)
        self.busy += seconds
        return seconds

    def end(self, now: float) -> tuple[list[Job], list[Job]]:
        """After the step: jobs whose first token came, and jobs that are done."""
        self.steps += 1
        self.context += len(self.running)
        ended = self._ended(now)
        first = []
        for job, take in self._chunk:
            job.done += take
            if job.done >= job.request.input_tokens:
                self.waiting.popleft()
                first.append(job)
                self._first(job, now, ended)
        return first, ended

    def _ended(self, now: float) -> list[Job]:
        ended = []
        while self.running and self.running[0][0] <= self.steps:
            job = heapq.heappop(self.running)[2]
            job.last = now
            self.context -= job.request.input_tokens + self.steps - job.begun
            ended.append(job)
        return ended

    def _first(self, job: Job, now: float, ended: list[Job]) -> None:
        job.first = job.last = now
        for cache in (self.cache, self.store):
            if cache is not None:
                cache.insert("", job.request.whole_blocks)
        if not self.decodes or job.request.output_tokens < 2:
            ended.append(job)
            return
        self._number += 1
        job.begun = self.steps
        heapq.heappush(self.running, (self.steps + job.request.output_tokens - 1, self._number, job))
        self.context += job.request.input_tokens

    def _cached(self, request: Planned) -> int:
        """At least the last token is computed."""
        blocks = self.cache.hit("", request.whole_blocks)
        if self.store is not None:
            blocks = max(blocks, self.store.hit("", request.whole_blocks))
        return min(blocks * request.block_tokens, request.input_tokens - 1)
