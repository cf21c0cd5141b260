"""Metrics of engine cores on the `/metrics` of the process that serves HTTP."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from checkengine.dashboards.metric_pages import MetricsPage, PagesCollector


def engine(folder: Path, name: str, stops: int, share: float) -> None:
    """What one engine core has written."""
    registry = CollectorRegistry()
    Counter("stops_total", "Stops.", ["kind"], registry=registry).labels("nan").inc(stops)
    Gauge("share", "A share.", registry=registry).set(share)
    Histogram("seconds", "Seconds.", buckets=(1.0, 2.0), registry=registry).observe(1.5)
    (folder / f"{name}.prom").write_bytes(generate_latest(registry))


def scraped(folder: Path) -> str:
    registry = CollectorRegistry()
    registry.register(PagesCollector(folder))
    return generate_latest(registry).decode()


def test_counters_and_histograms_of_several_engines_are_summed_and_gauges_are_not(tmp_path: Path) -> None:
    engine(tmp_path, "1", 2, 0.25)
    engine(tmp_path, "2", 3, 0.5)
    text = scraped(tmp_path)
    assert 'stops_total{kind="nan"} 5.0' in text
    assert "share 0.5" in text
    assert 'seconds_bucket{le="2.0"} 2.0' in text
    assert "seconds_sum 3.0" in text
    assert text.count("# TYPE stops_total counter") == 1
    assert "_created" not in text


def test_a_page_that_cannot_be_read_costs_only_itself(tmp_path: Path) -> None:
    engine(tmp_path, "1", 2, 0.25)
    (tmp_path / "2.prom").write_bytes(b"\xff\xfe not text")
    (tmp_path / "3.prom").write_text("stops_total{kind=")
    assert 'stops_total{kind="nan"} 2.0' in scraped(tmp_path)


def test_no_pages_are_no_metrics_and_no_error(tmp_path: Path) -> None:
    assert scraped(tmp_path / "absent") == ""


def test_a_page_is_written_at_its_end_and_whole(tmp_path: Path) -> None:
    registry = CollectorRegistry()
    counter = Counter("stops_total", "Stops.", registry=registry)
    page = MetricsPage(registry, tmp_path / "pages", seconds=3600)
    counter.inc(4)
    page.close()
    assert "stops_total 4.0" in scraped(tmp_path / "pages")
    assert [path.suffix for path in (tmp_path / "pages").iterdir()] == [".prom"]


def test_a_page_is_written_again_and_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written = threading.Semaphore(0)
    monkeypatch.setattr(MetricsPage, "write", lambda self: written.release())
    page = MetricsPage(CollectorRegistry(), tmp_path, seconds=0.001)
    for _ in range(3):
        assert written.acquire(timeout=10)
    page.close()


def test_a_folder_that_is_gone_is_told_once_and_nothing_stops(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    page = MetricsPage(CollectorRegistry(), tmp_path / "pages", seconds=3600)
    (tmp_path / "pages").rmdir()
    page._write()
    page._write()
    page.close()
    assert len([record for record in caplog.records if "metrics are not told" in record.message]) == 1
