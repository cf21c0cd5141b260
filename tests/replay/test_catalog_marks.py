"""What people do to incidents, on either database: done, counted and audited in one transaction."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session

sys.path.insert(0, str(Path(__file__).parent))

from catalog_records import finding

from checkengine.guards.errors import UserError
from checkengine.replay.catalog import Catalog, controls, jobs, marks
from checkengine.replay.catalog.fleet import EVERY_REPLICA
from checkengine.replay.catalog.incident_list import IncidentFilter, incident_page
from checkengine.replay.catalog.ingest import ingest
from checkengine.replay.catalog.marks import Actor
from checkengine.replay.catalog.models import IncidentRow

ANN = Actor("ann", "operator", "10.0.0.7")


@pytest.fixture
def filled(any_catalog: Catalog) -> Catalog:
    with any_catalog.writing() as session:
        ingest(session, [finding(n, incident=f"inc-{n}", kind="a" if n < 3 else "b") for n in range(1, 5)])
    return any_catalog


@pytest.fixture
def session(filled: Catalog) -> Iterator[Session]:
    with filled.writing() as session:
        yield session


def status(session: Session) -> dict[str, str]:
    session.expire_all()
    return {row.id: row.status for row in session.scalars(sa.select(IncidentRow).order_by(IncidentRow.id)).unique()}


def fingerprint(session: Session, incident: str) -> str:
    row = session.get(IncidentRow, incident)
    assert row is not None
    assert row.cause is not None
    return row.cause.fingerprint


def actions(session: Session) -> list[tuple[str, str, str]]:
    session.flush()
    return [(row.actor, row.action, row.subject) for row in reversed(marks.audit_log(session))]


def test_incidents_are_acknowledged_in_bulk_and_each_change_is_audited_once(session: Session) -> None:
    changed = marks.mark(session, ANN, ["inc-1", "inc-2", "inc-9"], "acknowledged", 50.0)
    assert changed == ["inc-1", "inc-2"]
    assert marks.mark(session, ANN, ["inc-1"], "acknowledged", 51.0) == []
    assert status(session) == {"inc-1": "acknowledged", "inc-2": "acknowledged", "inc-3": "open", "inc-4": "open"}
    assert actions(session) == [("ann", "acknowledged", "inc-1"), ("ann", "acknowledged", "inc-2")]
    (row, *_) = marks.audit_log(session, subject="inc-1")
    assert (row.role, row.remote, row.time, row.data) == ("operator", "10.0.0.7", 50.0, {"was": "open"})


def test_an_incident_that_is_opened_again_is_no_longer_acknowledged(session: Session) -> None:
    marks.mark(session, ANN, ["inc-1"], "acknowledged", 50.0)
    marks.mark(session, ANN, ["inc-1"], "open", 51.0)
    row = session.get(IncidentRow, "inc-1")
    assert row is not None
    assert row.acknowledged is None


def test_an_assignee_is_found_by_the_list_and_nobody_too(session: Session) -> None:
    assert marks.assign(session, ANN, ["inc-1", "inc-2"], "bob", 1.0) == ["inc-1", "inc-2"]
    assert marks.assign(session, ANN, ["inc-1"], "bob", 1.0) == []
    session.flush()
    mine = incident_page(session, IncidentFilter(assignee="bob"))
    nobodys = incident_page(session, IncidentFilter(assignee=""))
    assert sorted(row.id for row in mine.rows) == ["inc-1", "inc-2"]
    assert sorted(row.id for row in nobodys.rows) == ["inc-3", "inc-4"]


def test_a_mute_silences_its_fingerprint_now_and_later_and_no_other(filled: Catalog) -> None:
    with filled.writing() as session:
        assert marks.mute(session, ANN, fingerprint(session, "inc-1"), expires=1000.0, time=20.0, reason="known") == 2
        assert status(session) == {"inc-1": "muted", "inc-2": "muted", "inc-3": "open", "inc-4": "open"}
    with filled.writing() as session:
        late = finding(9, incident="inc-5", kind="a", time=500.0, replica="another")
        ingest(session, [late, finding(10, incident="inc-6", kind="a", time=1500.0)])
        assert status(session)["inc-5"] == "muted"
        assert status(session)["inc-6"] == "open"
        assert [row.reason for row in marks.mutes(session)] == ["known"]


def test_a_mute_that_runs_out_opens_its_incidents_again_unless_another_holds(session: Session) -> None:
    first, second = fingerprint(session, "inc-1"), fingerprint(session, "inc-3")
    marks.mute(session, ANN, first, expires=100.0, time=20.0)
    marks.mute(session, ANN, first, expires=300.0, time=20.0)
    marks.mute(session, ANN, second, expires=100.0, time=20.0)
    session.flush()
    assert marks.lift_expired_mutes(session, 50.0) == 0
    assert marks.lift_expired_mutes(session, 100.0) == 2
    assert status(session) == {"inc-1": "muted", "inc-2": "muted", "inc-3": "open", "inc-4": "open"}
    assert marks.lift_expired_mutes(session, 300.0) == 2
    assert marks.unmute(session, ANN, first, 400.0) == 0


def test_an_unmute_ends_every_mute_of_the_fingerprint(session: Session) -> None:
    name = fingerprint(session, "inc-1")
    for expires in (100.0, 300.0):
        marks.mute(session, ANN, name, expires=expires, time=20.0)
    session.flush()
    assert marks.unmute(session, ANN, name, 30.0) == 2
    assert marks.mutes(session) == []
    assert [action for _, action, _ in actions(session)] == ["mute", "mute", "unmute"]


def test_a_mute_leaves_what_was_acknowledged_alone(session: Session) -> None:
    marks.mark(session, ANN, ["inc-1"], "acknowledged", 1.0)
    session.flush()
    marks.mute(session, ANN, fingerprint(session, "inc-1"), expires=100.0, time=20.0)
    assert status(session)["inc-1"] == "acknowledged"


@pytest.mark.parametrize("text", ["", "   ", "x" * 10_001])
def test_a_comment_that_says_nothing_or_too_much_is_refused(session: Session, text: str) -> None:
    with pytest.raises(UserError, match="1 to 10000 letters"):
        marks.comment(session, ANN, "inc-1", text, 1.0)


def test_a_comment_is_kept_as_it_was_written_whatever_it_holds(session: Session) -> None:
    hostile = "<script>alert(1)</script> \u202e right to left \u200b zero \ud800 '; DROP TABLE comments; -- \0"
    marks.comment(session, ANN, "inc-1", hostile, 1.0)
    (row,) = marks.comments(session, "inc-1")
    assert row.text == hostile.replace("\ud800", "?").replace("\0", "\ufffd")
    with pytest.raises(UserError, match="no incident nowhere"):
        marks.comment(session, ANN, "nowhere", "x", 1.0)


def test_what_cannot_be_muted_is_one_clear_error(session: Session) -> None:
    with pytest.raises(UserError, match="ends in the future"):
        marks.mute(session, ANN, fingerprint(session, "inc-1"), expires=10.0, time=20.0)
    with pytest.raises(UserError, match="no incident has the fingerprint"):
        marks.mute(session, ANN, "0" * 16, expires=30.0, time=20.0)


def test_too_many_incidents_at_once_are_refused(session: Session) -> None:
    with pytest.raises(UserError, match="at most 1000"):
        marks.mark(session, ANN, [str(n) for n in range(1001)], "closed", 1.0)


def test_the_audit_log_pages_backwards_and_filters_by_who(session: Session) -> None:
    for number in range(5):
        actor = Actor("bob") if number % 2 else ANN
        marks.write_audit(session, actor, "look", "bundle", f"b{number}", float(number))
    session.flush()
    newest = marks.audit_log(session, limit=2)
    older = marks.audit_log(session, before=newest[-1].id, limit=2)
    assert [row.subject for row in newest + older] == ["b4", "b3", "b2", "b1"]
    assert [row.subject for row in marks.audit_log(session, actor="bob")] == ["b3", "b1"]


def test_of_what_is_wanted_the_newest_word_holds_whether_said_to_one_or_to_all(session: Session) -> None:
    def ask(replica: str, name: str, state: str, expires: float | None = None) -> int:
        desired = {"state": state}
        return controls.ask(session, ANN, replica=replica, subject="guard", name=name, desired=desired, time=1.0,
                            expires=expires)  # fmt: skip

    ask("r1", "salad", "off")
    ask(EVERY_REPLICA, "salad", "on")
    ask("r2", "salad", "off")
    last = ask("r1", "language", "observe", expires=100.0)
    found = controls.wanted(session, "r1", 50.0)
    assert [(each.name, each.desired["state"]) for each in found] == [("salad", "on"), ("language", "observe")]
    assert found[-1].revision == last
    assert [each.name for each in controls.wanted(session, "r1", 100.0)] == ["salad"]
    assert [each.desired["state"] for each in controls.wanted(session, "r2", 50.0)] == ["off"]
    assert [action for _, action, _ in actions(session)] == ["guard off", "guard on", "guard off", "guard observe"]


@pytest.mark.parametrize(("subject", "state"), [("guard", "explode"), ("nothing", "on"), ("brake", None)])
def test_what_cannot_be_asked_for_is_one_clear_error(session: Session, subject: str, state: str | None) -> None:
    with pytest.raises(UserError, match="cannot be asked for"):
        controls.ask(session, ANN, replica="r", subject=subject, desired={"state": state}, time=1.0)


def test_a_job_is_claimed_once_told_on_and_finished_by_its_worker_alone(session: Session) -> None:
    identifier = jobs.submit(session, ANN, bundle="b-1", time=1.0, incident_id="inc-1")
    session.flush()
    assert jobs.submit(session, ANN, bundle="b-1", time=2.0) == identifier
    assert jobs.claim(session, "w1", ["device:H200"], 3.0) is None
    row = jobs.claim(session, "w1", ["local"], 3.0)
    assert row is not None
    assert (row.id, row.state) == (identifier, "running")
    assert jobs.claim(session, "w2", ["local"], 4.0) is None
    assert jobs.advance(session, identifier, "w1", progress=0.5, message="step 3", now=5.0)
    assert not jobs.advance(session, identifier, "w2", progress=0.9, message="", now=5.0)
    assert jobs.finish(session, identifier, "w1", verdict="transient", exit_code=0, result={"steps": 3}, now=6.0)
    session.expire_all()
    done = jobs.job(session, identifier)
    assert done is not None
    assert (done.state, done.progress, done.verdict, done.result) == ("done", 1.0, "transient", {"steps": 3})
    assert jobs.submit(session, ANN, bundle="b-1", time=9.0) != identifier


def test_a_job_whose_worker_fell_silent_is_claimed_again_and_the_old_worker_told(session: Session) -> None:
    identifier = jobs.submit(session, ANN, bundle="b-1", time=1.0)
    session.flush()
    assert jobs.claim(session, "w1", ["local"], 3.0) is not None
    assert jobs.claim(session, "w2", ["local"], 63.0) is None
    assert jobs.claim(session, "w2", ["local"], 64.0) is not None
    assert not jobs.finish(session, identifier, "w1", verdict="x", exit_code=0, result={}, now=65.0)


def test_a_job_that_is_cancelled_stops_its_worker(session: Session) -> None:
    identifier = jobs.submit(session, ANN, bundle="b-1", time=1.0)
    session.flush()
    jobs.claim(session, "w1", ["local"], 3.0)
    session.flush()
    assert jobs.cancel(session, ANN, identifier, 4.0)
    session.flush()
    assert not jobs.advance(session, identifier, "w1", progress=0.5, message="", now=5.0)
    assert not jobs.cancel(session, ANN, identifier, 6.0)
    assert [row.state for row in jobs.jobs(session, bundle="b-1")] == ["cancelled"]
