"""Plays a workload through a router and a row of servers, event by event."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

import numpy as np

from checkengine.benchmarks.routing_engine import Hardware, Job, Server
from checkengine.benchmarks.routing_policies import LeastLoaded, Lines, LongestPrefix, Policy
from checkengine.engine_shim.proxy.routing.prefix_index import PrefixIndex
from checkengine.engine_shim.proxy.routing.settings import LineSettings
from checkengine.loading.planned import Planned

ARRIVES, READY, STEPS = 0, 1, 2
WARM_FROM = 0.5
"""Share of a prompt that was sent before, from which a request is warm: of the workload, whatever a router does."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Equal hardware for every router."""

    servers: int = 4
    decodes: bool = False
    budget: int = 8192
    shares_kv: bool = True
    hardware: Hardware = field(default_factory=Hardware)


@dataclass(frozen=True, slots=True)
class Result:
    """Of the requests that were meant to be sent at second 0 or later, row-aligned."""

    ttft: np.ndarray
    """float64, seconds from the intended time."""
    tbt: np.ndarray
    """float64, seconds: mean of a request; NaN where it has one token or decodes elsewhere."""
    is_warm: np.ndarray
    """bool."""
    cached: int
    """Tokens."""
    computed: int
    utilisation: float
    """Busy share of the servers, mean."""


def simulate(requests: Sequence[Planned], policy: Policy, layout: Layout) -> Result:
    """Until every request has its last token."""
    servers = _servers(requests[0].block_tokens, layout)
    events: list[tuple[float, int, int, Planned | Job | None, str]] = [
        (request.at, number, ARRIVES, request, "") for number, request in enumerate(requests)
    ]
    number, idle, jobs = len(events), set(servers), []
    owed: dict[int, int] = {}
    now = events[0][0]
    while events:
        now, _, kind, what, name = heapq.heappop(events)
        if kind == ARRIVES:
            assert isinstance(what, Planned)
            name, uncached = policy.choose(what)
            policy.loads[name].running += 1
            policy.loads[name].waiting += uncached
            job = Job(what, what.at)
            owed[id(job)] = uncached
            jobs.append(job)
            number += 1
            heapq.heappush(events, (now + servers[name].fetched(what), number, READY, job, name))
            continue
        server = servers[name]
        if kind == READY:
            assert isinstance(what, Job)
            server.waiting.append(what)
            if name not in idle:
                continue
            idle.discard(name)
        else:
            first, ended = server.end(now)
            for job in first:
                policy.loads[name].waiting -= owed.pop(id(job))
            policy.loads[name].running -= len(ended)
        seconds = server.begin()
        if seconds is None:
            idle.add(name)
        else:
            number += 1
            heapq.heappush(events, (now + seconds, number, STEPS, None, name))
    return _result(jobs, servers.values(), now - requests[0].at)


def policies(layout: Layout, block_tokens: int, cold: int) -> dict[str, Callable[[], Policy]]:
    """Each with an index as large as the servers' caches. `cold`: servers of the cold line."""
    names = [f"server-{index}" for index in range(layout.servers)]
    hardware = layout.hardware
    blocks = (hardware.store_tokens if layout.shares_kv else hardware.cache_tokens) // block_tokens
    one = LineSettings(shared_cache=layout.shares_kv)
    two = LineSettings(shared_cache=layout.shares_kv, cold=tuple(names[:cold]))
    return {
        "least loaded": lambda: LeastLoaded(names),
        "prefix affinity": lambda: LongestPrefix(names, blocks),
        "one line": lambda: Lines(names, blocks, one),
        "two lines": lambda: Lines(names, blocks, two),
    }


def utilised(requests: Sequence[Planned], layout: Layout) -> float:
    """Busy share of the servers if every prompt found all of its shared prefix, and each prefill ran alone."""
    hardware, measured = layout.hardware, [each for each in requests if each.at >= 0]
    seconds = sum(
        2 * hardware.parameters * max(1, each.input_tokens - each.shared_tokens) / hardware.flops for each in measured
    )
    return seconds / (layout.servers * (measured[-1].at - measured[0].at))


def _servers(block_tokens: int, layout: Layout) -> dict[str, Server]:
    blocks = layout.hardware.cache_tokens // block_tokens
    store = PrefixIndex(layout.hardware.store_tokens * layout.servers // block_tokens) if layout.shares_kv else None
    names = [f"server-{index}" for index in range(layout.servers)]
    return {
        name: Server(name, layout.hardware, PrefixIndex(blocks), layout.decodes, layout.budget, store) for name in names
    }


def _result(jobs: Sequence[Job], servers: Collection[Server], span: float) -> Result:
    measured = [job for job in jobs if job.request.at >= 0]
    outputs = np.array([job.request.output_tokens for job in measured])
    decoding = np.array([job.last - job.first for job in measured])
    return Result(
        ttft=np.array([job.first - job.arrival for job in measured]),
        tbt=np.where((outputs > 1) & (decoding > 0), decoding / np.maximum(1, outputs - 1), np.nan),
        is_warm=np.array([job.request.hit_share >= WARM_FROM for job in measured]),
        cached=sum(job.cached for job in measured),
        computed=sum(job.request.input_tokens - job.cached for job in measured),
        utilisation=sum(server.busy for server in servers) / (span * len(servers)),
    )
