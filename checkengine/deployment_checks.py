"""Does a deployment work from end to end? One sentence a check, and what to do where it does not.

Nothing is changed: no table is upgraded, no directory made, nothing is sent but a connection to what is configured.
"""

from __future__ import annotations

import fcntl
import ipaddress
import json
import os
import shutil
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from checkengine.config import Settings
from checkengine.guards.errors import UserError, one_line

LEAST_FREE_BYTES = 1 << 30
SILENT_SECONDS = 120.0
"""A replica that told nothing of itself for so long is gone or cannot write."""
TIMEOUT = 5.0


@dataclass(frozen=True, slots=True)
class Check:
    name: str
    ok: bool
    words: str
    """A sentence; where it is not ok, with what to do."""


def deployment_checks(settings: Settings, *, prometheus: str = "", now: float | None = None) -> list[Check]:
    """Of this machine, as `settings` describe it. `prometheus` is the URL of a Prometheus that should know it."""
    checks: list[Callable[[], Iterator[Check]]] = [
        lambda: directories(settings),
        lambda: collecting(settings),
        lambda: catalog(settings, time.time() if now is None else now),
        lambda: telling(settings),
        *([lambda: scraped(prometheus)] if prometheus else []),
    ]
    return [check for group in checks for check in group()]


def directories(settings: Settings) -> Iterator[Check]:
    for name, directory in (("spool", settings.spool.directory), ("bundles", settings.capture.directory)):
        place = nearest(directory.absolute())
        if not os.access(place, os.W_OK):
            yield Check(name, False, f"{directory} cannot be written by this user: change its owner or [{name}]")
        elif (free := shutil.disk_usage(place).free) < LEAST_FREE_BYTES:
            yield Check(
                name, False, f"{directory} has {free >> 20} MiB left: make room, or records and captures are lost"
            )
        else:
            yield Check(name, True, f"{directory} can be written, {free >> 30} GiB are free")


def nearest(directory: Path) -> Path:
    """The directory, or the one in which it would be made."""
    return next(path for path in (directory, *directory.parents) if path.exists())


def collecting(settings: Settings) -> Iterator[Check]:
    directory = settings.spool.directory
    spools = list(directory.glob("*.spool")) if directory.is_dir() else []
    if not spools:
        yield Check("collector", True, f"{directory} holds no spool: no engine has run here, or all is collected")
        return
    waiting = sum(path.stat().st_size for path in spools)
    if is_held(directory / "collector.lock"):
        yield Check("collector", True, f"a collector runs on {directory}, {waiting >> 10} KiB in {len(spools)} spools")
    else:
        words = f"{len(spools)} spools wait in {directory} and no collector runs: start checkengine collect"
        yield Check("collector", False, words)


def is_held(lock: Path) -> bool:
    try:
        descriptor = os.open(lock, os.O_RDONLY)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def catalog(settings: Settings, now: float) -> Iterator[Check]:
    from checkengine.replay.catalog import Catalog, register
    from checkengine.replay.catalog.health import examine

    url = settings.catalog.url
    if "://" not in url and not Path(url).exists():
        yield Check("catalog", True, f"{url} is not there yet: the first engine or collector makes it")
        return
    try:
        opened = Catalog.open(url, upgraded=False)
        health = examine(opened)
    except Exception as error:
        yield Check("catalog", False, one_line(f"the catalog cannot be read ({error}): check [catalog] url"))
        return
    if health.problems:
        yield from (Check("catalog", False, problem) for problem in health.problems)
        opened.close()
        return
    yield Check("catalog", True, f"the catalog is whole, at revision {health.revision}")
    with opened.reading() as session:
        rows = [row for row in register.replicas(session) if row.state != "gone"]
    opened.close()
    silent = [row.name for row in rows if now - row.last_seen > SILENT_SECONDS]
    if silent:
        words = f"{len(silent)} of {len(rows)} replicas have told nothing for {SILENT_SECONDS:.0f} s"
        yield Check("replicas", False, f"{words}: {', '.join(silent[:5])}; are they running, and their collectors?")
    elif rows:
        yield Check("replicas", True, f"{len(rows)} replicas tell of themselves")


def telling(settings: Settings) -> Iterator[Check]:
    if (endpoint := settings.traces.otlp_endpoint) is not None:
        yield reachable("traces", endpoint, "[traces] otlp_endpoint")
    if settings.webhooks.url is not None:
        yield webhook(settings)


def reachable(name: str, url: str, setting: str) -> Check:
    parts = urlsplit(url)
    port = parts.port or {"http": 80, "https": 443}[parts.scheme]
    try:
        socket.create_connection((parts.hostname or "", port), TIMEOUT).close()
    except OSError as error:
        return Check(name, False, f"{parts.hostname}:{port} does not answer ({error}): check {setting}")
    return Check(name, True, f"{parts.hostname}:{port} answers")


def webhook(settings: Settings) -> Check:
    from checkengine.dashboards.safe_post import judged, resolve
    from checkengine.dashboards.webhooks import Receiver
    from checkengine.telling import secrets_of

    chosen = settings.webhooks
    try:
        target = Receiver.parse("webhook", chosen.url or "", secrets_of(chosen)).target
        allowed = [ipaddress.ip_network(network) for network in chosen.allowed_networks]
        address = judged(resolve(target.host, target.port), allowed)
        socket.create_connection((address, target.port), TIMEOUT).close()
    except UserError as error:
        return Check("webhook", False, one_line(str(error)))
    except OSError as error:
        return Check("webhook", False, f"the webhook's receiver does not answer ({error}): check [webhooks] url")
    return Check("webhook", True, f"{target.host}:{target.port} answers and may be sent to")


def scraped(prometheus: str) -> Iterator[Check]:
    """Does it scrape a checkengine, and has it the rules?"""
    try:
        targets = ask(prometheus, "query?query=checkengine_build_info")["result"]
        groups = ask(prometheus, "rules")["groups"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        yield Check("prometheus", False, one_line(f"{prometheus} does not answer as Prometheus does ({error})"))
        return
    if targets:
        yield Check("prometheus", True, f"it scrapes {len(targets)} processes of checkengine")
    else:
        yield Check("prometheus", False, "it scrapes no checkengine: add the engines' /metrics to its scrape_configs")
    found = {rule["name"] for group in groups for rule in group["rules"]}
    missing = sorted(alert_names() - found)
    if missing:
        words = f"it lacks {len(missing)} of our alerts ({missing[0]}…): load what checkengine alerts rules prints"
        yield Check("rules", False, words)
    else:
        yield Check("rules", True, "it has all of our alerts")


def alert_names() -> set[str]:
    from checkengine.dashboards.rules.groups import alerts

    return {alert.name for alert in alerts()}


def ask(prometheus: str, path: str) -> Any:
    if urlsplit(prometheus).scheme not in ("http", "https"):
        raise ValueError("its URL begins with http:// or https://")
    with urllib.request.urlopen(f"{prometheus.rstrip('/')}/api/v1/{path}", timeout=TIMEOUT) as answer:
        return json.load(answer)["data"]
