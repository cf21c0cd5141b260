"""What the proxy is measured with: a mock upstream, the proxy, relays beside it, and a core for those measured."""

from __future__ import annotations

import os
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import uvloop

from checkengine.benchmarks.proxy_litellm import LITELLM, litellm_proxy
from checkengine.benchmarks.proxy_load import Process, body_of, process, streams, whole_answers
from checkengine.engine_shim.proxy.upstream import Upstream

HOME = "checkengine.benchmarks"
STREAMS, CHUNKS = 100, 128
OUTPUT = 16
"""Tokens of an answer that is not streamed."""
WARM_UP_SECONDS = 1.0
LITELLM_ROUNDS = 2
RELAYS = ("bare", "guarded", "aiohttp")


@dataclass(frozen=True, slots=True)
class Size:
    rounds: int
    seconds: float
    turns: int
    prompts: int
    requests: int
    mangled: int
    leavers: int
    examples: int


FULL = Size(rounds=5, seconds=5.0, turns=1000, prompts=40, requests=100_000, mangled=10_000, leavers=1000, examples=200)
QUICK = Size(rounds=2, seconds=2.0, turns=200, prompts=10, requests=3000, mangled=500, leavers=200, examples=20)


class Fleet:
    """Ends with `stack`. Where there are two cores, whatever is measured has the first; mock and load the second."""

    def __init__(self, stack: ExitStack, litellm: Path | None = None) -> None:
        cores = sorted(os.sched_getaffinity(0))
        measured, others = ({cores[0]}, set(cores[1:2])) if len(cores) > 1 else (None, None)
        if others:
            stack.callback(os.sched_setaffinity, 0, cores)
            os.sched_setaffinity(0, others)
        self.places = {"mock": (mock := stack.enter_context(process(f"{HOME}.proxy_upstream", cores=others)))}
        for kind in RELAYS:
            started = process(f"{HOME}.proxy_process", kind, mock.url, cores=measured)
            self.places[kind] = stack.enter_context(started)
        if litellm is not None:
            self.places[LITELLM] = stack.enter_context(litellm_proxy(litellm, mock.url, measured))
        self.upstreams = {name: Upstream.of(place.url) for name, place in self.places.items()}
        self._warm_up()

    @property
    def relays(self) -> list[str]:
        return [name for name in self.places if name != "mock"]

    def relays_of(self, number: int) -> list[str]:
        """Of a round, in an order that changes; the slow one is not waited for in all of them."""
        found = [name for name in self.relays if name != LITELLM or number < LITELLM_ROUNDS]
        return found[:: 1 if number % 2 else -1]

    def stream(self, name: str, every: float, seconds: float) -> tuple[float, list[float], float]:
        """CPU seconds a chunk of that process, delays of chunks, and chunks a second. Clients do not all come at once:
        their streams begin over the time that one stream takes, at most over half of the round."""
        place = self.places[name]
        before = place.cpu_seconds()
        spread = min(every * CHUNKS, seconds / 2)
        received = uvloop.run(streams(self.upstreams[name], STREAMS, body_of(CHUNKS, every=every), seconds, spread))
        spent = (place.cpu_seconds() - before) / received.chunks
        return spent, sorted(received.delays), received.chunks / received.seconds

    def whole(self, name: str, seconds: float) -> float:
        """Requests for a second of CPU time of that process; 16 clients."""
        place = self.places[name]
        before = place.cpu_seconds()
        done, _ = uvloop.run(whole_answers(self.upstreams[name], 16, body_of(OUTPUT, stream=False), seconds))
        return done / (place.cpu_seconds() - before)

    def guarded(self) -> tuple[Process, Upstream]:
        return self.places["guarded"], self.upstreams["guarded"]

    def _warm_up(self) -> None:
        for upstream in self.upstreams.values():
            uvloop.run(streams(upstream, 20, body_of(CHUNKS), WARM_UP_SECONDS))
            uvloop.run(whole_answers(upstream, 4, body_of(OUTPUT, stream=False), WARM_UP_SECONDS))
