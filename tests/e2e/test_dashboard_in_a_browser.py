"""Every page in a real Chromium: both themes, phone and desk, hostile text, keyboard, and what people do there."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from playwright.sync_api import Browser, Page, expect

sys.path.insert(0, str(Path(__file__).parent.parent / "dashboards" / "web"))

from browser import PATIENCE, chromium, inaccessible, opened, overflow
from seeded import HOSTILE, Spool, hostile_everywhere, ordinary_day, write
from small_service import Service, listening

from checkengine.commands.dashboard import pieces_of
from checkengine.dashboards.web.app import Given
from checkengine.dashboards.web.settings import DashboardSettings
from checkengine.dashboards.web.tokens import new_token
from checkengine.guards.events import BundleWritten
from checkengine.replay.catalog import Catalog
from checkengine.replay_worker import ReplayWorker

DESK, PHONE = {"width": 1280, "height": 900}, {"width": 360, "height": 740}
SETTINGS = DashboardSettings(requests_per_second=10_000)
expect.set_options(timeout=PATIENCE)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as browser:
        yield browser


@pytest.fixture(scope="module", autouse=True)
def own_state(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CHECKENGINE_STATE", str(tmp_path_factory.mktemp("state")))
        yield


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory, own_state: None) -> Iterator[Service]:
    """An engine that serves and has had a fault; it goes on serving."""
    service = Service(tmp_path_factory.mktemp("service"))
    for letters in (4, 9, 20):
        service.ask(letters)
    service.heard(BundleWritten)
    yield service
    service.close()


@pytest.fixture(scope="module")
def catalog(service: Service) -> Iterator[Catalog]:
    """The engine's own, with an ordinary day of a fleet before it."""
    catalog = Catalog.open(service.database)
    ordinary_day(catalog, time.time() - 60, requests=1200)
    stop = threading.Event()
    collecting = threading.Thread(target=service.collector.run, args=(stop, 0.2))
    collecting.start()
    yield catalog
    stop.set()
    collecting.join()
    catalog.close()


@pytest.fixture(scope="module")
def base(service: Service, catalog: Catalog) -> Iterator[str]:
    with ExitStack() as stack:
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        patch.chdir(service.folder)
        worker = ReplayWorker(catalog, [service.bundles], repeats=0)
        worker.start()
        stack.callback(worker.close)
        yield stack.enter_context(listening(SETTINGS, Given(catalog, [service.bundles], pieces_of)))


@pytest.fixture
def page(browser: Browser, base: str) -> Iterator[Page]:
    with opened(browser, base, viewport=DESK) as (page, seen):
        yield page
        assert seen.messages == []
        assert seen.foreign == []


def every_address(service: Service) -> list[str]:
    bundle = next(service.bundles.iterdir()).name
    pages = ["/", "/incidents?status=all&prefix=hit", "/incidents", "/requests", "/requests?id=chat-00-0", "/drift"]
    pages += ["/drift/output_tokens", "/bundles", f"/bundles/{bundle}", "/replicas", "/replicas/gpu-3:100", "/controls"]
    return [*pages, "/controls/salad", "/history", "/incidents/inc-0", "/sign-in", "/no-such-page"]


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_every_page_is_whole_readable_and_accessible_at_a_desk_and_on_a_phone(
    browser: Browser, base: str, service: Service, theme: Any
) -> None:
    with opened(browser, base, viewport=DESK, color_scheme=theme) as (page, seen):
        page.goto("/")
        page.click("text=1 bundle")
        for address in [page.url.partition("#")[0], *every_address(service)]:
            page.set_viewport_size(DESK)
            answer = page.goto(address)
            assert answer is not None
            assert answer.status == (404 if address == "/no-such-page" else 200), address
            assert inaccessible(page) == [], address
            assert overflow(page) <= 0, address
            page.set_viewport_size(PHONE)
            assert overflow(page) <= 0, f"{address} on a phone"
            assert inaccessible(page) == [], f"{address} on a phone"
        assert seen.messages == []
        assert seen.foreign == []


def test_a_page_that_shuts_people_out_is_noticed(page: Page) -> None:
    page.goto("/history")
    # Markup as text would be refused by the page's own policy.
    page.evaluate("document.querySelector('main').appendChild(document.createElement('div')).role = 'slider'")
    told = inaccessible(page)
    assert any(each.startswith("axe aria-") for each in told), told


