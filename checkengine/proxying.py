"""From settings to a proxy with guards, policy, metrics and traces: the composition root of `checkengine proxy`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import time

from pydantic import ValidationError

from checkengine.config import Settings, load_settings
from checkengine.engine_shim.proxy.app import ProxyApp
from checkengine.engine_shim.proxy.guarding import Bench, GuardMakers
from checkengine.engine_shim.proxy.judging import Judge
from checkengine.engine_shim.proxy.pace import FirstTokens
from checkengine.engine_shim.proxy.parts import ProxyParts
from checkengine.engine_shim.proxy.sessions import Sessions
from checkengine.engine_shim.proxy.settings import ProxySettings
from checkengine.engine_shim.proxy.upstream import OneUpstream, Router, Upstream
from checkengine.guards import EventBus, IncidentBook, Policy
from checkengine.guards.errors import UserError
from checkengine.guards.events import GuardDisabled
from checkengine.guards.settings import GuardsSettings
from checkengine.replica import replica_name
from checkengine.scanning.registry import ENTRIES, conversation_makers, logprobs_makers, text_makers
from checkengine.storage import open_spool


@dataclass(slots=True)
class Proxy:
    """A proxy that has not begun to listen; `close` it in the end."""

    app: ProxyApp
    settings: Settings
    bus: EventBus
    policy: Policy
    bench: Bench
    closers: list[Callable[[], None]] = field(default_factory=list)

    def close(self) -> None:
        for close in self.closers:
            close()


def guard_makers(settings: GuardsSettings) -> GuardMakers:
    """Those of the scan, by their names in the configuration. Guards that are off are made too: they can be switched
    on at run time."""
    names = tuple(ENTRIES)
    named = {name: ENTRIES[name].settings for name in names}
    return GuardMakers(
        {named[name]: make for name, make in text_makers(names, settings).items()},
        {named[name]: make for name, make in logprobs_makers(names, settings).items()},
        {named[name]: make for name, make in conversation_makers(names, settings).items()},
    )


def assemble_proxy(settings: Settings, router: Router | None = None) -> Proxy:
    """Raises UserError where the settings name no upstream, or one that is none."""
    bus, book = EventBus(), IncidentBook()
    policy = Policy(settings.guards, settings.brake, book, publish=bus.publish, replica=replica_name())
    bench = Bench(
        guard_makers(settings.guards),
        settings.guards,
        disabled=lambda guard, reason: bus.publish(GuardDisabled(guard, reason, time())),
    )
    chosen = settings.proxy
    parts = ProxyParts(
        chosen,
        router or router_of(chosen),
        bench,
        Judge(policy, bus.publish),
        FirstTokens(settings.guards.latency),
        Sessions(chosen.session_header, chosen.sessions),
    )
    proxy = Proxy(ProxyApp(parts), settings, bus, policy, bench, [bus.close])
    if (spool := open_spool(settings, bus, replica_name())) is not None:
        proxy.closers.append(spool.close)
    return proxy


def router_of(settings: ProxySettings) -> Router:
    if not settings.upstreams:
        raise UserError("no upstream: give --upstream http://engine:8000, or upstreams in [proxy] of checkengine.toml")
    return OneUpstream(Upstream.of(settings.upstreams[0]))


def proxy_settings(config: Path | None, upstreams: Sequence[str], host: str | None, port: int | None) -> Settings:
    """The configuration with what the command line says. Raises UserError for what cannot be used."""
    settings = load_settings(config)
    given = {"host": host, "port": port, "upstreams": tuple(upstreams) or None}
    changed = {name: value for name, value in given.items() if value is not None}
    try:
        proxy = ProxySettings.model_validate(settings.proxy.model_dump() | changed)
    except ValidationError as error:
        fault = error.errors()[0]
        raise UserError(f"--{fault['loc'][0]} {fault['input']!r}: {fault['msg']}") from error
    return settings.model_copy(update={"proxy": proxy})
