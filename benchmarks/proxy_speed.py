"""What a token, a request and a long prompt cost in the proxy, above a bare relay and above no relay at all."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from typing import Any

import uvloop

from checkengine.benchmarks.figure import figure
from checkengine.benchmarks.proxy_fleet import OUTPUT, STREAMS, Fleet, Size
from checkengine.benchmarks.proxy_litellm import LITELLM
from checkengine.benchmarks.proxy_load import ask_each, body_of, in_turns
from checkengine.benchmarks.proxy_upstream import prompt_of

Figures = Iterator[dict[str, Any]]
EVERY = 0.05
"""Seconds between two tokens of a stream: 100 of them are a modest load, which is the costly kind: chunks come one by
one."""
PROMPTS = {"8 KB": 8_000, "100 KB": 100_000, "1 MB": 1_000_000}


def cost_figures(fleet: Fleet, size: Size) -> Figures:
    tokens: dict[str, list[float]] = {name: [] for name in fleet.relays}
    requests: dict[str, list[float]] = {name: [] for name in fleet.relays}
    for number in range(size.rounds):
        for name in fleet.relays_of(number):
            tokens[name].append(fleet.stream(name, EVERY, size.seconds)[0] * 1e6)
            requests[name].append(fleet.whole(name, size.seconds / 2))
    cost = {name: statistics.median(found) for name, found in tokens.items()}
    rate = {name: statistics.median(found) for name, found in requests.items()}
    above = statistics.median(g - b for g, b in zip(tokens["guarded"], tokens["bare"], strict=True))
    bare = ("bare relay", cost["bare"])
    yield figure("proxy: CPU a streamed token, all guards", cost["guarded"], "µs", 100, peer=bare)
    yield figure("proxy: CPU a streamed token above the bare relay", above, "µs", 30)
    yield figure("proxy: CPU a streamed token, bare relay", cost["bare"], "µs", 56, peer=("aiohttp", cost["aiohttp"]))
    own = ("bare relay", rate["bare"])
    yield figure("proxy: requests a second of a core", rate["guarded"], "1/s", 500, at_least=True, peer=own)
    theirs = ("aiohttp", rate["aiohttp"])
    yield figure("proxy: requests a second of a core, bare", rate["bare"], "1/s", 3900, at_least=True, peer=theirs)
    if LITELLM in cost:
        told = ("LiteLLM", cost[LITELLM])
        yield figure("proxy: CPU a streamed token, beside LiteLLM", cost["guarded"], "µs", cost[LITELLM], peer=told)
        told = ("LiteLLM", rate[LITELLM])
        name = "proxy: requests a second of a core, beside LiteLLM"
        yield figure(name, rate["guarded"], "1/s", rate[LITELLM], at_least=True, peer=told)


def latency_figures(fleet: Fleet, size: Size) -> Figures:
    yield from added_latency(fleet, size)
    yield from stream_delays(fleet, size)


def added_latency(fleet: Fleet, size: Size) -> Figures:
    """One client, one request after another: to the mock, through the bare relay and through the proxy, in turns."""
    names = ["mock", "bare", "guarded", *([LITELLM] if LITELLM in fleet.places else [])]
    chosen = [fleet.upstreams[name] for name in names]
    took = dict(zip(names, uvloop.run(in_turns(chosen, body_of(OUTPUT, stream=False), size.turns)), strict=True))
    yield figure("proxy: added to a whole answer, p50", _added(took, "guarded", "mock"), "ms", 2.0)
    yield figure("proxy: added to a whole answer above the bare relay, p50", _added(took, "guarded", "bare"), "ms", 1.0)
    ratio = _percentile(took["guarded"], 0.99) / _percentile(took["bare"], 0.99)
    yield figure("proxy: a whole answer against the bare relay's, p99, one client", ratio, "×", 1.5)
    if LITELLM in took:
        theirs = _added(took, LITELLM, "mock")
        name = "proxy: added to a whole answer, p50, beside LiteLLM"
        yield figure(name, _added(took, "guarded", "mock"), "ms", theirs, peer=("LiteLLM", theirs))


def stream_delays(fleet: Fleet, size: Size) -> Figures:
    """At half of the load at which the proxy's core is full, 100 streams. Unpaced load says less: chunks that wait are
    read together, and cost less."""
    most = 1 / statistics.median(fleet.stream("guarded", EVERY, size.seconds)[0] for _ in range(2))
    every = STREAMS / (most / 2)
    delays: dict[str, list[list[float]]] = {"mock": [], "bare": [], "guarded": []}
    for number in range(size.rounds):
        for name in [*delays][:: 1 if number % 2 else -1]:
            delays[name].append(fleet.stream(name, every, size.seconds)[1])
    middles = {name: [_percentile(each, 0.5) for each in found] for name, found in delays.items()}
    ends = {name: [_percentile(each, 0.99) for each in found] for name, found in delays.items()}
    ratio = statistics.median(g / b for g, b in zip(ends["guarded"], ends["bare"], strict=True))
    yield figure("proxy: tokens a second of a core at 100 streams", most, "1/s", 10_000, at_least=True)
    yield figure("proxy: delay of a token in all, p50", _added(middles, "guarded", "mock"), "ms", 2.0)
    yield figure("proxy: delay of a token above the bare relay, p50", _added(middles, "guarded", "bare"), "ms", 1.0)
    peer = ("bare relay, ms", statistics.median(ends["bare"]) * 1e3)
    yield figure("proxy: delay of a token against the bare relay's, p99", ratio, "×", 1.5, peer=peer)


def prompt_figures(fleet: Fleet, size: Size) -> Figures:
    """CPU time for one request with a long prompt; each is another one, in turns through bare relay and proxy."""
    for name, length in PROMPTS.items():
        spent: dict[str, list[float]] = {"bare": [], "guarded": []}
        for number in range(size.prompts):
            body = body_of(OUTPUT, stream=False, question=prompt_of(length, number))
            for relay, found in spent.items():
                before = fleet.places[relay].cpu_seconds()
                uvloop.run(ask_each(fleet.upstreams[relay], [body]))
                found.append(fleet.places[relay].cpu_seconds() - before)
        yield figure(
            f"proxy: CPU of a prompt of {name} above the bare relay", _added(spent, "guarded", "bare"), "ms", 2
        )


def _added(seconds: dict[str, list[float]], what: str, above: str) -> float:
    """Milliseconds: the median of the pairs' differences."""
    return statistics.median(a - b for a, b in zip(seconds[what], seconds[above], strict=True)) * 1e3


def _percentile(values: list[float], share: float) -> float:
    return sorted(values)[int(len(values) * share)]
