"""A process that tells an incident to a receiver that is away, and is then killed from outside."""

from __future__ import annotations

import threading
from multiprocessing.connection import Connection
from pathlib import Path

from checkengine.config import Settings
from checkengine.guards.bus import EventBus
from checkengine.guards.events import FindingRaised
from checkengine.guards.finding import Finding, Severity
from checkengine.telling import start_telling


def finding(incident: str) -> FindingRaised:
    return FindingRaised(Finding("logits.nonfinite", "s", Severity.ERROR, 5, 0, "nonfinite"), incident, 100.0, True)


def settings_of(folder: Path, port: int) -> Settings:
    return Settings(
        webhooks={
            "url": f"http://127.0.0.1:{port}/",
            "secret_file": folder / "secret",
            "allowed_networks": ["127.0.0.0/8"],
        },
        spool={"directory": folder / "spool"},
    )


def tell_until_killed(folder: Path, port: int, incidents: list[str], told: Connection) -> None:
    """Sends a sign once the incidents wait for their second attempt, and for ever waits."""
    bus = EventBus()
    telling = start_telling(settings_of(folder, port), bus)
    assert telling is not None
    for incident in incidents:
        bus.publish(finding(incident))
    told.recv()
    threading.Event().wait()
