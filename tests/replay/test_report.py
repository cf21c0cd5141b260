from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest

from checkengine.guards.finding import Finding, Severity
from checkengine.replay.investigate import Investigation
from checkengine.replay.judge.verdict import SlotPlace, TestResult, Verdict, VerdictKind
from checkengine.replay.replayer import Replay, StepEquality
from checkengine.replay.report import render_html

NAME = "chatcmpl-<b>secret</b>"


def investigation(steps: int = 30) -> Investigation:
    finding = Finding("language.switch", NAME, Severity.WARNING, 40, 7, "language", evidence={"share": 0.5})
    words = f"slot 1,287 = one past the end of sequence {NAME} (length 519)"
    verdict = Verdict(
        VerdictKind.CODE_DEFECT,
        f"the paged kernel reads memory it does not own: {words}, in layers 0 to 29",
        (TestResult("fills", False, "step 3 gives other bits"), TestResult("repeat", True, "2 runs are bit-equal")),
        tuple(range(30)),
        (SlotPlace(1287, 40, 519, words),),
        NAME,
        3,
        55,
    )
    forced = Replay("paged", False, 11, "undo", "fingerprints and tokens")
    forced.strip = [StepEquality(11 + i, 1, int(i != 5)) for i in range(steps)]
    environment = {"model": "smollm2", "libraries": {"torch": "2.13"}, "threads": 2, "layout": {"kv0": [1]}}
    return Investigation("/data/b17", (finding,), environment, forced, finding, True, None, None, verdict, 12.5)


class Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.links: list[str] = []

    def handle_starttag(self, tag, attrs) -> None:
        self.tags.append(tag)
        self.links += [value or "" for name, value in attrs if name in ("src", "href", "action", "data")]


def rendered(**options) -> str:
    return render_html(investigation(), command="checkengine replay /data/b17", **options)


def test_the_report_is_one_file_that_asks_for_nothing():
    html = rendered()
    reader = Reader()
    reader.feed(html)
    assert reader.links == []
    assert not {"script", "link", "img", "iframe"} & set(reader.tags)
    assert not re.search(r"https?://|url\(|@import", html)
    assert "default-src 'none'" in html
    assert "prefers-color-scheme: dark" in html


def test_the_report_tells_verdict_evidence_place_and_how_to_run_it_again():
    html = rendered(confidential="full")
    assert "code defect" in html
    assert "step 3 gives other bits" in html
    assert "slot 1,287" in html
    assert "checkengine replay /data/b17" in html
    assert html.count('class="equal"') == 29
    assert html.count('class="other"') == 1
    assert "libraries: torch" in html
    assert "2.13" in html


@pytest.mark.parametrize("level", ["none", "default"])
def test_identifiers_do_not_leave_unless_the_report_is_full(level: str):
    html = rendered(confidential=level)
    assert "secret" not in html
    assert "/data/b17" not in html
    assert ("sequence-1" if level == "none" else "id-") in html


def test_a_name_with_markup_is_shown_as_text():
    html = rendered(confidential="full")
    assert "<b>secret</b>" not in html
    assert "&lt;b&gt;secret&lt;/b&gt;" in html


def test_a_report_of_very_many_steps_stays_within_two_mebibytes():
    html = render_html(investigation(steps=200_000), command="x", confidential="default")
    assert len(html.encode()) < 2 << 20
