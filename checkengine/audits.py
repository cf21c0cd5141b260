"""Audits of one server or of all replicas, as one report."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from checkengine.guards.errors import UserError, one_line
from checkengine.replay.audit.coverage import StratumCount, summed

TIMEOUT_SECONDS = 10.0


@dataclass(slots=True)
class AuditReport:
    """Sums over processes."""

    strata: list[StratumCount] = field(default_factory=list)
    verdicts: dict[str, int] = field(default_factory=dict)
    convictions: list[dict[str, Any]] = field(default_factory=list)
    """Verdict, step, sequence, incident, replica, time; newest first."""
    replicas: int = 0
    judged: int = 0
    skipped: int = 0
    dropped: int = 0
    cpu_seconds: float = 0.0

    def to_dict(self) -> dict[str, Any]:
        return {
            "strata": [each.to_dict() for each in self.strata],
            "verdicts": self.verdicts,
            "convictions": self.convictions,
            "processes": self.replicas,
            "judged": self.judged,
            "skipped": self.skipped,
            "dropped": self.dropped,
            "cpu_seconds": self.cpu_seconds,
        }


def report_of(statuses: Iterable[Mapping[str, Any]], convictions: list[dict[str, Any]]) -> AuditReport:
    """`statuses`: as AuditSteps.status gives them, one a process. Raises UserError for what is none."""
    statuses = list(statuses)
    report = AuditReport(convictions=convictions, replicas=len(statuses))
    try:
        report.strata = summed(status["strata"] for status in statuses)
        for status in statuses:
            for verdict, count in status["verdicts"].items():
                report.verdicts[str(verdict)] = report.verdicts.get(str(verdict), 0) + int(count)
            report.judged += int(status["judged"])
            report.skipped += int(status["skipped"])
            report.dropped += int(status["dropped"])
            report.cpu_seconds += float(status["cpu_seconds"])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UserError(f"not a report of audits: {one_line(str(error))}") from None
    return report


def audits_of_server(url: str, token: str | None) -> AuditReport:
    """Since the server's start. Raises UserError where it does not answer or does not audit."""
    address = f"{url.rstrip('/')}/checkengine/audit"
    if not address.startswith(("http://", "https://")):
        raise UserError(f"--url {url}: give http:// or https:// and the server's address")
    request = urllib.request.Request(address)
    if token:
        request.add_header("Authorization", f"Bearer {token}")
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS) as answer:
            status = json.load(answer)
    except urllib.error.HTTPError as error:
        raise UserError(f"{address} answers {error.code}: {told(error)}") from None
    except (OSError, ValueError) as error:
        raise UserError(f"{address} cannot be read: {one_line(str(error))}") from None
    return report_of([status], list(status.get("convictions", [])))


def told(error: urllib.error.HTTPError) -> str:
    try:
        return str(json.load(error)["error"]["message"])
    except (OSError, ValueError, KeyError, TypeError):
        return str(error.reason)


def audits_in_catalog(config: Path | None) -> AuditReport:
    """Of every process that the catalog knows, over their lifetimes."""
    from checkengine.config import load_settings
    from checkengine.replay.catalog import Catalog
    from checkengine.replay.catalog.queries import audit_convictions, audit_coverage

    url = load_settings(config).catalog.url
    if "://" not in url and not Path(url).exists():
        raise UserError(f"there is no catalog {url}: give --config, or --url of a running server")
    catalog = Catalog.open(url)
    try:
        with catalog.reading() as session:
            statuses = [row.data for row in audit_coverage(session)]
            convictions = [
                {**row.data, "sequence": row.sequence, "replica": row.replica, "time": row.time}
                for row in audit_convictions(session)
            ]
    finally:
        catalog.close()
    return report_of(statuses, convictions)
