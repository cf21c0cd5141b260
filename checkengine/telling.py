"""Webhooks of a process, from its settings."""

from __future__ import annotations

import ipaddress
import logging
from collections.abc import Mapping
from pathlib import Path

from checkengine.config import Settings
from checkengine.dashboards.mailbox import Mailbox
from checkengine.dashboards.settings import WebhookSettings
from checkengine.dashboards.webhooks import Receiver, Webhooks, WebhookThread
from checkengine.guards.bus import EventBus
from checkengine.guards.errors import UserError
from checkengine.guards.events import FindingRaised

logger = logging.getLogger("checkengine.webhooks")

MOST_SECRET_FILE_BYTES = 4096


class Telling:
    """Sends incidents of a bus until closed."""

    def __init__(self, webhooks: Webhooks, bus: EventBus, mailbox: Mailbox | None = None) -> None:
        self.webhooks, self._mailbox = webhooks, mailbox
        bus.subscribe(webhooks.handle, name="webhooks", kinds=(FindingRaised,))
        self._thread = WebhookThread(webhooks)

    def notifications(self) -> Mapping[tuple[str, str], int]:
        """As metrics ask for it."""
        return {("webhook", outcome): count for outcome, count in self.webhooks.counts.items()}

    def close(self) -> None:
        """What is not delivered by then waits in the mailbox for the next process."""
        self._thread.close()
        if self._mailbox is not None:
            self._mailbox.close()


def start_telling(settings: Settings, bus: EventBus) -> Telling | None:
    """None where no receiver is configured. Raises UserError for a URL or a secret that cannot be used."""
    chosen = settings.webhooks
    if chosen.url is None:
        return None
    networks = [ipaddress.ip_network(network) for network in chosen.allowed_networks]
    receiver = Receiver.parse("webhook", chosen.url, secrets_of(chosen))
    mailbox = open_mailbox(chosen.directory or settings.spool.directory / "webhooks")
    webhooks = Webhooks(
        [receiver],
        external_url=chosen.dashboard_url,
        allowed=networks,
        most_waiting=chosen.most_waiting,
        mailbox=mailbox,
    )
    return Telling(webhooks, bus, mailbox)


def open_mailbox(directory: Path) -> Mailbox | None:
    """None where the disk refuses: incidents are told all the same."""
    try:
        return Mailbox(directory)
    except OSError as error:
        logger.error("webhooks cannot be kept in %s and will not survive a restart: %s", directory, error)
        return None


def secrets_of(settings: WebhookSettings) -> list[str]:
    file = settings.secret_file or Path()
    try:
        with file.open() as opened:
            text = opened.read(MOST_SECRET_FILE_BYTES)
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"the webhook's secret cannot be read from {file}: {error}") from error
    if not (secrets := [line.strip() for line in text.splitlines() if line.strip()]):
        raise UserError(f"{file} holds no secret: write whsec_ and base64 of 24 to 64 random bytes into it")
    return secrets
