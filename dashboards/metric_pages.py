"""Metrics of one process on another one's `/metrics`, by way of a folder that both know.

For engines whose HTTP server is not the process that counts. Every writer keeps one text file there, in Prometheus'
own format, and replaces it whole; the reader sums counters and histograms over the files, and takes the largest of
gauges. Where prometheus-client runs in multiprocess mode it does the same by itself, and none of this is needed.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterable
from pathlib import Path

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_fd_to_metric_families
from prometheus_client.registry import Collector

logger = logging.getLogger("checkengine.metrics")

SUFFIX = ".prom"
SUMMED = ("counter", "histogram", "summary")
MOST_BYTES = 4 << 20
"""A larger file is no page of ours."""


class MetricsPage:
    """Writes a registry into the folder every `seconds`, and once more when it is closed."""

    def __init__(self, registry: CollectorRegistry, folder: Path | str, *, seconds: float = 1.0) -> None:
        """Raises OSError where the folder cannot be made."""
        self._registry = registry
        self._path = Path(folder) / f"{os.getpid()}{SUFFIX}"
        self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._seconds = seconds
        self._end = threading.Event()
        self._failed = False
        self._thread = threading.Thread(target=self._run, name="checkengine-metrics", daemon=True)
        self._thread.start()

    def write(self) -> None:
        """A reader sees the page before or the page after, never half of one."""
        draft = self._path.with_suffix(".new")
        draft.write_bytes(generate_latest(self._registry))
        draft.replace(self._path)

    def close(self) -> None:
        """The page stays: counters of a process that has ended still count."""
        self._end.set()
        self._thread.join(5.0)
        self._write()

    def _run(self) -> None:
        while not self._end.wait(self._seconds):
            self._write()

    def _write(self) -> None:
        try:
            self.write()
        except OSError as error:
            if not self._failed:
                logger.error("metrics are not told: %s cannot be written (%s)", self._path, error.strerror)
            self._failed = True
        else:
            self._failed = False


class PagesCollector(Collector):
    """Register it where `/metrics` is served. A page that cannot be read is left out of the scrape."""

    def __init__(self, folder: Path | str) -> None:
        self._folder = Path(folder)

    def describe(self) -> Iterable[Metric]:
        """Nothing: what the pages hold is known when they are there."""
        return ()

    def collect(self) -> Iterable[Metric]:
        together: dict[str, Metric] = {}
        for page in sorted(self._folder.glob(f"*{SUFFIX}")):
            for family in read_page(page):
                known = together.get(family.name)
                together[family.name] = family if known is None else joined(known, family)
        return together.values()


def read_page(page: Path) -> list[Metric]:
    try:
        if page.stat().st_size > MOST_BYTES:
            raise ValueError("too large")
        with page.open(encoding="utf-8") as opened:
            # A counter's time of creation is a gauge of its own in this format: it says nothing about a sum.
            return [each for each in text_fd_to_metric_families(opened) if not each.name.endswith("_created")]
    except (OSError, ValueError) as error:
        logger.error("%s is left out of the metrics: %s", page, error)
        return []


def joined(known: Metric, more: Metric) -> Metric:
    """`known` with the samples of `more` added to those of the same name and labels."""
    values = {(sample.name, tuple(sorted(sample.labels.items()))): sample for sample in known.samples}
    for sample in more.samples:
        key = sample.name, tuple(sorted(sample.labels.items()))
        old = values.get(key)
        if old is not None:
            value = old.value + sample.value if known.type in SUMMED else max(old.value, sample.value)
            sample = sample._replace(value=value)
        values[key] = sample
    known.samples = list(values.values())
    return known
