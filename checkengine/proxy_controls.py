"""What the proxy tells metrics and traces, and what its admin addresses show and switch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from checkengine.dashboards.metrics import Metrics
from checkengine.dashboards.proxy_metrics import ProxyMetrics
from checkengine.dashboards.traces import RequestTraces
from checkengine.engine_shim.proxy.fleet_series import FleetSeries
from checkengine.engine_shim.proxy.guarding import Bench
from checkengine.engine_shim.proxy.parts import ExchangeEnd, ExchangeStart, ProxyParts
from checkengine.engine_shim.proxy.routing.service import Routing
from checkengine.guards import Policy
from checkengine.guards.errors import UserError

SIDECAR = "sidecar"
"""The name under which all guards together are switched."""


class ProxyObserver:
    """Tells metrics and traces what the proxy tells; without a collector of traces there are none to pay for."""

    def __init__(self, metrics: ProxyMetrics, traces: RequestTraces | None, series: FleetSeries | None) -> None:
        self._traces, self._series = traces, series
        self._metrics = metrics
        self.waited = metrics.waited
        self.unguarded = metrics.unguarded

    def started(self, start: ExchangeStart) -> None:
        if self._traces is not None:
            self._traces.started(start)

    def ended(self, end: ExchangeEnd) -> None:
        self._metrics.ended(end)
        if self._series is not None:
            self._series.ended(end)
        if self._traces is not None:
            self._traces.ended(end)


class ProxyControls:
    """What the admin addresses show and switch."""

    def __init__(
        self, parts: ProxyParts, bench: Bench, policy: Policy, metrics: Metrics, routing: Routing | None
    ) -> None:
        self._parts, self._bench, self._policy, self._routing = parts, bench, policy, routing
        self.metrics = metrics.exposition

    def status(self) -> Mapping[str, Any]:
        upstreams = [upstream.name for upstream in self._parts.router.upstreams()]
        return {"draining": self._parts.draining, "running": self._parts.running, "upstreams": upstreams}

    def guards(self) -> Sequence[Mapping[str, Any]]:
        would_have_stopped = self._policy.would_have_stopped()
        seats = [
            {
                "name": name,
                "active": not seat.reason and self._parts.enabled,
                "reason": seat.reason or ("" if self._parts.enabled else "the sidecar is off"),
                "action": self._policy.action_of(name),
                "braked": self._policy.braked(name),
                "would_have_stopped": would_have_stopped.get(name, 0),
                "batches": seat.batches,
                "failures": seat.failures,
                "cpu_seconds": seat.nanoseconds * 1e-9,
                "overruns": seat.overruns,
            }
            for name, seat in self._bench.seats.items()
        ]
        enabled = self._parts.enabled
        return [*seats, {"name": SIDECAR, "active": enabled, "reason": "" if enabled else "switched off"}]

    def switch(self, name: str, action: str) -> None:
        if name == SIDECAR:
            self._parts.enabled = action != "disable"
        elif action == "disable":
            self._bench.disable(name)
        else:
            self._bench.enable(name)
            if action == "rearm":
                self._policy.release(name)

    def upstreams(self) -> Sequence[Mapping[str, Any]]:
        if self._routing is not None:
            return self._routing.status()
        return [{"name": upstream.name} for upstream in self._parts.router.upstreams()]

    def act(self, name: str, action: str, reason: str) -> None:
        if self._routing is None:
            raise UserError("there is one upstream only, and nothing to choose")
        self._routing.act(name, action, "admin", reason)
