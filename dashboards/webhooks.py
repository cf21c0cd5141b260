"""Incidents told to whoever listens: queued, signed, sent again with growing pauses, given up after a day.

Limits: the queue is bounded. With a mailbox it survives the death of the process. One thread sends, so a receiver that
hangs delays the others by its timeout.
"""

from __future__ import annotations

import heapq
import itertools
import json
import logging
import random
import threading
import time
import uuid
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from checkengine.dashboards.mailbox import Letter, Mailbox
from checkengine.dashboards.safe_post import Answer, Network, RefusedAddressError, Target, post
from checkengine.dashboards.webhook_format import Alert, payload, secret_bytes, signed_headers
from checkengine.guards.events import Event, FindingRaised

logger = logging.getLogger("checkengine.webhooks")

FIRST_PAUSE, LONGEST_PAUSE, GIVE_UP = 5.0, 3600.0, 86400.0
"""Seconds before the second attempt, between two attempts at most, and after which a message is given up."""
MOST_WAITING = 1000
TIMEOUT = 15.0
RETRIED = (408, 425, 429)
"""Besides 5xx: the receiver is busy; any other refusal will not get better."""
TOLD = 4096
"""Incidents that are remembered as told."""
Send = Callable[[Target, bytes, Mapping[str, str]], Answer]


@dataclass(frozen=True, slots=True)
class Receiver:
    """Where messages go. `keys`: one secret, or two while one replaces the other."""

    name: str
    target: Target
    keys: tuple[bytes, ...]

    @classmethod
    def parse(cls, name: str, url: str, secrets: Sequence[str]) -> Receiver:
        """UserError for a URL or a secret that cannot be used."""
        return cls(name, Target.parse(url), tuple(secret_bytes(secret) for secret in secrets))


@dataclass(order=True, slots=True)
class Message:
    due: float
    number: int
    receiver: Receiver = field(compare=False)
    body: bytes = field(compare=False)
    identifier: str = field(compare=False)
    born: float = field(compare=False)
    attempts: int = field(default=0, compare=False)


