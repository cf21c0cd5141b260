"""The watch over all requests of a catalog: a change is told once, an accused member is named, one process watches."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "replay"))

from catalog_records import finding, replica, request

from checkengine.dashboards.fleet_watch import FleetWatch
from checkengine.guards.events import Event, FindingRaised
from checkengine.guards.incident import IncidentBook
from checkengine.guards.settings import GuardsSettings
from checkengine.replay.catalog import Catalog
from checkengine.replay.catalog.ingest import ingest
from checkengine.replay.catalog.leases import Lease
from checkengine.replay.spool_format import SpoolRecord

SETTINGS = GuardsSettings(drift={"baseline": 200, "requests_per_false_alarm": 1e4})


class Watched:
    def __init__(self, catalog: Catalog, settings: GuardsSettings = SETTINGS) -> None:
        self.told: list[FindingRaised] = []
        self.watch = FleetWatch(settings, self._publish, IncidentBook())
        self._catalog = catalog

    def _publish(self, event: Event) -> None:
        assert isinstance(event, FindingRaised)
        self.told.append(event)

    def look(self) -> list[str]:
        self.watch(self._catalog, 5000.0)
        return [event.finding.kind for event in self.told]


def requests(first: int, count: int, length: float, seed: int = 0) -> list[SpoolRecord]:
    chance = random.Random(seed)
    return [
        request(first + n, time=float(first + n), sequence=f"s{first + n}", prompt_tokens=64, cached_tokens=0,
                output_tokens=max(1, int(chance.gauss(length, length / 5))), ttft_seconds=None, total_seconds=None)
        for n in range(count)
    ]  # fmt: skip


def write(catalog: Catalog, records: list[SpoolRecord]) -> None:
    with catalog.writing() as session:
        ingest(session, records)


def test_answers_that_grow_longer_are_told_as_drift_once(any_catalog: Catalog) -> None:
    watched = Watched(any_catalog)
    write(any_catalog, requests(1, 900, 100.0))
    assert watched.look() == []
    write(any_catalog, requests(1001, 600, 300.0, 1))
    assert watched.look() == ["drift.output_tokens"]
    assert watched.look() == ["drift.output_tokens"]
    (event,) = watched.told
    assert event.primary
    assert event.finding.sequence == "output_tokens"
    assert all(isinstance(value, int | float) for value in event.finding.evidence.values())
    evidence, threshold = watched.watch.evidence()["prompt_tokens"]
    assert evidence < threshold
    watched.watch.close()


def test_a_watcher_that_begins_anew_tells_nothing_of_the_past(any_catalog: Catalog) -> None:
    write(any_catalog, [*requests(1, 900, 100.0), *requests(1001, 600, 300.0, 1)])
    watched = Watched(any_catalog)
    assert watched.look() == []
    watched.watch.close()


def test_a_replica_with_a_finding_of_an_exact_kind_is_accused_by_name(any_catalog: Catalog) -> None:
    watched = Watched(any_catalog)
    names = ("host:1", "host:2")
    write(any_catalog, [replica(n, name=name, device_name=f"gpu{n}") for n, name in enumerate(names, 1)])
    assert watched.look() == []
    write(any_catalog, [request(10 + n, time=float(n), name=names[n % 2], sequence=f"s{n}") for n in range(20)])
    write(any_catalog, [finding(100 + n, time=30.0, replica="host:2", request="s1") for n in range(5)])
    write(any_catalog, [request(90, time=31.0, name="host:1", sequence="last")])
    watched.look()
    accused = {event.finding.kind: event.finding.sequence for event in watched.told}
    assert accused["drift.replica"] == "host:2"
    assert accused["drift.device"] == "gpu2"
    assert len([event for event in watched.told if event.finding.kind == "drift.replica"]) == 1
    watched.watch.close()


def test_one_process_of_a_fleet_watches_and_another_follows_when_it_is_gone(
    any_catalog: Catalog, open_catalog: Callable[[], Catalog]
) -> None:
    other_catalog = open_catalog()
    first, second = Watched(any_catalog), Watched(other_catalog)
    write(any_catalog, requests(1, 900, 100.0))
    for watched in (first, second):
        watched.look()
    write(any_catalog, requests(1001, 600, 300.0, 1))
    assert (first.look(), second.look()) == (["drift.output_tokens"], [])
    first.watch.close()
    assert second.look() == []
    write(any_catalog, requests(2001, 900, 20.0, 2))
    assert second.look() == ["drift.output_tokens"]
    second.watch.close()
    other_catalog.close()


def test_a_lease_is_one_holders_until_it_lets_go(any_catalog: Catalog, open_catalog: Callable[[], Catalog]) -> None:
    other = open_catalog()
    first, second = Lease.of(any_catalog, "name"), Lease.of(other, "name")
    assert (first.held(), first.held(), second.held()) == (True, True, False)
    assert Lease.of(other, "another name").held()
    first.release()
    assert second.held()
    second.release()
    other.close()


def test_warming_up_counts_as_no_traffic(any_catalog: Catalog) -> None:
    watched = Watched(any_catalog)
    watched.watch.warm_up()
    assert watched.watch.evidence() == {}
    assert watched.look() == []
    watched.watch.close()


def test_a_watch_that_is_off_reads_nothing(any_catalog: Catalog) -> None:
    off = GuardsSettings(drift={"action": "off"}, siblings={"action": "off"})
    watched = Watched(any_catalog, off)
    write(any_catalog, [*requests(1, 900, 100.0)])
    assert watched.look() == []
    assert watched.watch.evidence() == {}


def test_a_watch_that_raises_is_switched_off_and_collecting_goes_on(
    any_catalog: Catalog, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    watched = Watched(any_catalog)
    write(any_catalog, requests(1, 3, 100.0))
    watched.look()

    def planted(*arguments: object) -> None:
        raise ZeroDivisionError("planted")

    monkeypatch.setattr(watched.watch, "_measure", planted)
    for begin in (10, 20, 30):
        write(any_catalog, requests(begin, 3, 100.0))
        assert watched.look() == []
    assert [record.message for record in caplog.records] == ["the watch over the fleet raised and is switched off"]
    watched.watch.close()
