"""What pages say, over catalogs whose truth is known."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
import sqlalchemy as sa
from fastapi.testclient import TestClient
from pages_read import Seen
from seeded import GUARDS, NOW, Spool, ordinary_day, write

from checkengine.dashboards.rules.groups import GROUPS
from checkengine.dashboards.rules.rule import Alert
from checkengine.dashboards.web import charts, words
from checkengine.dashboards.web.drift_view import all_series, moved, newest_requests
from checkengine.dashboards.web.incident import target_of
from checkengine.dashboards.web.incident_view import causes_of
from checkengine.dashboards.web.traffic import POINTS, Kept, traffic
from checkengine.guards.finding import CAUSE_ORDER
from checkengine.guards.settings import DriftSettings
from checkengine.replay.catalog import Catalog, jobs, queries
from checkengine.replay.catalog.fleet import ControlRow, ReplicaRow
from checkengine.replay.catalog.marks import Actor
from checkengine.replay.catalog.models import BundleRow, IncidentRow

ME = Actor("anna", "operator")


def text(client: TestClient, address: str) -> str:
    answer = client.get(address)
    assert answer.status_code == 200, (address, answer.text[:300])
    return Seen(answer.text).text


def post(client: TestClient, address: str, **fields: Any) -> Any:
    csrf = Seen(client.get("/incidents").text).field("csrf")
    return client.post(address, data={"csrf": csrf, **fields})


def test_nothing_known_yet_says_so_and_alarms_nobody(client: TestClient) -> None:
    assert "Everything is well" in text(client, "/")
    for address in ("/incidents", "/requests", "/drift", "/bundles", "/replicas", "/controls", "/history"):
        assert client.get(address).status_code == 200, address


def test_the_first_page_tells_the_worst_first_and_where(client: TestClient, catalog: Catalog) -> None:
    ordinary_day(catalog, NOW)
    html = client.get("/").text
    seen = Seen(html).text
    assert "5 incidents are open" in seen
    assert "3 of 3 replicas serving" in seen
    assert html.index("NaN or infinity") < html.index("A loop of repeated tokens") < html.index("Word salad")
    assert "ecc_uncorrected 2" in seen
    assert "something is wrong" in seen


def test_a_silent_replica_is_a_fault_of_its_own(client: TestClient, catalog: Catalog, clock: Any) -> None:
    write(catalog, [Spool().replica("gpu-1:1", NOW)])
    assert "Everything is well" in text(client, "/")
    clock.now = NOW + 200
    assert "1 replica is silent" in text(client, "/")
    write(catalog, [Spool("c" * 16).replica("gpu-1:1", NOW + 199, state="gone")])
    clock.now += 10
    assert "silent" not in text(client, "/")


def test_clean_generations_burn_and_first_tokens_are_counted_by_half_hours(catalog: Catalog) -> None:
    spool = Spool()
    served = [spool.request(f"s-{n}-0", NOW - 100 - n, "r", ttft_seconds=0.1 + n / 1000) for n in range(200)]
    write(catalog, [*served, *(spool.finding("inc", NOW - 100, "r", f"s-{n}-0") for n in range(2))])
    with catalog.reading() as session:
        told = traffic(session, NOW)
    assert sum(told.requests) == 200
    assert told.clean_ratio(POINTS) == 0.99
    assert told.burn(2, 0.999) == pytest.approx(10.0)
    assert told.ttft_p95 == pytest.approx(0.29)
    assert len(told.requests) == len(told.ttft) == POINTS


def test_numbers_that_cost_are_kept_for_a_while() -> None:
    now, made = [0.0], []
    kept = Kept[int](10.0, lambda: now[0])
    for now[0] in (0.0, 9.9, 10.0, 5.0):  # the last one: a clock that was set back
        kept.get(lambda: made.append(1) or len(made))
    assert len(made) == 3


def test_findings_stand_in_the_order_of_causes_not_of_time(client: TestClient, catalog: Catalog) -> None:
    spool = Spool()
    write(
        catalog,
        [
            spool.finding("inc", NOW - 9, "r", "a", kind="text.salad", guard="salad", primary=False, severity=1),
            spool.finding(
                "inc", NOW - 8, "r", "a", kind="repetition.loop", guard="repetition", primary=False, severity=1
            ),
            spool.finding("inc", NOW - 7, "r", "a"),
        ],
    )
    with catalog.reading() as session:
        found = causes_of(queries.findings(session, "inc"))
    assert [each.kind for each in found] == ["logits.nonfinite", "repetition.loop", "text.salad"]
    assert [each.first for each in found] == [True, False, False]
    page = text(client, "/incidents/inc")
    assert page.index("NaN or infinity") < page.index("a loop of repeated tokens") < page.index("word salad")


def test_the_incident_page_tells_in_one_sentence_what_happened_and_what_was_done(
    client: TestClient, catalog: Catalog
) -> None:
    page = text(client, f"/incidents/{ordinary_day(catalog, NOW)}")
    assert (
        "NaN or infinity in raw logits on 6 sequences of replica gpu-3:100, first at step 405, output token 17 of "
        "chat-05-0; the guard stopped 1 sequence." in page
    )
    assert "driver 550.54 570.86 (2)" in page
    assert "counters.ecc_uncorrected 2 0 (2)" in page


def test_what_faulty_requests_share_is_told_as_an_association(client: TestClient, catalog: Catalog) -> None:
    chance, spool, records = random.Random(3), Spool(), []
    for number in range(240):
        length = chance.randint(20, 400)
        tokens = {"prompt_tokens": length, "output_tokens": 33 - (length % 32) if number < 24 else 32 + number % 7 * 2}
        if number >= 24 and (tokens["prompt_tokens"] + tokens["output_tokens"]) % 32 == 1:
            continue
        records.append(spool.request(f"s-{number}-0", NOW - number, "r", **tokens))
    records += [spool.finding("inc", NOW - 5, "r", f"s-{number}-0") for number in range(24)]
    write(catalog, records)
    page = text(client, "/incidents/inc")
    assert "What the faulty requests share: length modulo 32 is 1: 100% of faulty, 0% of healthy requests" in page
    assert "An association, not a cause" in page


@pytest.mark.parametrize("kind", [kind for kind in CAUSE_ORDER if kind != "drift"])
def test_every_kind_of_finding_has_words(kind: str) -> None:
    assert words.kind(kind) != kind


def test_filters_stand_in_the_address_and_match_all_that_they_say(client: TestClient, catalog: Catalog) -> None:
    ordinary_day(catalog, NOW)
    for query, expected in (
        ("guard=salad", {"Word salad"}),
        ("replica=gpu-3:100", {"NaN or infinity", "same tool call"}),
        ("severity=error", {"NaN or infinity", "loop of repeated"}),
        ("request=chat-00-0", {"NaN or infinity"}),
        ("time=1h", {"NaN or infinity", "loop of repeated"}),
        ("device=GPU-gpu-2:100&guard=language", {"switch of language"}),
        ("status=closed", set()),
        ("assignee=nobody&kind=text.salad", {"Word salad"}),
    ):
        page = Seen(client.get(f"/incidents?{query}").text)
        rows = " ".join(page.texts).partition("With the selected")[0].partition("What happened")[2]
        names = ("NaN or infinity", "loop of repeated", "Word salad", "same tool call", "switch of language")
        assert {name for name in names if name in rows} == expected, query


def test_pages_of_the_list_follow_each_other_without_gap_or_repetition(client: TestClient, catalog: Catalog) -> None:
    spool = Spool()
    write(catalog, [spool.finding(f"inc-{n:03d}", NOW - n, "r", f"s{n}") for n in range(120)])
    address, found = "/incidents", []
    while address:
        seen = Seen(client.get(address).text)
        found += [link for link in seen.links if link.startswith("/incidents/inc-") and "#" not in link]
        address = next((link for link in seen.links if "after=" in link), "")
    assert found == [f"/incidents/inc-{n:03d}" for n in range(120)]


def test_many_are_marked_at_once_and_each_change_is_on_record(client: TestClient, catalog: Catalog) -> None:
    ordinary_day(catalog, NOW)
    for do, more in (
        ("acknowledge", {}),
        ("assign", {"assignee": "anna"}),
        ("comment", {"text": "seen"}),
        ("close", {}),
    ):
        answer = post(client, "/incidents", incident=["inc-0", "inc-1"], do=do, back="?guard=salad&evil=1", **more)
        assert answer.status_code == 303
        assert answer.headers["location"].startswith("/incidents?guard=salad&note=")
    with catalog.reading() as session:
        rows = [session.get_one(IncidentRow, name) for name in ("inc-0", "inc-1", "inc-2")]
    assert [(row.status, row.assignee) for row in rows] == [("closed", "anna"), ("closed", "anna"), ("open", "")]
    history = text(client, "/history")
    for done in ("acknowledged", "assign", "comment", "closed"):
        assert history.count(f"{done} inc-") == 2
    assert "127.0.0.1" in history


def test_a_mute_is_of_the_cause_and_ends_by_itself(client: TestClient, catalog: Catalog) -> None:
    ordinary_day(catalog, NOW)
    assert post(client, "/incidents", incident="inc-0", do="mute", hours="8 hours", reason="known").status_code == 303
    assert "Muted causes" in text(client, "/incidents")
    assert "NaN" in text(client, "/incidents?status=muted")
    assert post(client, "/incidents", incident="inc-0", do="mute", hours="for ever").status_code == 400
    assert post(client, "/incident", incident="inc-0", do="unmute").status_code == 303
    assert "Muted causes" not in text(client, "/incidents")


@pytest.mark.parametrize(
    ("fields", "status"),
    [({"do": "explode"}, 400), ({"do": "comment", "text": "  "}, 400), ({"do": "comment", "text": "x" * 5000}, 400),
     ({"do": ["close", "open"]}, 400), ({}, 400)],
)  # fmt: skip
def test_what_a_form_cannot_mean_is_refused(
    client: TestClient, catalog: Catalog, fields: dict[str, Any], status: int
) -> None:
    ordinary_day(catalog, NOW)
    assert post(client, "/incident", incident="inc-0", **fields).status_code == status


def test_saved_views_are_ones_own_and_hold_nothing_but_filters(client: TestClient) -> None:
    answer = post(client, "/views", name="mine", query="?guard=salad&evil=javascript:1&status=all")
    assert urlsplit(answer.headers["location"]).path == "/incidents"
    assert parse_qs(urlsplit(answer.headers["location"]).query) == {
        "guard": ["salad"], "status": ["all"], "note": ["saved"],
    }  # fmt: skip
    assert "mine" in text(client, "/incidents")
    assert post(client, "/views", name="", query="").status_code == 400
    post(client, "/views/remove", name="mine")
    assert "mine" not in text(client, "/incidents")


def test_a_complaint_of_yesterday_is_found_by_any_of_its_ids(client: TestClient, catalog: Catalog) -> None:
    spool = Spool()
    told = {"request": "req-7", "response": "resp-7", "trace_id": "cd" * 16, "scores": {"entropy max": 9.5}}
    write(
        catalog,
        [
            spool.request("req-7-0", NOW - 90000, "gpu-1", **told),
            spool.finding("inc-7", NOW - 90000, "gpu-1", "req-7-0", kind="text.salad", guard="salad"),
        ],
    )
    for name in ("req-7", "req-7-0", "resp-7", "cd" * 16):
        page = text(client, f"/requests?id={name}")
        assert "entropy max 9.5" in page
        assert "Word salad on 1 sequence" in page
    assert "Nothing is known of it" in text(client, "/requests?id=req-8")


def test_a_change_of_what_is_served_shows_on_the_drift_page_with_the_slice_that_moved(
    client: TestClient, catalog: Catalog
) -> None:
    chance, spool, records = random.Random(5), Spool(), []
    for number in range(3000):
        sick = number >= 2000 and number % 3 == 0
        tokens = max(1, int(chance.gauss(260 if sick else 100, 20)))
        records.append(
            spool.request(f"s-{number}-0", NOW - 3000 + number, f"gpu-{number % 3}", output_tokens=tokens,
                          prompt_tokens=chance.randint(50, 500), ttft_seconds=chance.random())
        )  # fmt: skip
    write(catalog, records)
    with catalog.reading() as session:
        rows = newest_requests(session)
    series = {each.name: each for each in all_series(rows, DriftSettings(baseline=400))}
    (alarm, *_) = series["output_tokens"].alarms
    assert NOW - 1000 <= alarm.time <= NOW - 700
    assert not series["ttft_seconds"].alarms
    assert max(point.log_evidence for point in series["output_tokens"].points) >= series["output_tokens"].threshold
    found = moved(rows, alarm.time)
    assert found is not None
    assert found.slices[0][:2] == ("replica", "gpu-0")
    assert "changed" in text(client, "/drift")
    page = text(client, "/drift/output_tokens")
    assert "replica gpu-0" in page


def test_a_guard_shows_what_it_would_have_stopped_with_samples(client: TestClient, catalog: Catalog) -> None:
    ordinary_day(catalog, NOW)
    page = text(client, "/controls/repetition")
    assert "Would have stopped 5 sequences in 24h" in page
    assert "chat-10-0" in page
    acted = text(client, "/controls/nonfinite")
    assert "chat-00-0" not in acted, "this one was stopped"
    assert "tells of a guard of this name" in text(client, "/controls/unheard")


def test_an_order_is_written_down_for_whom_it_concerns(client: TestClient, catalog: Catalog) -> None:
    ordinary_day(catalog, NOW)
    assert post(client, "/controls", replica="gpu-1:100", order="guard off", name="salad").status_code == 303
    arm = {"order": "capture arm", "when": "entropy > 6", "level": "L2", "duration": "1 hour", "most": "5"}
    assert post(client, "/controls", replica="", **arm).status_code == 303
    with catalog.reading() as session:
        first, second = session.scalars(sa.select(ControlRow).order_by(ControlRow.id))
    assert (first.replica, first.subject, first.name, first.desired) == (
        "gpu-1:100",
        "guard",
        "salad",
        {"state": "off"},
    )
    assert second.desired == {"state": "arm", "when": "entropy > 6", "level": "L2", "seconds": 3600.0, "most": 5}
    assert (second.replica, second.expires) == ("*", NOW + 3600)
    page = text(client, "/controls")
    assert "guard salad off by 0 of 1" in page
    assert "by 0 of 3" in page
    write(catalog, [Spool("c" * 16).replica("gpu-1:100", NOW - 1, applied=first.id)])
    assert "guard salad off by 1" in text(client, "/controls")


@pytest.mark.parametrize(
    "fields",
    [{"order": "guard explode"}, {"order": "guard"}, {"order": ""}, {"order": "capture arm", "when": ""},
     {"order": "capture arm", "when": "a", "duration": "for ever"},
     {"order": "capture arm", "when": "a", "duration": "1 hour", "level": "L9"},
     {"order": "capture arm", "when": "a", "duration": "1 hour", "level": "L1", "most": "0"}],
)  # fmt: skip
def test_an_order_that_makes_no_sense_is_refused(client: TestClient, catalog: Catalog, fields: dict[str, str]) -> None:
    assert post(client, "/controls", **fields).status_code == 400
    with catalog.reading() as session:
        assert session.scalar(sa.select(sa.func.count()).select_from(ControlRow)) == 0


def test_a_bundle_that_is_elsewhere_is_neither_replayed_nor_erased_here(client: TestClient, catalog: Catalog) -> None:
    ordinary_day(catalog, NOW)
    told = {"bundle": "b-1", "incident": "inc-0", "path": "/far/b-1", "size_bytes": 5_000_000, "content": "full"}
    write(catalog, [Spool("d" * 16).record("bundle", NOW - 5, "gpu-3:100", "", told)])
    assert "5.0 MB" in text(client, "/bundles")
    assert "not on this machine" in text(client, "/bundles/b-1")
    assert "not on this machine" in text(client, "/incidents/inc-0")
    assert post(client, "/replays", bundle="b-1").status_code == 409
    assert post(client, "/bundle/erase", bundle="b-1", sure="yes").status_code == 409
    with catalog.reading() as session:
        assert session.get_one(BundleRow, "b-1").content == "full"
        assert jobs.jobs(session) == []


@pytest.mark.parametrize(
    ("device", "state", "target"),
    [("cpu", "serving", "local"), ("", "gone", "local"), ("cuda:0", "serving", "device:NVIDIA H200"),
     ("cuda:0", "drained", "replica:gpu-1")],
)  # fmt: skip
def test_a_replay_goes_where_its_numbers_can_be_the_same(device: str, state: str, target: str) -> None:
    row = BundleRow(id="b", incident_id="i", path="p", time=1.0, replica="gpu-1")
    assert target_of(device, row, ReplicaRow(name="gpu-1", state=state, device_name="NVIDIA H200")) == target
    assert target_of("cuda:0", row, None) == "device:cuda:0"


def test_what_is_no_bundle_is_never_erased(client: TestClient, catalog: Catalog, bundles: Path) -> None:
    ordinary_day(catalog, NOW)
    told = {"bundle": "b-1", "incident": "inc-0", "path": "x"}
    write(catalog, [Spool("d" * 16).record("bundle", NOW - 5, "r", "", told)])
    (bundles / "b-1" / "content").mkdir(parents=True)
    (bundles / "b-1" / "content" / "precious").write_text("x")
    assert post(client, "/bundle/erase", bundle="b-1").status_code == 400, "nobody ticked the box"
    assert post(client, "/bundle/erase", bundle="b-1", sure="yes").status_code == 409
    assert (bundles / "b-1" / "content" / "precious").exists()


def test_every_page_that_an_alert_leads_to_is_there(client: TestClient, catalog: Catalog) -> None:
    ordinary_day(catalog, NOW)
    alerts = [rule for group in GROUPS for rule in group.rules if isinstance(rule, Alert)]
    assert len(alerts) > 10
    for alert in alerts:
        address = alert.page
        for label, value in (("kind", "text.salad"), ("guard", GUARDS[0]), ("replica", "gpu-1:100")):
            address = address.replace(f"{{{{ $labels.{label} }}}}", value)
        assert "{{" not in address.replace("{{ $labels", "") or "$labels" in address
        assert client.get(address).status_code == 200, (alert.name, address)


def test_a_chart_has_words_for_who_cannot_see_it_and_scales_to_its_largest() -> None:
    spark = charts.sparkline([0, 5, 10, None], "Findings")
    assert 'aria-label="Findings"' in spark
    assert 'height="26.0"' in spark
    assert spark.count("<rect") == 3
    assert charts.sparkline([0, 0], "x") == ""
    assert charts.ratio_line([None, None], 0.99, "x") == ""
    plot = charts.evidence_chart([charts.Point(0.0, 0.0), charts.Point(10.0, 20.0)], 18.0, "E-value")
    assert ">1e0<" in plot
    assert plot.count("<circle") == 1


@pytest.mark.parametrize(
    ("seconds", "told"),
    [(0.25, "250 ms"), (4.2, "4.2 s"), (61, "61 s"), (1800, "30 min"), (7500, "2 h 5 min"), (7200, "2 h"),
     (400_000, "5 d"), (float("inf"), "?"), (-3, "0 ms")],
)  # fmt: skip
def test_times_are_told_as_people_tell_them(seconds: float, told: str) -> None:
    assert words.duration(seconds) == told


@pytest.mark.parametrize(
    ("ratio", "told"),
    [(1.0, "100 %"), (0.999, "99.9 %"), (0.99999, "99.999 %"), (0.5, "50 %"), (0.16666, "16.66 %"), (None, "–"),
     (0.0, "0 %")],
)  # fmt: skip
def test_a_share_is_never_rounded_up_to_all(ratio: float | None, told: str) -> None:
    assert words.share(ratio) == told
