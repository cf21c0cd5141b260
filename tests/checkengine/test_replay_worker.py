"""Replays that were asked for on a page: claimed, run in a process of their own, told of, ended."""

from __future__ import annotations

import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from checkengine.replay.catalog import Catalog, jobs, queries
from checkengine.replay.catalog.fleet import JobRow
from checkengine.replay.catalog.marks import Actor
from checkengine.replay.catalog.models import BundleRow, IncidentRow
from checkengine.replay_worker import ReplayWorker

ME = Actor("anna", "operator")
GOOD = """
import json
print("no json at all")
print(json.dumps({"kernel": "paged", "done": 3, "steps": 4, "share": 0.4}), flush=True)
print(json.dumps({"result": {"verdict": {"kind": "code defect", "sentence": "attention of layer 1"}, "tokens": [1]}}))
raise SystemExit(1)
"""


@pytest.fixture
def place(tmp_path: Path) -> tuple[Catalog, Path]:
    catalog = Catalog.open(tmp_path / "catalog.db")
    (tmp_path / "bundles" / "b-1").mkdir(parents=True)
    with catalog.writing() as session:
        session.add(IncidentRow(id="inc", kind="k", first_seen=1.0, last_seen=1.0))
        session.flush()
        for name in ("b-1", "b-2"):
            session.add(BundleRow(id=name, incident_id="inc", path="x", time=1.0))
    return catalog, tmp_path / "bundles"


def submitted(catalog: Catalog, bundle: str = "b-1", target: str = "local") -> str:
    with catalog.writing() as session:
        return jobs.submit(session, ME, bundle=bundle, incident_id="inc", time=time.time(), target=target)


def worker(catalog: Catalog, bundles: Path, script: str, **more: Any) -> ReplayWorker:
    # The bundle and the repeats come as arguments, which a script without options passes over.
    return ReplayWorker(catalog, [bundles], command=(sys.executable, "-c", script), **more)


def state(catalog: Catalog, job: str) -> JobRow:
    with catalog.reading() as session:
        row = jobs.job(session, job)
    assert row is not None
    return row


def test_a_verdict_goes_into_the_catalog_and_the_job_is_done(place: tuple[Catalog, Path]) -> None:
    catalog, bundles = place
    job = submitted(catalog)
    assert worker(catalog, bundles, GOOD).work_once()
    row = state(catalog, job)
    assert (row.state, row.verdict, row.exit_code, row.progress) == ("done", "code defect", 1, 1.0)
    with catalog.reading() as session:
        (replay,) = queries.replays(session, "b-1")
    assert (replay.verdict, replay.exit_code) == ("code defect", 1)
    assert replay.result == {"verdict": {"kind": "code defect", "sentence": "attention of layer 1"}}, "no tokens"


def test_nothing_waits_nothing_is_done(place: tuple[Catalog, Path]) -> None:
    catalog, bundles = place
    submitted(catalog, target="device:NVIDIA H200")
    assert not worker(catalog, bundles, GOOD).work_once()


def test_a_worker_on_a_device_takes_the_jobs_of_its_class(place: tuple[Catalog, Path]) -> None:
    catalog, bundles = place
    job = submitted(catalog, target="device:NVIDIA H200")
    assert worker(catalog, bundles, GOOD, targets=["device:NVIDIA H200"]).work_once()
    assert state(catalog, job).state == "done"


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("import sys; sys.exit('the model is not here')", "the model is not here"),
        ("import os; os.abort()", "ended with code -6"),
        ("raise SystemExit(1)", "ended with code 1"),
        ("print('{\"result\": 7}'); raise SystemExit(0)", "ended with code 0"),
        ("import sys; sys.stderr.write('x' * 100000 + chr(10) + 'last words'); raise SystemExit(129)", "last words"),
    ],
)
def test_a_replay_that_ends_badly_is_told_with_its_last_words(
    place: tuple[Catalog, Path], script: str, message: str
) -> None:
    catalog, bundles = place
    job = submitted(catalog)
    worker(catalog, bundles, script).work_once()
    row = state(catalog, job)
    assert row.state == "failed"
    assert message in row.message


def test_a_bundle_that_is_not_here_fails_its_job_in_a_sentence(place: tuple[Catalog, Path]) -> None:
    catalog, bundles = place
    job = submitted(catalog, "b-2")
    worker(catalog, bundles, GOOD).work_once()
    assert "is not on this machine" in state(catalog, job).message


def test_a_command_that_cannot_be_started_fails_its_job(place: tuple[Catalog, Path]) -> None:
    catalog, bundles = place
    job = submitted(catalog)
    ReplayWorker(catalog, [bundles], command=("/no/such/program",)).work_once()
    assert "cannot be started" in state(catalog, job).message


FOR_EVER = """
import threading
print('{"words": "working", "share": 0.3}', flush=True)
threading.Event().wait()
"""


def waits_for_progress(catalog: Catalog, job: str) -> None:
    turn = threading.Event()
    for _ in range(600):
        if state(catalog, job).message == "working":
            return
        turn.wait(0.05)
    pytest.fail("no progress was told")


def test_a_cancelled_replay_is_ended_and_leaves_no_verdict(place: tuple[Catalog, Path]) -> None:
    catalog, bundles = place
    job = submitted(catalog)
    thread = threading.Thread(target=worker(catalog, bundles, FOR_EVER).work_once)
    thread.start()
    waits_for_progress(catalog, job)
    assert state(catalog, job).progress == 0.3
    with catalog.writing() as session:
        assert jobs.cancel(session, ME, job, time.time())
    thread.join(30)
    assert not thread.is_alive()
    assert state(catalog, job).state == "cancelled"
    with catalog.reading() as session:
        assert queries.replays(session, "b-1") == []


def test_a_worker_that_ends_leaves_its_job_to_another_one(place: tuple[Catalog, Path]) -> None:
    catalog, bundles = place
    job = submitted(catalog)
    first = worker(catalog, bundles, FOR_EVER)
    first.start()
    waits_for_progress(catalog, job)
    first.close()
    assert state(catalog, job).state == "running"
    later = worker(catalog, bundles, GOOD, clock=lambda: time.time() + 120)
    assert later.work_once()
    assert state(catalog, job).state == "done"
