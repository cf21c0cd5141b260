"""What the proxy costs above a bare relay, and that it passes everything: in interleaved rounds, on this machine.

Processes: a mock upstream, the proxy with all guards, metrics and spool, its own bare relay, a relay of aiohttp; the
load comes from this process. CPU time is that of the proxy's process, whatever else the machine does; latencies suffer
from every neighbour, so they are only quoted from a quiet machine.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvloop

from checkengine.benchmarks.figure import figure
from checkengine.benchmarks.proxy_chaos import leavers, mangled_streams
from checkengine.benchmarks.proxy_healthy import healthy_figures
from checkengine.benchmarks.proxy_load import Process, body_of, in_turns, process, streams, whole_answers
from checkengine.engine_shim.proxy.upstream import Upstream

HOME = "checkengine.benchmarks"
STREAMS, CHUNKS = 100, 128
OUTPUT = 16
"""Tokens of an answer that is not streamed."""
WARM_UP_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Size:
    rounds: int
    seconds: float
    turns: int
    requests: int
    mangled: int
    leavers: int


FULL = Size(rounds=5, seconds=5.0, turns=1000, requests=100_000, mangled=10_000, leavers=1000)
QUICK = Size(rounds=2, seconds=2.0, turns=200, requests=3000, mangled=500, leavers=200)


def proxy_figures(data: Path | None = None, *, quick: bool = False) -> list[dict[str, Any]]:
    size = QUICK if quick else FULL
    with ExitStack() as stack:
        mock = stack.enter_context(process(f"{HOME}.proxy_upstream"))
        places = {"mock": mock}
        for kind in ("bare", "guarded", "aiohttp"):
            places[kind] = stack.enter_context(process(f"{HOME}.proxy_process", kind, mock.url))
        fleet = Fleet(places)
        fleet.warm_up()
        found = [
            *(costs := list(stream_costs(fleet, size))),
            *whole_costs(fleet, size),
            *added_latency(fleet, size),
            *stream_delays(fleet, size, 1e6 / costs[0]["value"]),
            *memory(fleet, size),
            *robustness(fleet, size),
        ]
    return found + healthy_figures(data)


class Fleet:
    def __init__(self, places: dict[str, Process]) -> None:
        self.places = places
        self.upstreams = {name: Upstream.of(place.url) for name, place in places.items()}

    def warm_up(self) -> None:
        for upstream in self.upstreams.values():
            uvloop.run(streams(upstream, 20, body_of(CHUNKS), WARM_UP_SECONDS))
            uvloop.run(whole_answers(upstream, 4, body_of(OUTPUT, stream=False), WARM_UP_SECONDS))

    def stream(self, name: str, every: float, seconds: float) -> tuple[float, list[float], float]:
        """CPU seconds a chunk of that process, delays of chunks, and chunks a second."""
        place = self.places[name]
        before = place.cpu_seconds()
        received = uvloop.run(streams(self.upstreams[name], STREAMS, body_of(CHUNKS, every=every), seconds))
        spent = (place.cpu_seconds() - before) / received.chunks
        return spent, sorted(received.delays), received.chunks / received.seconds


def stream_costs(fleet: Fleet, size: Size) -> Iterator[dict[str, Any]]:
    """At 100 streams of 20 tokens a second, which is a modest load: the costly kind, one chunk at a time."""
    costs: dict[str, list[float]] = {name: [] for name in ("bare", "guarded", "aiohttp")}
    for number in range(size.rounds):
        for name in sorted(costs, key=lambda name: (name, number % 2)):
            costs[name].append(fleet.stream(name, 0.05, size.seconds)[0] * 1e6)
    bare, guarded, aiohttp = (statistics.median(costs[name]) for name in ("bare", "guarded", "aiohttp"))
    above = statistics.median(g - b for g, b in zip(costs["guarded"], costs["bare"], strict=True))
    yield figure("proxy: CPU a streamed token, all guards", guarded, "µs", 100, peer=("bare relay", bare))
    yield figure("proxy: CPU a streamed token above the bare relay", above, "µs", 30)
    yield figure("proxy: CPU a streamed token, bare relay", bare, "µs", 56, peer=("aiohttp relay", aiohttp))


def whole_costs(fleet: Fleet, size: Size) -> Iterator[dict[str, Any]]:
    body = body_of(OUTPUT, stream=False)
    costs: dict[str, list[float]] = {name: [] for name in ("bare", "guarded", "aiohttp")}
    for _ in range(size.rounds):
        for name in costs:
            place = fleet.places[name]
            before = place.cpu_seconds()
            done, _ = uvloop.run(whole_answers(fleet.upstreams[name], 16, body, size.seconds / 2))
            costs[name].append(done / (place.cpu_seconds() - before))
    bare, guarded, aiohttp = (statistics.median(costs[name]) for name in ("bare", "guarded", "aiohttp"))
    yield figure("proxy: requests a second of a core", guarded, "1/s", 500, at_least=True, peer=("bare relay", bare))
    yield figure(
        "proxy: requests a second of a core, bare", bare, "1/s", 3900, at_least=True, peer=("aiohttp", aiohttp)
    )


def added_latency(fleet: Fleet, size: Size) -> Iterator[dict[str, Any]]:
    """One client, one request after another: to the mock, through the bare relay and through the proxy, in turns."""
    names = ("mock", "bare", "guarded")
    chosen = [fleet.upstreams[name] for name in names]
    direct, bare, guarded = uvloop.run(in_turns(chosen, body_of(OUTPUT, stream=False), size.turns))
    in_all = statistics.median(g - d for g, d in zip(guarded, direct, strict=True)) * 1e3
    above = statistics.median(g - b for g, b in zip(guarded, bare, strict=True)) * 1e3
    yield figure("proxy: added to a whole answer, p50", in_all, "ms", 2.0)
    yield figure("proxy: added to a whole answer above the bare relay, p50", above, "ms", 1.0)


def stream_delays(fleet: Fleet, size: Size, most: float) -> Iterator[dict[str, Any]]:
    """At half of the load at which the proxy's core is full, 100 streams. `most`: chunks a second of a core. Unpaced
    load says less: chunks that wait are read together, and cost less."""
    every = STREAMS / (most / 2)
    ends: dict[str, list[float]] = {"bare": [], "guarded": []}
    middles: dict[str, list[float]] = {"bare": [], "guarded": []}
    for _ in range(size.rounds):
        for name in ends:
            _, delays, _ = fleet.stream(name, every, size.seconds)
            middles[name].append(delays[len(delays) // 2])
            ends[name].append(delays[int(len(delays) * 0.99)])
    ratio = statistics.median(g / b for g, b in zip(ends["guarded"], ends["bare"], strict=True))
    added = statistics.median(g - b for g, b in zip(middles["guarded"], middles["bare"], strict=True)) * 1e3
    yield figure("proxy: tokens a second of a core at 100 streams", most, "1/s", 10_000, at_least=True)
    yield figure("proxy: delay of a token above the bare relay, p50", added, "ms", 1.0)
    yield figure("proxy: delay of a token against the bare relay's, p99", ratio, "×", 1.5)


def memory(fleet: Fleet, size: Size) -> Iterator[dict[str, Any]]:
    place, body = fleet.places["guarded"], body_of(OUTPUT, stream=False)

    async def ask(count: int) -> None:
        done = 0
        while done < count:
            more, _ = await whole_answers(fleet.upstreams["guarded"], 16, body, 1.0)
            done += more

    uvloop.run(ask(size.requests // 10))
    before = place.resident_bytes()
    uvloop.run(ask(size.requests))
    yield figure(
        f"proxy: memory gained over {size.requests:,} requests", (place.resident_bytes() - before) / 2**20, "MiB", 10
    )


def robustness(fleet: Fleet, size: Size) -> Iterator[dict[str, Any]]:
    draw = random.Random(6)
    different = uvloop.run(mangled_streams(fleet.upstreams["guarded"], size.mangled, draw))
    yield figure(f"proxy: of {size.mangled:,} mangled streams not byte for byte", different, "streams", 0)
    left = uvloop.run(leavers(fleet.places["guarded"], fleet.upstreams["guarded"], size.leavers, draw))
    yield figure(f"proxy: sockets left by {size.leavers:,} streams with random leavers", left, "sockets", 0)
