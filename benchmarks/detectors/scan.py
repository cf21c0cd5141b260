"""How fast `checkengine scan` reads public replies: with all guards that read text, and with none."""

from __future__ import annotations

import gzip
import tempfile
import time
from itertools import islice
from pathlib import Path
from typing import Any

from checkengine.benchmarks.detectors import DetectorOptions
from checkengine.benchmarks.detectors.replies import FILE, replies
from checkengine.benchmarks.figure import figure
from checkengine.guards.settings import GuardsSettings
from checkengine.scanning.registry import chosen_guards
from checkengine.scanning.scan import Scan, Totals
from checkengine.scanning.workers import Setup

RECORDS, RECORDS_QUICK = 6000, 1000
WARM_RECORDS = 50
"""Before the measured ones: models load and kernels compile there."""


def figures(options: DetectorOptions) -> list[dict[str, Any]]:
    """CPU time of one process; a record is a reply of about 100 tokens."""
    if not replies(options) or options.data is None:
        return []
    records = RECORDS_QUICK if options.quick else RECORDS
    settings = GuardsSettings()
    guards = chosen_guards((), settings)
    with tempfile.TemporaryDirectory() as folder:
        first = sample(options.data / FILE, Path(folder) / "first.jsonl", WARM_RECORDS)
        path = sample(options.data / FILE, Path(folder) / "replies.jsonl", records)
        _scanned(first, Setup(guards, settings))
        bare_seconds, bare = _scanned(path, Setup((), settings))
        seconds, totals = _scanned(path, Setup(guards, settings))
    megabytes = bare.bytes / 1e6
    found = [
        figure("scan.all guards", totals.records / seconds, "records/s", 1000.0, at_least=True),
        figure("scan.all guards, text", megabytes / seconds, "MB/s", 0.5, at_least=True),
        figure("scan.without a guard", megabytes / bare_seconds, "MB/s", 10.0, at_least=True),
        figure("scan.guards that failed", totals.failures.total(), "records", 0) | {"which": dict(totals.failures)},
    ]
    account = totals.account
    for guard in sorted(account.records):
        each = account.nanoseconds[guard] / max(1, account.timed[guard]) / 1e3
        found.append(figure(f"scan.of which {guard}", each, "µs/record", 1000.0))
    return found


def sample(source: Path, target: Path, records: int) -> str:
    """Every n-th line, so that all models and languages are in it."""
    with gzip.open(source, "rb") as lines:
        every = max(1, sum(1 for _ in lines) // records)
    with gzip.open(source, "rb") as lines, target.open("wb") as file:
        file.writelines(islice(lines, 0, None, every))
    return str(target)


def _scanned(path: str, setup: Setup) -> tuple[float, Totals]:
    scan = Scan(setup, lambda line: None, lambda line: None)
    began = time.process_time()
    totals = scan.run([path])
    return time.process_time() - began, totals