class Webhooks:
    """Thread-safe. `tell` never blocks and never raises; `run` sends until told to stop.

    Every message has one id in all its attempts, so that a receiver can drop what it got twice.
    """

    def __init__(
        self,
        receivers: Sequence[Receiver],
        *,
        external_url: str = "",
        allowed: Sequence[Network] = (),
        most_waiting: int = MOST_WAITING,
        mailbox: Mailbox | None = None,
        clock: Callable[[], float] = time.time,
        chance: Callable[[], float] = random.random,
        send: Send | None = None,
    ) -> None:
        """`external_url`: of checkengine's dashboard; `allowed`: networks that may be sent to although private;
        `mailbox` keeps what waits, and what earlier processes left there is sent as well."""
        self._receivers, self._external_url = tuple(receivers), external_url.rstrip("/")
        self._most, self._clock, self._chance = most_waiting, clock, chance
        self._send = send or (
            lambda target, body, headers: post(target, body, headers, timeout=TIMEOUT, allowed=allowed)
        )
        self._waiting: list[Message] = []
        self._numbers = itertools.count()
        self._wake = threading.Condition()
        self._told: OrderedDict[str, None] = OrderedDict()
        self._stopped = False
        self.counts: Counter[str] = Counter({"delivered": 0, "failed": 0, "dropped": 0, "retried": 0})
        """By outcome; failed is given up, dropped found the queue full."""
        self._mailbox = mailbox
        for letter in mailbox.inherit(most_waiting) if mailbox is not None else ():
            self._inherit(letter)

    def handle(self, event: Event) -> None:
        """Event of the bus: the first finding of an incident."""
        if not isinstance(event, FindingRaised) or not event.primary or not event.incident:
            return
        with self._wake:
            if event.incident in self._told:
                return
            self._told[event.incident] = None
            if len(self._told) > TOLD:
                self._told.popitem(last=False)
        self.tell([alert_of(event, self._external_url)])

    def tell(self, alerts: Sequence[Alert]) -> None:
        """Queue alerts of one kind for every receiver."""
        body = json.dumps(payload(alerts, external_url=self._external_url), separators=(",", ":")).encode()
        now = self._clock()
        with self._wake:
            for receiver in self._receivers:
                if self._stopped or len(self._waiting) >= self._most:
                    self.counts["dropped"] += 1
                    continue
                message = Message(now, next(self._numbers), receiver, body, f"msg_{uuid.uuid4().hex}", now)
                if self._mailbox is not None:
                    self._mailbox.put(Letter(message.identifier, receiver.name, body, now))
                heapq.heappush(self._waiting, message)
            self._wake.notify()

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def run(self) -> None:
        """Send what is due until `stop`; then one attempt at what waits. What a mailbox keeps is not given up then."""
        while (message := self._next()) is not None:
            self.attempt(message)
        for message in self._drain():
            self.attempt(message)

    def stop(self) -> None:
        with self._wake:
            self._stopped = True
            self._wake.notify()

    def send_due(self) -> int:
        """Send what is due now, on this thread; returns how many attempts that were."""
        attempts = 0
        while (message := self._pop_due()) is not None:
            self.attempt(message)
            attempts += 1
        return attempts

    def attempt(self, message: Message) -> None:
        now = self._clock()
        message.attempts += 1
        headers = signed_headers(message.receiver.keys, message.identifier, int(now), message.body)
        headers |= {"content-type": "application/json", "user-agent": "checkengine"}
        try:
            answer = self._send(message.receiver.target, message.body, headers)
        except RefusedAddressError as error:
            self._give_up(message, str(error))
        except OSError as error:
            self._again(message, type(error).__name__)
        else:
            self._judge(message, answer)

    def _judge(self, message: Message, answer: Answer) -> None:
        if 200 <= answer.status < 300:
            self.counts["delivered"] += 1
            self._forget(message)
        elif answer.status >= 500 or answer.status in RETRIED:
            self._again(message, f"status {answer.status}", answer.retry_after)
        else:
            # 410 Gone, a redirect, a refusal: the receiver's mind is made up.
            self._give_up(message, f"status {answer.status}")

    def _again(self, message: Message, reason: str, retry_after: str = "") -> None:
        now = self._clock()
        pause = min(FIRST_PAUSE * 2 ** (message.attempts - 1), LONGEST_PAUSE)
        pause *= 0.5 + self._chance()
        if retry_after.isdigit():
            pause = max(pause, min(float(retry_after), LONGEST_PAUSE))
        if self._stopped and self._mailbox is not None:
            return
        if now + pause - message.born > GIVE_UP or self._stopped:
            self._give_up(message, reason)
            return
        message.due = now + pause
        with self._wake:
            self.counts["retried"] += 1
            heapq.heappush(self._waiting, message)

    def _give_up(self, message: Message, reason: str) -> None:
        self.counts["failed"] += 1
        self._forget(message)
        name, attempts = message.receiver.name, message.attempts
        logger.error("webhook %s is given up after %d attempts: %s", name, attempts, reason)

    def _forget(self, message: Message) -> None:
        if self._mailbox is not None:
            self._mailbox.remove(message.identifier)

    def _inherit(self, letter: Letter) -> None:
        """A message that an earlier process had not delivered, under its old id."""
        for receiver in self._receivers:
            if receiver.name == letter.receiver:
                number, now = next(self._numbers), self._clock()
                heapq.heappush(
                    self._waiting, Message(now, number, receiver, letter.body, letter.identifier, letter.born)
                )
                return
        self.counts["failed"] += 1
        logger.error("a webhook for %s was left, and there is no such receiver now: it is given up", letter.receiver)
        if self._mailbox is not None:
            self._mailbox.remove(letter.identifier)

    def _next(self) -> Message | None:
        with self._wake:
            while not self._stopped:
                pause = self._waiting[0].due - self._clock() if self._waiting else None
                if pause is not None and pause <= 0:
                    return heapq.heappop(self._waiting)
                self._wake.wait(pause)
            return None

    def _pop_due(self) -> Message | None:
        with self._wake:
            due = self._waiting and self._waiting[0].due <= self._clock()
            return heapq.heappop(self._waiting) if due else None

    def _drain(self) -> list[Message]:
        with self._wake:
            waiting, self._waiting = self._waiting, []
            return sorted(waiting)


def alert_of(event: FindingRaised, dashboard: str) -> Alert:
    """Numbers and names only: evidence holds no content, and the sequence's name stays here."""
    finding = event.finding
    labels = {
        "alertname": "CheckengineIncident",
        "kind": finding.kind,
        "guard": finding.guard,
        "severity": finding.severity.name.lower(),
        "incident": event.incident,
    }
    words = {
        "summary": f"Incident {event.incident}: {finding.kind}.",
        "description": f"Guard {finding.guard} found {finding.kind} in step {finding.step}.",
        "dashboard_url": f"{dashboard}/incidents/{event.incident}" if dashboard else "",
    }
    return Alert(event.incident, finding.kind, labels, words, event.time, None, words["dashboard_url"])


class WebhookThread:
    """Sends on a thread of its own until closed."""

    def __init__(self, webhooks: Webhooks) -> None:
        self._webhooks = webhooks
        self._thread = threading.Thread(target=webhooks.run, name="checkengine-webhooks", daemon=True)
        self._thread.start()

    def close(self, timeout: float = 2 * TIMEOUT) -> None:
        self._webhooks.stop()
        self._thread.join(timeout)
