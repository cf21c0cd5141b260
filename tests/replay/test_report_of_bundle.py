"""A report of a bundle: what it tells, what it keeps to itself, and that nothing in it is taken for markup."""

from __future__ import annotations

import re
import shutil
import subprocess
import time
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from small_engine import SmallEngine, SmallExecutor, SmallFault
from typer.testing import CliRunner

from checkengine.commands import report as report_command
from checkengine.guards.finding import Finding, Severity
from checkengine.replay.bundle import BundleReader, append_result, erase_content, write_bundle
from checkengine.replay.capture import Capture
from checkengine.replay.investigate import investigate
from checkengine.replay.report import facts_of_bundle, newest_result, render, result_json
from checkengine.replay.report.names import plain
from checkengine.replay.report.slots import slot_map

FAULT = SmallFault("over_read", remainder=1)
HOSTILE = '"><script>alert(1)</script>\u202egnp.exe\u200b\x00&lt;'
PIECES = [b"the ", "мир".encode(), "世界".encode(), HOSTILE.encode(), b"x" * (1 << 20)]


@pytest.fixture(scope="module", autouse=True)
def own_state(tmp_path_factory: pytest.TempPathFactory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CHECKENGINE_STATE", str(tmp_path_factory.mktemp("state")))
        yield


def faulty_capture(name: str) -> tuple[SmallEngine, Capture]:
    engine = SmallEngine(FAULT, seed=3)
    engine.run(30)
    handle = int(engine.records[-1].handles[0])
    finding = Finding("language.switch", name, Severity.WARNING, 27, 2, "language", evidence={"share": 0.5})
    later = replace(finding, kind="text.salad", step=29)
    capture = engine.capture([handle], first=8, undo_from=8, findings=(finding, later))
    capture.window.starts[handle] = replace(capture.window.starts[handle], name=name)
    capture.time, capture.incident = 1.7e9, "incident-17"
    return engine, capture


def judged_bundle(folder: Path, name: str) -> Path:
    engine, capture = faulty_capture(name)
    found = investigate(capture, SmallExecutor(engine.model, FAULT), None)
    path = write_bundle(capture, folder, content="full")
    append_result(path, result_json(found))
    return path


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return judged_bundle(tmp_path_factory.mktemp("bundles"), "chatcmpl-secret")


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return judged_bundle(tmp_path_factory.mktemp("hostile"), HOSTILE)


def report_of(path: Path, level: str = "default", **options) -> str:
    options = {"pieces": lambda token: PIECES[token % len(PIECES)], "here": {"threads": 2}} | options
    facts = facts_of_bundle(BundleReader(path), newest_result(path), confidential=level, **options)  # type: ignore
    facts.commands = [("Replay:", f"checkengine replay {path}")]
    return render(facts, level)  # type: ignore[arg-type]


class Reader(HTMLParser):
    """Tags, attributes and text as a browser would see them."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.classes: list[str] = []
        self.titles: list[str] = []
        self.text = ""
        self.feed(html)

    def handle_starttag(self, tag, attrs) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}
        self.classes += (dict(attrs).get("class") or "").split()
        self.titles += [value for name, value in attrs if name == "title" and value]

    def handle_data(self, data) -> None:
        self.text += data


def test_the_report_of_a_judged_bundle_tells_verdict_tests_place_tokens_and_slots(bundle: Path) -> None:
    result = newest_result(bundle)
    assert result is not None
    seen = Reader(report_of(bundle, "full"))
    assert result["verdict"]["kind"] == "code defect"
    assert result["verdict"]["sentence"][:60] in seen.text
    for test in result["verdict"]["tests"]:
        assert test["detail"] in seen.text
        assert test["rules_out"] in seen.text
    assert "language.switch" in seen.text
    assert "text.salad" in seen.text
    assert seen.classes.count("read") == len(result["verdict"]["slots"]) + 2  # two of them in legends
    assert any("read without right" in title for title in seen.titles)
    assert any(re.search(r"entropy \d.*margin \d", title) for title in seen.titles)
    assert "Cyrillic" in seen.text
    assert "incident-17" in seen.text
    assert f"checkengine replay {bundle}" in seen.text


def test_the_slot_that_was_read_is_drawn_beside_its_owner(bundle: Path) -> None:
    result = newest_result(bundle)
    assert result is not None
    reader = BundleReader(bundle)
    window, pages = reader.window(), reader.json("kv/pages.json")
    verdict = result["verdict"]
    (handle,) = window.handles_of(verdict["sequence"])
    guilty = [place["slot"] for place in verdict["slots"]]
    drawn = slot_map(window, pages["blocks"], pages["block_size"], handle, verdict["step"], guilty)
    assert drawn is not None
    table = window.tables_at(verdict["step"])[handle].tolist()
    record = next(record for record in window.records if record.step == verdict["step"])
    row = record.handles.tolist().index(handle)
    length = int(record.starts[row] + record.query_lengths[row])
    cells = {
        page.block * pages["block_size"] + offset: cell
        for page in drawn.pages
        for offset, cell in enumerate(page.cells)
    }
    assert sum(cell.state in ("own", "shared") for cell in cells.values()) == length
    for slot in guilty:
        assert cells[slot].read
        assert cells[slot].state != "own"
    assert [page.block for page in drawn.pages][: len(table)] == table


@pytest.mark.parametrize("level", ["none", "default"])
def test_names_places_and_text_stay_here_unless_the_report_is_full(bundle: Path, level: str) -> None:
    html = report_of(bundle, level)
    for private in ("chatcmpl-secret", "secret", str(bundle), "alert(1)", "мир"):
        assert private not in html
    assert "incident-17" not in html
    seen = Reader(html)
    assert ("sequence-1" if level == "none" else "id-") in seen.text
    assert any("entropy" in title for title in seen.titles) == (level == "default")


def test_without_identifiers_the_content_is_not_opened(bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(self) -> None:
        raise AssertionError("opened")

    monkeypatch.setattr(BundleReader, "_open_content", refused)
    assert "code defect" in report_of(bundle, "none")


@pytest.mark.parametrize("level", ["none", "default", "full"])
def test_hostile_names_and_tokens_are_shown_as_text(hostile: Path, level: str) -> None:
    html = report_of(hostile, level)
    seen = Reader(html)
    allowed = {
        "html",
        "head",
        "meta",
        "title",
        "style",
        "body",
        "p",
        "h1",
        "h2",
        "h3",
        "table",
        "thead",
        "tbody",
        "tr",
        "th",
        "td",
        "b",
    }
    assert seen.tags <= allowed | {"span", "i", "div", "svg", "line", "circle", "pre", "bdi"}
    assert not any(name.startswith("on") or name in ("src", "href", "style") for name in seen.attributes)
    for letter in "\u202e\u200b\x00":
        assert letter not in html
    assert len(html.encode()) < 1 << 20


def test_the_policy_lets_only_the_reports_own_style_in(bundle: Path) -> None:
    import base64
    import hashlib

    html = report_of(bundle)
    style = re.search(r"<style>(.*?)</style>", html, re.DOTALL)
    assert style is not None
    digest = base64.b64encode(hashlib.sha256(style[1].encode()).digest()).decode()
    assert f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'" in html
    assert not re.search(r"https?://|url\(|@import", html)


def test_what_differs_from_the_record_on_this_machine_comes_first(bundle: Path, tmp_path: Path) -> None:
    _, capture = faulty_capture("r")
    capture.environment = {"engine": "small", "threads": 1, "libraries": {"torch": "1.0", "numpy": "2"}}
    path = write_bundle(capture, tmp_path, content="none")
    html = report_of(path, "full", here={"threads": 2, "libraries": {"torch": "1.0"}})
    seen = Reader(html).text
    assert "not judged" in seen
    assert seen.index("threads") < seen.index("libraries: torch")
    assert "not looked at" in seen


def test_a_bundle_whose_content_was_erased_still_has_its_report(tmp_path: Path) -> None:
    path = judged_bundle(tmp_path, "chatcmpl-secret")
    erase_content(path)
    seen = Reader(report_of(path, "default"))
    assert "code defect" in seen.text
    assert "erased" in seen.text
    assert "read" in seen.classes
    assert any("entropy" in title for title in seen.titles)


def test_results_that_a_stranger_wrote_do_not_stop_the_report(bundle: Path) -> None:
    for result in (
        {
            "verdict": {"kind": None, "tests": [3, {}], "slots": [{}, 7], "step": "x", "layers": "no"},
            "tokens": [[1], "x"],
        },
        {"verdict": {"slots": [{"slot": 1e300}], "step": 10**30}, "strip": [[1, 2], ["a", "b", "c"]], "notes": 7},
        {"tokens": {"a": 1}, "rows": True, "first_difference": [1]},
    ):
        facts = facts_of_bundle(BundleReader(bundle), result, confidential="default", pieces=None)
        assert render(facts).startswith("<!doctype html>")


def test_a_report_is_built_at_once(bundle: Path) -> None:
    report_of(bundle)
    began = time.process_time()
    report_of(bundle, "full")
    assert time.process_time() - began < 2.0


def test_what_does_not_print_is_escaped_and_what_is_long_is_cut() -> None:
    assert plain("a\u202eb\u200b\n") == "a\\u202eb\\u200b\\n"
    assert plain("x" * 1_000_000).endswith("… (1,000,000 characters)")
    assert len(plain("x" * 1_000_000)) < 500


def test_chromium_shows_the_report_without_a_complaint(hostile: Path, tmp_path: Path) -> None:
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        pytest.skip("no chromium here")
    page = tmp_path / "report.html"
    page.write_text(report_of(hostile, "full"), encoding="utf-8")
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--enable-logging=stderr"]
    folder = f"--user-data-dir={tmp_path / 'profile'}"
    done = subprocess.run([chromium, *options, folder, "--dump-dom", page.as_uri()], capture_output=True, timeout=120)
    complaints = [line for line in done.stderr.decode().splitlines() if "CONSOLE" in line]
    assert complaints == []
    dom = done.stdout.decode()
    assert "<script" not in dom
    assert 'class="read"' in dom


def test_the_command_prints_the_path_and_says_why_nothing_was_judged(bundle: Path, tmp_path: Path) -> None:
    out = tmp_path / "report.html"
    told = CliRunner().invoke(report_command.app, [str(bundle), "-o", str(out)])
    assert (told.exit_code, told.stdout, told.stderr) == (0, f"{out}\n", "")
    assert out.read_text().count("<title>code defect") == 1
    _, capture = faulty_capture("r")
    bare = write_bundle(capture, tmp_path, content="none")
    told = CliRunner().invoke(report_command.app, [str(bare), "-o", str(out)])
    assert (told.exit_code, told.stdout) == (0, f"{out}\n")
    assert told.stderr.startswith("not judged: ")
    assert "holds no content" in told.stderr
    told = CliRunner().invoke(report_command.app, [str(bare), "-o", str(out), "--no-judge"])
    assert told.stderr == "not judged: it was not asked for\n"
