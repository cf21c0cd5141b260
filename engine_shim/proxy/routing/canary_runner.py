"""Sends canaries to every upstream for as long as the proxy runs, and tells the fleet what came back."""

from __future__ import annotations

import asyncio
import itertools
import logging
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from checkengine.engine_shim.proxy.routing.canary import CANARIES, Fault, body_of, fault_of
from checkengine.engine_shim.proxy.routing.fleet import Fleet, Standing
from checkengine.engine_shim.proxy.routing.settings import Canary, CanarySettings
from checkengine.engine_shim.proxy.upstream import Upstream

logger = logging.getLogger("checkengine.proxy.routing")

JITTER = 0.2
NOT_SUPPORTED = (400, 422)
BUSY = (429, 503)


@dataclass(frozen=True, slots=True)
class CanaryAnswer:
    status: int
    body: object
    """Parsed; None where it is no JSON."""


class CanaryClient(Protocol):
    """Raises OSError or TimeoutError where there is no answer."""

    async def chat(self, upstream: Upstream, body: Mapping[str, Any]) -> CanaryAnswer: ...

    async def model(self, upstream: Upstream) -> str:
        """The first one that it lists."""
        ...


class CanaryRunner:
    """One task an upstream. A canary that cannot be sent or read never ends its task."""

    def __init__(
        self,
        fleet: Fleet,
        upstreams: Sequence[Upstream],
        client: CanaryClient,
        settings: CanarySettings,
        *,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._fleet, self._upstreams, self._client, self._settings = fleet, upstreams, client, settings
        self._canaries, self._sleep = settings.prompts or CANARIES, sleep
        self._models: dict[str, str] = {}
        self._without_logprobs: set[str] = set()
        self._proven: set[tuple[str, str]] = set()
        """Pool and name of canaries that a server of the pool has answered right."""
        self._numbers = itertools.count(random.randrange(1 << 30))
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """On the running loop."""
        if self._settings.enabled:
            self._tasks = [asyncio.create_task(self._run(upstream)) for upstream in self._upstreams]

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks.clear()

    async def once(self, upstream: Upstream, canary: Canary) -> None:
        """Asks, judges and tells the fleet."""
        try:
            answer = await asyncio.wait_for(self._ask(upstream, canary), self._settings.timeout_seconds)
        except (OSError, TimeoutError) as error:
            self._models.pop(upstream.name, None)
            self._fleet.canary_unanswered(upstream.name, f"no answer to a canary: {type(error).__name__}")
            return
        if answer.status in BUSY:
            return  # that is load: no canary is needed to see it
        if answer.status != 200:
            fault: Fault | None = Fault(f"status {answer.status} to {canary.name}", answer.status >= 500)
        else:
            # In a thread: the first reading loads a model of languages, and no stream waits for that.
            fault = await asyncio.to_thread(fault_of, answer.body, canary, self._settings.most_entropy)
        self._tell(upstream, canary, fault)

    def _tell(self, upstream: Upstream, canary: Canary, fault: Fault | None) -> None:
        proof = (upstream.pool, canary.name)
        if fault is None:
            self._proven.add(proof)
        elif not fault.is_certain and proof not in self._proven:
            self._fleet.reached(upstream.name)
            logger.warning("%s: %s; no server of pool %s has answered it right", upstream.name, fault.reason, proof[0])
            return
        self._fleet.canary(upstream.name, fault.reason if fault else None)

    async def _run(self, upstream: Upstream) -> None:
        for canary in itertools.cycle(self._canaries):
            await self._sleep(self._pause(upstream.name))
            try:
                await self.once(upstream, canary)
            except Exception:
                logger.exception("canary of %s failed", upstream.name)

    def _pause(self, name: str) -> float:
        serves = self._fleet.standing(name) is Standing.SERVING and self._fleet.case(name) is None
        seconds = self._settings.seconds if serves else self._settings.seconds_out
        return seconds * random.uniform(1 - JITTER, 1 + JITTER)

    async def _ask(self, upstream: Upstream, canary: Canary) -> CanaryAnswer:
        if upstream.name not in self._models:
            self._models[upstream.name] = await self._client.model(upstream)
        model, number = self._models[upstream.name], next(self._numbers)
        logprobs = upstream.name not in self._without_logprobs
        answer = await self._client.chat(upstream, body_of(canary, model, number, logprobs=logprobs))
        if answer.status in NOT_SUPPORTED and logprobs:
            answer = await self._client.chat(upstream, body_of(canary, model, number, logprobs=False))
            if answer.status == 200:
                self._without_logprobs.add(upstream.name)
        return answer
