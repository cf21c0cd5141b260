"""Runs an engine's steps in a thread of their own and carries outputs to asyncio.

The engine is touched by that thread only: submissions and cancellations wait in an inbox between two steps.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol, Self

from checkengine.engine_shim.engine.observer import NoObserver, RequestObserver
from checkengine.engine_shim.engine.request import GenerationRequest, Output
from checkengine.guards.events import Event, SequenceEnded

log = logging.getLogger("checkengine.server")


class SteppingEngine(Protocol):
    @property
    def has_work(self) -> bool: ...

    def submit(self, request: GenerationRequest) -> object:
        """Raises ValueError for a request that can never run."""

    def cancel(self, name: str) -> object:
        """Forget a request; an unknown name is no error."""

    def step(self) -> list[Output]: ...


class RequestRefusedError(Exception):
    """The engine can never run this request; the message says why."""


class NotAcceptingError(Exception):
    """The server drains, or its engine has failed."""


class EngineFailedError(Exception):
    """The engine raised in a step: what it held is lost."""


@dataclass(frozen=True, slots=True)
class _Accepted:
    name: str


Item = Output | _Accepted | Exception


@dataclass(slots=True)
class _Live:
    """A request that the runtime has taken; its queue belongs to `loop`."""

    request: GenerationRequest
    loop: asyncio.AbstractEventLoop
    queue: asyncio.Queue[Item]
    last: float
    """Monotonic seconds of its last token; of its arrival before the first."""
    arrived: float
    tokens: int = 0
    ttft: float = 0.0
    cached: int | None = None
    """Prompt tokens found in the prefix cache."""


class Generation:
    """Outputs of some requests, in the order in which they come. Ends when each of them has finished."""

    def __init__(
        self, runtime: EngineRuntime, requests: Sequence[GenerationRequest], queue: asyncio.Queue[Item]
    ) -> None:
        self._runtime, self._queue = runtime, queue
        self._open = {request.name for request in requests}

    async def accepted(self) -> None:
        """Wait until the engine has taken all requests; raises RequestRefusedError, EngineFailedError."""
        for _ in range(len(self._open)):
            item = await self._queue.get()
            if isinstance(item, Exception):
                raise item

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Output:
        if not self._open:
            raise StopAsyncIteration
        item = await self._queue.get()
        if isinstance(item, Exception):
            self._open.clear()
            raise item
        assert isinstance(item, Output)
        if item.finish is not None:
            self._open.discard(item.name)
        return item

    def close(self) -> None:
        """Cancel in the engine what has not finished; may be called again."""
        self._runtime.cancel(self._open)
        self._open = set()


class EngineRuntime:
    """`start` it once; then `open` requests from any event loop."""

    def __init__(
        self,
        engine: SteppingEngine,
        *,
        warm_up: Callable[[], None] = lambda: None,
        observer: RequestObserver | None = None,
        publish: Callable[[Event], None] = lambda event: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.engine = engine
        self.observer: RequestObserver = observer or NoObserver()
        self._warm_up, self._publish, self._clock = warm_up, publish, clock
        self._wake = threading.Condition()
        self._inbox: deque[Callable[[], None]] = deque()
        self._live: dict[str, _Live] = {}
        self._idle = threading.Event()
        self._idle.set()
        self._ready = threading.Event()
        self._draining = self._stopped = self._held_back = False
        self._failure: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="checkengine-engine", daemon=True)

    def start(self) -> None:
        """Warms up (whatever compiles does so now) in the engine's thread, then steps while there is work."""
        self._thread.start()

    @property
    def ready(self) -> bool:
        """Warm, healthy and taking requests."""
        return self._ready.is_set() and not self._draining and not self._held_back and self.alive

    @property
    def alive(self) -> bool:
        return self._failure is None and not self._stopped

    @property
    def draining(self) -> bool:
        return self._draining

    @property
    def requests(self) -> int:
        """Running and waiting."""
        return len(self._live)

    def wait_ready(self, timeout: float | None = None) -> bool:
        return self._ready.wait(timeout) and self.alive

    async def open(self, requests: Sequence[GenerationRequest]) -> Generation:
        """Hand requests to the engine. The caller closes the generation, or they run to their end for nobody.

        Raises RequestRefusedError, NotAcceptingError, EngineFailedError.
        """
        queue: asyncio.Queue[Item] = asyncio.Queue()
        self._take(requests, queue)
        generation = Generation(self, requests, queue)
        try:
            await generation.accepted()
        except BaseException:
            generation.close()
            raise
        return generation

    def cancel(self, names: Iterable[str]) -> None:
        """Forget requests; unknown names are no error."""
        for name in names:
            self._post(partial(self._cancel, name))

    @property
    def held_back(self) -> bool:
        return self._held_back

    def hold_back(self, wanted: bool) -> None:
        """Refuse new requests (what runs goes on), or take them again: an operator drains a replica and releases it."""
        self._held_back = wanted

    def begin_drain(self) -> None:
        """Refuse new requests from now on; safe in a signal handler's context."""
        self._draining = True

    async def drain(self, timeout: float | None = None) -> bool:
        """Refuse new requests and wait for the running ones; False when some were left at the end of `timeout`."""
        self.begin_drain()
        return await asyncio.to_thread(self._idle.wait, timeout)

    def stop(self) -> None:
        """End the thread after the step it is in; what still runs is cut off with NotAcceptingError."""
        with self._wake:
            self._draining = self._stopped = True
            self._wake.notify()
        if self._thread.is_alive():
            self._thread.join()
        self._fail_all(NotAcceptingError("the server has stopped"))

    # The event loop's side

    def _take(self, requests: Sequence[GenerationRequest], queue: asyncio.Queue[Item]) -> None:
        loop = asyncio.get_running_loop()
        with self._wake:
            # Under the lock, or a request could slip in just after a failing engine's requests were all told.
            self._require_accepting(requests)
            for request in requests:
                self._live[request.name] = live = self._live_of(request, loop, queue)
                self._inbox.append(partial(self._submit, live))
            self._idle.clear()
            self._wake.notify()

    def _require_accepting(self, requests: Sequence[GenerationRequest]) -> None:
        if self._failure is not None:
            raise NotAcceptingError("the engine has failed; restart the server")
        if self._draining or self._stopped:
            raise NotAcceptingError("the server is shutting down")
        if self._held_back:
            raise NotAcceptingError("this replica is drained; ask another one")
        for request in requests:
            if request.name in self._live:
                raise RequestRefusedError(f"a request named {request.name} is running")

    def _live_of(
        self, request: GenerationRequest, loop: asyncio.AbstractEventLoop, queue: asyncio.Queue[Item]
    ) -> _Live:
        arrived = request.arrived or self._clock()
        return _Live(request, loop, queue, arrived, arrived)

    def _post(self, command: Callable[[], None]) -> None:
        with self._wake:
            self._inbox.append(command)
            self._wake.notify()

    # The engine thread's side

    def _run(self) -> None:
        try:
            self._warm_up()
            self._ready.set()
            while self._next_turn():
                self._deliver(self.engine.step())
        except Exception as error:
            log.exception("the engine failed; all running requests are lost")
            with self._wake:
                self._failure = error
            self._ready.set()
            self._fail_all(EngineFailedError("the engine failed; see the server's log"))

    def _next_turn(self) -> bool:
        """Empties the inbox, waits while there is nothing to do; False when it is time to end."""
        while True:
            with self._wake:
                while not (self._inbox or self._stopped or self.engine.has_work):
                    self._wake.wait()
                if self._stopped:
                    return False
                commands, self._inbox = self._inbox, deque()
            for command in commands:
                command()
            if self.engine.has_work:
                return True

    def _submit(self, live: _Live) -> None:
        try:
            self.engine.submit(live.request)
        except ValueError as error:
            self._forget(live.request.name)
            self._send(live, RequestRefusedError(str(error)))
        else:
            self._send(live, _Accepted(live.request.name))

    def _cancel(self, name: str) -> None:
        self.engine.cancel(name)
        live = self._live.get(name)
        self._forget(name)
        if live is not None:
            self._tell_end(live, "abort", self._clock())

    def _forget(self, name: str) -> None:
        with self._wake:
            self._live.pop(name, None)
            if not self._live:
                self._idle.set()

    def _deliver(self, outputs: list[Output]) -> None:
        now = self._clock()
        for output in outputs:
            live = self._live.get(output.name)
            if live is None:
                continue
            if output.tokens:
                live.cached = output.cached_tokens
                self._measure(live, len(output.tokens), now)
            if output.finish is not None:
                self._forget(output.name)
                self._tell_end(live, output.finish, now)
            self._send(live, output)

    def _measure(self, live: _Live, tokens: int, now: float) -> None:
        first = live.tokens == 0
        try:
            self.observer.produced(live.request.name, tokens, now - live.last, first)
        except Exception:
            log.exception("the request observer raised; it is switched off")
            self.observer = NoObserver()
        if first:
            live.ttft = now - live.arrived
        live.last, live.tokens = now, live.tokens + tokens

    def _tell_end(self, live: _Live, reason: str, now: float) -> None:
        self._publish(
            SequenceEnded(
                live.request.name,
                reason,
                len(live.request.prompt_tokens),
                live.tokens,
                live.ttft,
                now - live.arrived,
                time.time(),
                live.cached,
                live.request.sampling.max_tokens,
            )
        )

    def _send(self, live: _Live, item: Item) -> None:
        try:
            live.loop.call_soon_threadsafe(live.queue.put_nowait, item)
        except RuntimeError:
            log.debug("the event loop of %s is closed", live.request.name)

    def _fail_all(self, error: Exception) -> None:
        with self._wake:
            lost, self._live = list(self._live.values()), {}
            self._inbox.clear()
            self._idle.set()
        for live in lost:
            self._send(live, error)
