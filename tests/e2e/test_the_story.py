"""From a fault in a kernel to its verdict on a page: engine, finding, incident, metric, Prometheus, Alertmanager,
signed webhook, incident page in a browser, replay from there, verdict. The alert comes within thirty seconds."""

from __future__ import annotations

import ipaddress
import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect

sys.path.insert(0, str(Path(__file__).parent.parent / "dashboards"))
sys.path.insert(0, str(Path(__file__).parent.parent / "dashboards" / "web"))

from browser import chromium, opened
from monitoring import Prometheus, Received, Scraped, alertmanager, prometheus
from small_service import Service, listening

from checkengine.commands.dashboard import pieces_of
from checkengine.dashboards.rules.groups import GROUPS
from checkengine.dashboards.rules.rule import Group, Links, as_yaml
from checkengine.dashboards.web.app import Given
from checkengine.dashboards.web.settings import DashboardSettings
from checkengine.dashboards.webhook_format import secret_bytes, verify
from checkengine.dashboards.webhooks import Receiver, Webhooks, WebhookThread
from checkengine.guards.events import FindingRaised
from checkengine.replay.catalog import Catalog
from checkengine.replay_worker import ReplayWorker

SECRET = "whsec_" + "YWJj" * 8
LOOPBACK = [ipaddress.ip_network("127.0.0.0/8")]
MOST_SECONDS = 30.0
PATIENCE = 240_000
SETTINGS = DashboardSettings(requests_per_second=10_000)
SCREENSHOTS = os.environ.get("CHECKENGINE_SCREENSHOTS")
"""A folder to put pictures of the story into."""
EXACT = "CheckengineExactFault"


@dataclass
class Stage:
    service: Service
    catalog: Catalog
    base: str
    prometheus: Prometheus
    scraped: Scraped
    hook: Received
    alerts: Received
    page: Page


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    """Everything that a deployment has, on this machine, healthy so far."""
    with ExitStack() as stack:
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        patch.setenv("CHECKENGINE_STATE", str(tmp_path / "state"))
        hook, alerts = Received(), Received()
        service = Service(tmp_path)
        stack.callback(service.close)
        patch.chdir(tmp_path)
        collect(service, stack)
        catalog = Catalog.open(service.database)
        stack.callback(catalog.close)
        worker = ReplayWorker(catalog, [service.bundles])
        worker.start()
        stack.callback(worker.close)
        base = stack.enter_context(listening(SETTINGS, Given(catalog, [service.bundles], pieces_of)))
        tell_incidents(service, f"http://127.0.0.1:{hook.port}/hook", base, stack)
        scraped = Scraped(lambda: service.served.metrics.exposition()[0])
        stack.callback(scraped.close)
        rules = as_yaml([Group(group.name, group.rules, "1s") for group in GROUPS], Links(base))
        manager = stack.enter_context(alertmanager(tmp_path, f"http://127.0.0.1:{alerts.port}/alerts"))
        server = stack.enter_context(prometheus(tmp_path, {"engine": scraped.address}, rules, manager))
        browser = stack.enter_context(chromium())
        page, seen = stack.enter_context(opened(browser, base, viewport={"width": 1280, "height": 900}))
        page.set_default_timeout(PATIENCE)
        for letters in (4, 9, 12):
            service.ask(letters)
        scraped.wait(2)
        yield Stage(service, catalog, base, server, scraped, hook, alerts, page)
        assert seen.messages == []


def collect(service: Service, stack: ExitStack) -> None:
    stop = threading.Event()
    thread = threading.Thread(target=service.collector.run, args=(stop, 0.2))
    thread.start()
    stack.callback(thread.join)
    stack.callback(stop.set)


def tell_incidents(service: Service, url: str, base: str, stack: ExitStack) -> None:
    receiver = Receiver.parse("pager", url, [SECRET])
    webhooks = Webhooks([receiver], external_url=base, allowed=LOOPBACK)
    service.shim.assembly.bus.subscribe(webhooks.handle, name="webhooks", kinds=(FindingRaised,))
    stack.callback(WebhookThread(webhooks).close)


def picture(page: Page, name: str) -> None:
    if SCREENSHOTS:
        page.screenshot(path=Path(SCREENSHOTS) / f"{name}.png", full_page=False)


def fired(bodies: list[Any]) -> list[Any]:
    return [alert for body in bodies for alert in body["alerts"] if alert["labels"]["alertname"] == EXACT]


@pytest.mark.timeout(600)
def test_from_a_fault_to_the_verdict(stage: Stage) -> None:
    page, service = stage.page, stage.service
    page.goto("/")
    expect(page.locator("#status h1")).to_have_text("Everything is well")
    picture(page, "story-1-all-is-well")

    began = time.monotonic()
    answer = service.ask(24)
    assert answer["choices"][0]["finish_reason"] == "content_filter", "the guard stopped the faulty sequence"
    (body,) = stage.hook.wait_for(lambda bodies: len(bodies) >= 1)[:1]
    bodies = stage.alerts.wait_for(lambda told: bool(fired(told)))
    seconds = time.monotonic() - began
    assert seconds <= MOST_SECONDS, f"{seconds:.1f} s from the fault to both webhooks"

    _, headers, raw = stage.hook.posts[0]
    verify([secret_bytes(SECRET)], headers, raw, float(headers["webhook-timestamp"]))
    alert = fired(bodies)[0]
    assert alert["labels"]["kind"] == body["alerts"][0]["labels"]["kind"] == "logits.nonfinite"
    assert stage.prometheus.query('checkengine_incidents_total{kind="logits.nonfinite"} >= 1')

    # The first page has heard of it by itself; the alert's link leads to the list, the webhook's to the incident.
    expect(page.locator("#status h1")).to_have_text("1 incident is open", timeout=PATIENCE)
    picture(page, "story-2-an-incident")
    page.goto(alert["annotations"]["dashboard_url"])
    expect(page.locator("#list")).to_contain_text("NaN or infinity in raw logits on 1 sequence")
    page.goto(body["alerts"][0]["annotations"]["dashboard_url"])
    expect(page.locator("#incident")).to_contain_text("the guard quarantined 1 sequence and stopped 1 sequence")

    page.click("text=Replay and judge")
    expect(page.locator("#bundle-list")).to_contain_text("Verdict: code defect", timeout=PATIENCE)
    page.reload()
    expect(page.locator("main")).to_contain_text("attention of layer 1")
    picture(page, "story-3-the-verdict")

    page.click("button:text('Acknowledge')")
    expect(page.locator("#incident")).to_contain_text("acknowledged")
    page.goto("/")
    expect(page.locator("#status h1")).to_have_text("Everything is well")
