"""How often one client may ask: a bucket of tokens a client, in bounded memory."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable

MOST_CLIENTS = 10_000


class RateLimit:
    """`rate` a second on average, `burst` at once. Thread-safe. The client not seen for longest is forgotten first:
    a full bucket is what it would have by then, unless more than MOST_CLIENTS come within burst / rate seconds."""

    def __init__(self, rate: float, burst: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._rate, self._burst, self._clock = rate, burst, clock
        self._lock = threading.Lock()
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def wait(self, client: str, cost: float = 1.0) -> float:
        """Take `cost`, and 0.0; or take nothing, and the seconds after which it would be there."""
        with self._lock:
            now = self._clock()
            left = min(self._burst, self._level(client, now))
            enough = left >= cost
            self._buckets[client] = (left - cost if enough else left, now)
            self._buckets.move_to_end(client)
            if len(self._buckets) > MOST_CLIENTS:
                self._buckets.popitem(last=False)
            return 0.0 if enough else (cost - left) / self._rate

    def exhausted(self, client: str) -> float:
        """Seconds until one could be taken; takes nothing."""
        with self._lock:
            left = min(self._burst, self._level(client, self._clock()))
            return 0.0 if left >= 1 else (1 - left) / self._rate

    def _level(self, client: str, now: float) -> float:
        left, when = self._buckets.get(client, (self._burst, now))
        return left + (now - when) * self._rate