def test_hostile_text_in_every_field_runs_nothing_and_breaks_no_page(browser: Browser, tmp_path: Path) -> None:
    catalog = Catalog.open(tmp_path / "catalog.db")
    incident = hostile_everywhere(catalog, time.time())
    whole, series = quote(HOSTILE[:250], safe=""), quote(HOSTILE[:122], safe="")
    pages = ["/", "/incidents?status=all", "/requests", "/drift", "/bundles", "/replicas", "/controls", "/history"]
    pages += [f"/incidents/{quote(incident, safe='')}", f"/requests?id={whole}", f"/controls/{whole}"]
    pages += [f"/replicas/{whole}", f"/drift/{series}", f"/bundles/{whole}", f"/incidents?guard={whole}"]
    with (
        listening(SETTINGS, Given(catalog, [tmp_path])) as base,
        opened(browser, base, viewport=PHONE) as (page, seen),
    ):
        for address in pages:
            page.goto(address)
            assert page.evaluate("window.hacked") is None, address
            assert page.evaluate("getComputedStyle(document.body).display") == "block", address
            assert overflow(page) <= 0, address
            assert inaccessible(page) == [], address
        assert seen.messages == []
        assert seen.foreign == []
    catalog.close()


def test_from_the_first_page_it_is_two_clicks_to_the_bundle(page: Page) -> None:
    page.goto("/")
    expect(page.locator("#status h1")).to_contain_text("open")
    page.click("#status a:text('NaN or infinity in raw logits on 1 sequence')")
    page.click("#bundles a.mono")
    expect(page.locator("h1")).to_contain_text("Bundle")


def test_a_keyboard_is_enough(page: Page) -> None:
    page.goto("/")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the content"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"
    page.keyboard.press("Tab")
    focused = page.evaluate("document.activeElement.closest('#status') !== null")
    assert focused, "after the skip link comes what is wrong"
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    page.keyboard.press("Enter")
    page.wait_for_url("**/incidents/**")


def test_the_theme_can_be_chosen_and_stays(page: Page) -> None:
    page.goto("/")
    page.click("#theme")
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
    page.goto("/incidents")
    assert page.evaluate("getComputedStyle(document.documentElement).colorScheme") == "dark"
    page.click("#theme")
    page.reload()
    assert page.evaluate("getComputedStyle(document.documentElement).colorScheme") == "light"


def test_a_new_incident_comes_onto_the_page_by_itself_and_takes_nothing_out_of_hand(
    page: Page, catalog: Catalog
) -> None:
    page.goto("/incidents")
    page.locator("details#more summary").click()
    page.fill("input[name=request]", "half typed")
    spool = Spool("c" * 16)
    write(catalog, [spool.finding("inc-live", time.time(), "gpu-1:100", "chat-live-0", kind="kv.integrity")])
    expect(page.locator("#list")).to_contain_text("KV memory that is not what was written")
    assert page.input_value("input[name=request]") == "half typed"
    assert page.locator("details#more").get_attribute("open") is not None
    page.check("input[name=incident] >> nth=0")
    write(catalog, [spool.finding("inc-live-2", time.time(), "gpu-1:100", "chat-live-1", kind="audit.defect")])
    page.goto("/")
    expect(page.locator("#status")).to_contain_text("a sampled step that an audit convicted", ignore_case=True)


def test_many_are_acknowledged_at_once_muted_assigned_and_a_view_is_saved(page: Page) -> None:
    page.goto("/incidents?guard=tool_calls")
    page.check("[data-selects=incident]")
    page.fill("fieldset input[name=assignee]", "anna")
    page.click("fieldset button:text('Assign')")
    expect(page.locator("[role=status]").first).to_contain_text("Assigned")
    expect(page.locator("#list")).to_contain_text("anna")
    page.check("[data-selects=incident]")
    page.click("fieldset button:text('Acknowledge')")
    expect(page.locator("#list")).to_contain_text("acknowledged")
    page.fill("form[action='/views'] input[name=name]", "tools of the day")
    page.click("form[action='/views'] button")
    page.click("text=tools of the day")
    assert "guard=tool_calls" in page.url
    page.goto("/incidents?guard=language")
    page.check("[data-selects=incident]")
    page.click("fieldset button:text('Mute their cause')")
    page.goto("/incidents?status=muted")
    expect(page.locator("#list")).to_contain_text("switch of language")
    expect(page.locator("h2:text('Muted causes') + ul")).to_contain_text("by local")
    page.goto("/history?actor=local")
    for done in ("assign", "acknowledged", "mute"):
        expect(page.locator("tbody")).to_contain_text(done)


