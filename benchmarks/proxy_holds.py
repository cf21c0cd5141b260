"""What must hold at full size: flat memory, streams that pass byte for byte, nothing left of clients that leave."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import uvloop

from checkengine.benchmarks.figure import figure
from checkengine.benchmarks.proxy_chaos import leavers, mangled_streams, settled
from checkengine.benchmarks.proxy_fleet import OUTPUT, Fleet, Size
from checkengine.benchmarks.proxy_load import ask_each, body_of

Figures = Iterator[dict[str, Any]]
STREAM_EVERY, LOOP_EVERY = 10, 100
"""One request in so many is streamed, one in so many is answered with a loop, which is an incident."""


def memory_figures(fleet: Fleet, size: Size) -> Figures:
    """No two requests alike, from as many users; the first tenth fills what is bounded."""
    place, upstream = fleet.guarded()
    first = size.requests // 10
    uvloop.run(ask_each(upstream, (various(number) for number in range(first)), clients=16))
    before = place.resident_bytes()
    uvloop.run(ask_each(upstream, (various(number) for number in range(first, first + size.requests)), clients=16))
    gained = (place.resident_bytes() - before) / 2**20
    yield figure(f"proxy: memory gained over {size.requests:,} requests", gained, "MiB", 10)


def various(number: int) -> bytes:
    return body_of(
        OUTPUT,
        stream=number % STREAM_EVERY == 0,
        question=f"Question {number}: how does an engine keep its blocks of memory apart?",
        loops=number % LOOP_EVERY == 1,
        user=f"user-{number}",
    )


def stream_figures(fleet: Fleet, size: Size) -> Figures:
    different = uvloop.run(mangled_streams(fleet.upstreams["guarded"], size.mangled, random.Random(6)))
    yield figure(f"proxy: of {size.mangled:,} mangled streams not byte for byte", different, "streams", 0)


def leaver_figures(fleet: Fleet, size: Size) -> Figures:
    """First all stay, so that memory has been as full as it gets."""
    place, upstream = fleet.guarded()
    draw, what = random.Random(6), f"left by {size.leavers:,} streams with random leavers"
    uvloop.run(leavers(upstream, size.leavers, draw, stay=True))
    before = uvloop.run(settled(place, {}))
    uvloop.run(leavers(upstream, size.leavers, draw))
    after = uvloop.run(settled(place, before))
    for name, unit, most in (("sockets", "sockets", 0), ("tasks", "tasks", 0), ("running", "requests", 0)):
        yield figure(f"proxy: {unit} {what}", max(0, after[name] - before[name]), unit, most)
    yield figure(f"proxy: memory {what}", (after["bytes"] - before["bytes"]) / 2**20, "MiB", 1)
