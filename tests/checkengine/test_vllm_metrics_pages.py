"""Whose engine cores count on a process's `/metrics`: those that it started itself."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, Counter, generate_latest

from checkengine import vllm_guarding, vllm_setup
from checkengine.config import Settings
from checkengine.dashboards.metric_pages import MetricsPage
from checkengine.dashboards.metrics import MULTIPROCESS
from checkengine.guards import EventBus
from checkengine.guards.events import BundleWritten
from checkengine.vllm_plugin import PAGES
from checkengine.vllm_setup import Pages


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> CollectorRegistry:
    """The one that this process serves."""
    served = CollectorRegistry()
    monkeypatch.setattr(vllm_setup, "REGISTRY", served)
    monkeypatch.setattr(vllm_setup.tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv(PAGES, "")
    monkeypatch.delenv(PAGES)
    monkeypatch.delenv(MULTIPROCESS, raising=False)
    return served


def engine_core(folder: str, stops: int) -> None:
    """What one that was started with this folder in its environment has told."""
    counted = CollectorRegistry()
    Counter("stops_total", "Stops.", registry=counted).inc(stops)
    page = MetricsPage(counted, folder, seconds=3600)
    page.close()


def test_engines_of_another_process_do_not_count_where_its_folder_was_inherited(
    registry: CollectorRegistry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine_core(str(tmp_path), 7)
    monkeypatch.setenv(PAGES, str(tmp_path))
    Pages().share()
    assert os.environ[PAGES] != str(tmp_path), "its own engines are told another folder"
    engine_core(os.environ[PAGES], 2)
    assert "stops_total 2.0" in generate_latest(registry).decode()


def test_all_engines_that_one_process_starts_count_once_on_its_page(registry: CollectorRegistry) -> None:
    pages = Pages()
    pages.share()
    folder = os.environ.pop(PAGES)
    pages.share()
    assert os.environ[PAGES] == folder
    engine_core(folder, 2)
    assert "stops_total 2.0" in generate_latest(registry).decode()


def test_a_forked_process_serves_its_own_engines_and_leaves_its_parent_s_folder(
    registry: CollectorRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    pages = Pages()
    pages.share()
    parents = os.environ[PAGES]
    engine_core(parents, 7)
    monkeypatch.setattr(vllm_setup.os, "getpid", lambda: -1)
    pages._remove(parents, pages._process)
    assert Path(parents).is_dir()
    pages.share()
    assert os.environ[PAGES] != parents
    assert "stops_total" not in generate_latest(registry).decode()


def test_a_folder_that_cannot_be_made_costs_metrics_and_not_guards(
    registry: CollectorRegistry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(vllm_setup.tempfile, "tempdir", str(tmp_path / "file"))
    Pages().share()
    assert PAGES not in os.environ
    assert caplog.text.count("no metrics on /metrics") == 1
    monkeypatch.setenv(PAGES, str(tmp_path / "file" / "pages"))
    bus = EventBus()
    assert vllm_guarding.counted(bus) is None
    bus.close()
    assert caplog.text.count("no metrics on /metrics") == 2


def test_a_bundle_that_a_worker_writes_counts_on_the_server_s_page(
    registry: CollectorRegistry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pages: list[MetricsPage] = []
    buses: list[EventBus] = []

    def counted(bus: EventBus) -> None:
        buses.append(bus)
        page = of_a_bus(bus)
        assert page is not None
        pages.append(page)

    of_a_bus = vllm_guarding.counted
    monkeypatch.setattr(vllm_guarding, "counted", counted)
    Pages().share()
    box = vllm_guarding.black_box(Settings.model_validate({"spool": {"enabled": False}}))
    buses[0].publish(BundleWritten("b", "inc-1", str(tmp_path), 1.0))
    buses[0].close()
    pages[0].close()
    box.close()
    assert "checkengine_bundles_written_total 1.0" in generate_latest(registry).decode()
