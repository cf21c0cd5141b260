"""Open loop: every request is sent at its own time, whatever became of those before it.

A server that stalls is charged for every request that it kept waiting: latencies count from the intended time, also
where the bound on concurrency or a slow generator delayed the sending (coordinated omission: Tene, "How NOT to Measure
Latency").
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from checkengine.loading.client import LoadClient, Sample
from checkengine.loading.planned import Planned
from checkengine.loading.words import PromptMaker

AHEAD = 64
"""Prompts that are made before their time."""
SOON = 0.05
"""Seconds from the last preparation to second 0."""


@dataclass(frozen=True, slots=True)
class Run:
    """Row-aligned."""

    requests: tuple[Planned, ...]
    samples: tuple[Sample, ...]
    seconds: float
    late: float
    """Seconds by which the generator itself, not the bound on concurrency, was late at worst: above a few ms figures
    are the generator's."""


async def drive(
    requests: Sequence[Planned],
    client: LoadClient,
    prompts: PromptMaker,
    *,
    most: int,
    clock: Callable[[], float] = time.perf_counter,
) -> Run:
    """`most` requests at a time; those beyond wait, and the wait is theirs."""
    room = asyncio.Semaphore(most)
    ready = [prompts.prompt(request, number) for number, request in enumerate(requests[:AHEAD])]
    tasks: list[asyncio.Task[Sample]] = []
    late = 0.0
    start = clock() + SOON
    for number, request in enumerate(requests):
        delay = start + request.at - clock()
        if delay > 0:
            await asyncio.sleep(delay)
        else:
            await asyncio.sleep(0)  # what has come meanwhile is read, however far behind the sending is
        late = max(late, clock() - start - request.at)
        tasks.append(asyncio.create_task(_one(request, ready[number], client, room, start)))
        if number + AHEAD < len(requests):
            ready.append(prompts.prompt(requests[number + AHEAD], number + AHEAD))
            ready[number] = ""
    samples = await asyncio.gather(*tasks)
    return Run(tuple(requests), tuple(samples), clock() - start, late)


async def _one(request: Planned, prompt: str, client: LoadClient, room: asyncio.Semaphore, start: float) -> Sample:
    async with room:
        return await client.send(prompt, request.output_tokens, start, request.at)
