"""What a replica tells of itself now and then: for the register of replicas, and to show which orders it has obeyed."""

from __future__ import annotations

import logging
import os
import platform
import socket
import threading
import time
from collections.abc import Callable, Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from checkengine.engine_shim.devices import Counters, DeviceFacts, no_counters
from checkengine.engine_shim.spool import SpoolWriter

logger = logging.getLogger("checkengine.replica")

REPORT_SECONDS = 10.0
LIBRARIES = ("torch", "transformers", "numba", "numpy", "triton", "vllm", "sglang")
ELSEWHERE = frozenset({"engine", "model", "libraries", "device", "kernel", "faults", "layout", "guards"})
"""Parts of an engine's environment that have a place of their own, or say nothing about numbers."""

GuardStates = Callable[[], Mapping[str, Mapping[str, Any]]]


def replica_facts(environment: Mapping[str, Any], device: DeviceFacts, product: str) -> dict[str, Any]:
    """What does not change while the process lives."""
    return {
        "host": socket.gethostname(),
        "engine": str(environment.get("engine", "")),
        "model": str(environment.get("model", "")),
        "device": device.uuid,
        "device_name": device.name,
        "driver": device.driver,
        "image": os.environ.get("CHECKENGINE_IMAGE", ""),
        "kernel": str(environment.get("kernel", "")),
        "versions": {"python": platform.python_version(), "checkengine": product, **library_versions(environment)},
        "kernels": {name: plain(value) for name, value in environment.items() if name not in ELSEWHERE},
    }


def library_versions(environment: Mapping[str, Any]) -> dict[str, str]:
    told = environment.get("libraries")
    known = {str(name): str(value) for name, value in told.items()} if isinstance(told, Mapping) else {}
    for name in LIBRARIES:
        if name not in known:
            try:
                known[name] = version(name)
            except PackageNotFoundError:
                continue
    return known


def plain(value: Any) -> Any:
    return value if isinstance(value, str | int | float | bool) or value is None else str(value)


class ReplicaReporter:
    """A thread that puts one record into the spool every few seconds, at once after `report`, and a last one when it is
    closed. It never raises."""

    def __init__(
        self,
        spool: SpoolWriter,
        facts: Mapping[str, Any],
        guards: GuardStates,
        *,
        counters: Counters = no_counters,
        applied: Callable[[], int] = lambda: 0,
        drained: Callable[[], bool] = lambda: False,
        seconds: float = REPORT_SECONDS,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._spool, self._facts, self._guards = spool, dict(facts), guards
        self._counters, self._applied, self._drained = counters, applied, drained
        self._seconds, self._clock = seconds, clock
        self._started = clock()
        self._wake, self._closed = threading.Event(), False
        self._thread = threading.Thread(target=self._run, name="checkengine-replica", daemon=True)

    def start(self) -> None:
        self.tell()
        self._thread.start()

    def report(self) -> None:
        """Soon, from the reporter's own thread."""
        self._wake.set()

    def close(self) -> None:
        self._closed = True
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join(5)
        self.tell("gone")

    def tell(self, state: str = "") -> None:
        try:
            data = self._facts | {
                "started": self._started,
                "state": state or ("drained" if self._drained() else "serving"),
                "applied": self._applied(),
                "counters": self._counters(),
                "guards": {name: dict(told) for name, told in self._guards().items()},
            }
        except Exception:
            logger.exception("this replica cannot tell of itself")
            return
        self._spool.append("replica", self._clock(), "", data)

    def _run(self) -> None:
        while not self._closed:
            self._wake.wait(self._seconds)
            self._wake.clear()
            if not self._closed:
                self.tell()
