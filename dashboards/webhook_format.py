"""What a webhook says: Alertmanager's payload (version 4), signed as standardwebhooks.com says."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from checkengine.guards.errors import UserError

SECRET_PREFIX = "whsec_"
LEAST_SECRET_BYTES = 24
MOST_SECRET_BYTES = 64
TOLERANCE_SECONDS = 300
"""A message whose timestamp is further away was recorded and sent again."""


class SignatureError(ValueError):
    """The message was not signed with any of the secrets, or not lately."""


@dataclass(frozen=True, slots=True)
class Alert:
    """One incident, in Alertmanager's words."""

    incident: str
    kind: str
    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    started: float
    """Unix seconds."""
    ended: float | None = None
    """None while it fires."""
    url: str = ""
    """Of the incident's page."""

    @property
    def fingerprint(self) -> str:
        """Of the labels, as Alertmanager's: the same while it fires and when it is resolved."""
        words = json.dumps(sorted(self.labels.items())).encode()
        return hashlib.sha256(words).hexdigest()[:16]

    def to_json(self) -> dict[str, Any]:
        return {
            "status": "firing" if self.ended is None else "resolved",
            "labels": dict(self.labels),
            "annotations": dict(self.annotations),
            "startsAt": timestamp(self.started),
            "endsAt": timestamp(self.ended) if self.ended is not None else "0001-01-01T00:00:00Z",
            "generatorURL": self.url,
            "fingerprint": self.fingerprint,
        }


def payload(alerts: Sequence[Alert], *, receiver: str = "checkengine", external_url: str = "") -> dict[str, Any]:
    """As Alertmanager sends it, for alerts of one kind."""
    group = {"alertname": alerts[0].labels["alertname"], "kind": alerts[0].kind}
    told = [alert.to_json() for alert in alerts]
    return {
        "version": "4",
        "groupKey": "{}:{" + ", ".join(f'{name}="{value}"' for name, value in sorted(group.items())) + "}",
        "truncatedAlerts": 0,
        "status": "firing" if any(alert["status"] == "firing" for alert in told) else "resolved",
        "receiver": receiver,
        "groupLabels": group,
        "commonLabels": common(alert.labels for alert in alerts),
        "commonAnnotations": common(alert.annotations for alert in alerts),
        "externalURL": external_url,
        "alerts": told,
    }


def common(maps: Iterable[Mapping[str, str]]) -> dict[str, str]:
    first, *others = [dict(each) for each in maps]
    return {key: value for key, value in first.items() if all(other.get(key) == value for other in others)}


def timestamp(seconds: float) -> str:
    whole = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))
    return f"{whole}.{int(seconds % 1 * 1000):03d}Z"


def secret_bytes(text: str) -> bytes:
    """Of `whsec_` and base64 of 24 to 64 bytes; UserError for anything else, which does not repeat the secret."""
    try:
        key = base64.b64decode(text.strip().removeprefix(SECRET_PREFIX), validate=True)
    except binascii.Error:
        key = b""
    if not text.strip().startswith(SECRET_PREFIX) or not LEAST_SECRET_BYTES <= len(key) <= MOST_SECRET_BYTES:
        raise UserError(
            f"a webhook's secret is {SECRET_PREFIX} and base64 of {LEAST_SECRET_BYTES} to {MOST_SECRET_BYTES} bytes"
        )
    return key


def signature(key: bytes, identifier: str, seconds: int, body: bytes) -> str:
    digest = hmac.new(key, f"{identifier}.{seconds}.".encode() + body, hashlib.sha256).digest()
    return "v1," + base64.b64encode(digest).decode()


def signed_headers(keys: Sequence[bytes], identifier: str, seconds: int, body: bytes) -> dict[str, str]:
    """One signature a key: while a secret is being replaced both are valid."""
    return {
        "webhook-id": identifier,
        "webhook-timestamp": str(seconds),
        "webhook-signature": " ".join(signature(key, identifier, seconds, body) for key in keys),
    }


def verify(keys: Sequence[bytes], headers: Mapping[str, str], body: bytes, now: float) -> None:
    """For receivers. Raises SignatureError."""
    try:
        identifier, sent = headers["webhook-id"], int(headers["webhook-timestamp"])
        given = headers["webhook-signature"].split()
    except (KeyError, ValueError):
        raise SignatureError("the message has no webhook-id, webhook-timestamp and webhook-signature") from None
    if abs(now - sent) > TOLERANCE_SECONDS:
        raise SignatureError(f"the message was signed {abs(now - sent):.0f} s from now")
    expected = [signature(key, identifier, sent, body) for key in keys]
    if not any(hmac.compare_digest(one.encode(), other.encode()) for one in given for other in expected):
        raise SignatureError("the message was signed with another secret, or changed")