def test_a_comment_is_kept_as_it_was_written(page: Page) -> None:
    page.goto("/incidents/inc-1")
    page.fill("textarea[name=text]", "saw it <b>before</b> & after")
    page.click("button:text('Comment')")
    expect(page.locator("#comments")).to_contain_text("saw it <b>before</b> & after")


def test_a_replay_is_started_from_the_page_and_its_verdict_appears(page: Page) -> None:
    page.goto("/")
    page.click("#status a:text('NaN or infinity in raw logits on 1 sequence')")
    page.click("text=Replay and judge")
    expect(page.locator("#bundle-list")).to_contain_text("Verdict: code defect")
    page.reload()
    expect(page.locator("h2:text('What the bundle shows') ~ p b").first).to_contain_text("code defect")
    expect(page.locator("main")).to_contain_text("attention of layer 1")


def test_text_is_shown_to_an_admin_only_and_stands_in_the_access_log(page: Page) -> None:
    page.goto("/")
    page.click("#status a:text('NaN or infinity in raw logits on 1 sequence')")
    page.click("text=Show the text (this is logged)")
    expect(page.locator("#around")).to_contain_text("text")
    page.goto("/bundles")
    page.click("#log summary")
    expect(page.locator("#log")).to_contain_text("dashboard: local")


def test_the_engine_obeys_within_seconds(page: Page, service: Service) -> None:
    page.goto("/controls?replica=gpu-7:4711")
    began = time.monotonic()
    page.click("tr:has-text('repetition') button:text('Off')")
    expect(page.locator("#orders tbody tr").first).to_contain_text("by 1")
    assert not service.shim.assembly.pipeline.states()["repetition"].active
    page.click("button:text('Pull the brake')")
    expect(page.locator("#orders tbody tr").first).to_contain_text("by 1")
    assert service.shim.assembly.policy.action_of("nonfinite") == "observe"
    page.fill("#when", "entropy > 5.4")
    page.click("button:text('Arm')")
    expect(page.locator("#orders tbody tr").first).to_contain_text("by 1")
    captures = service.shim.assembly.captures
    assert captures is not None
    assert len(captures.armings.active(time.time())) == 1
    page.click("button:text('Drain')")
    expect(page.locator("#orders tbody tr").first).to_contain_text("by 1")
    assert service.client.post("/v1/completions", json={"model": "tiny", "prompt": "x"}).status_code == 503
    page.click("form:has(button[value='replica release']) button")
    expect(page.locator("#orders tbody tr").first).to_contain_text("by 1")
    assert service.ask(3)["choices"]
    assert time.monotonic() - began < 60


def test_without_scripts_pages_filter_and_act_all_the_same(browser: Browser, base: str) -> None:
    with opened(browser, base, viewport=PHONE, java_script_enabled=False) as (page, _):
        page.goto("/incidents")
        page.select_option("select[name=guard]", "salad")
        page.click("button:text('Show')")
        assert "guard=salad" in page.url
        page.check("input[name=incident] >> nth=0")
        page.click("button:text('Acknowledge')")
        expect(page.locator("#list")).to_contain_text("acknowledged")


def test_a_sign_in_leads_back_and_a_viewer_has_no_buttons(browser: Browser, catalog: Catalog, tmp_path: Path) -> None:
    token, line = new_token("vera", "viewer")
    file = tmp_path / "tokens"
    file.write_text(line)
    file.chmod(0o600)
    settings = DashboardSettings(sign_in=True, token_file=file)
    with (
        listening(settings, Given(catalog, [tmp_path])) as base,
        opened(browser, base, viewport=PHONE) as (page, seen),
    ):
        page.goto("/incidents/inc-0")
        assert "/sign-in" in page.url
        page.fill("#token", "wrong")
        page.click("main button")
        expect(page.locator("[role=alert]")).to_contain_text("lets nobody in")
        page.fill("#token", token)
        page.click("main button")
        assert page.url.endswith("/incidents/inc-0")
        assert page.locator("button:visible").all_inner_texts() == ["Dark or light", "Sign out"]
        page.click("text=Sign out")
        page.goto("/")
        assert "/sign-in" in page.url
        assert seen.messages == []
