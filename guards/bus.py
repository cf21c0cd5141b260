"""Events to whoever listens, without ever making the publisher wait (design rule 6)."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from queue import SimpleQueue

from checkengine.guards.events import Event

logger = logging.getLogger("checkengine.events")
Handler = Callable[[Event], None]


class Subscription:
    """A listener on a queue and a thread of its own. `delivered + dropped` is what it was sent."""

    def __init__(self, name: str, handler: Handler, kinds: tuple[type, ...], capacity: int) -> None:
        self.name = name
        self.delivered = 0
        self.dropped = 0
        """Exact: the queue was full, the listener had raised, or the bus was closed."""
        self._handler = handler
        self._kinds = kinds
        self._capacity = capacity
        self._queue: SimpleQueue[Event | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._open = True
        self._thread = threading.Thread(target=self._run, name=f"checkengine-{name}", daemon=True)
        self._thread.start()

    @property
    def open(self) -> bool:
        return self._open

    def offer(self, event: Event) -> None:
        if self._kinds and not isinstance(event, self._kinds):
            return
        # The listener never holds this lock while it works, so a publisher waits for another publisher at most.
        with self._lock:
            if self._open and self._queue.qsize() < self._capacity:
                self._queue.put(event)
            else:
                self.dropped += 1

    def close(self, timeout: float | None) -> bool:
        """Let the queue run empty; False where the listener did not manage in time."""
        with self._lock:
            self._open = False
            self._queue.put(None)
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while (event := self._queue.get()) is not None:
            try:
                self._handler(event)
            except Exception:
                logger.exception("listener %s raised and is detached", self.name)
                self._detach()
                return
            self.delivered += 1

    def _detach(self) -> None:
        with self._lock:
            self._open = False
            self.dropped += 1
            while not self._queue.empty():
                self.dropped += self._queue.get() is not None


class EventBus:
    """Thread-safe. A listener that raises is logged once and detached; the others go on."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._direct: tuple[tuple[str, Handler], ...] = ()
        self._queued: tuple[Subscription, ...] = ()

    def subscribe(
        self, handler: Handler, *, name: str, kinds: tuple[type, ...] = (), capacity: int = 10_000
    ) -> Subscription:
        """Call `handler` on a thread of its own with every event of `kinds` (all where empty); at most `capacity`
        events wait, further ones are dropped and counted."""
        subscription = Subscription(name, handler, kinds, capacity)
        with self._lock:
            self._queued = (*self._queued, subscription)
        return subscription

    def subscribe_sync(self, handler: Handler, *, name: str) -> None:
        """Call `handler` on the publisher's thread: only for what takes a microsecond, such as a counter."""
        with self._lock:
            self._direct = (*self._direct, (name, handler))

    def publish(self, event: Event) -> None:
        for name, handler in self._direct:
            try:
                handler(event)
            except Exception:
                logger.exception("listener %s raised and is detached", name)
                self._detach(handler)
        for subscription in self._queued:
            subscription.offer(event)

    def dropped(self) -> dict[str, int]:
        """By listener, since the start."""
        return {subscription.name: subscription.dropped for subscription in self._queued}

    def close(self, timeout: float | None = 10.0) -> None:
        """Deliver what is queued, then end the threads. `timeout` is seconds for each listener."""
        for subscription in self._queued:
            if not subscription.close(timeout):
                logger.warning("listener %s did not finish within %s s", subscription.name, timeout)

    def _detach(self, handler: Handler) -> None:
        with self._lock:
            self._direct = tuple(entry for entry in self._direct if entry[1] is not handler)
