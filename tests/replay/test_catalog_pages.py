"""Pages of the incident list hold exactly what a plain sort and filter of all incidents gives."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import sqlalchemy as sa

from checkengine.guards.errors import UserError
from checkengine.replay.catalog import Catalog
from checkengine.replay.catalog.causes import Cause, cause_ids
from checkengine.replay.catalog.incident_list import (
    STATUSES,
    Cursor,
    IncidentFilter,
    choices,
    incident_page,
    incidents_of_request,
)
from checkengine.replay.catalog.models import IncidentRow

FILTERS = [
    IncidentFilter(),
    IncidentFilter(guard=["a"]),
    IncidentFilter(guard=["a", "b"], status=["open", "muted"]),
    IncidentFilter(device=["gpu1"], driver=["d0"]),
    IncidentFilter(device=["gpu1"], driver=["nowhere"]),
    IncidentFilter(status=["closed"]),
    IncidentFilter(since=20.0, until=40.0),
    IncidentFilter(kernel=["k1"], since=10.0, until=30.0, least_severity=2, prefix="hit"),
    IncidentFilter(assignee="ann"),
    IncidentFilter(assignee="ann", guard=["b"], status=["open"]),
    IncidentFilter(assignee=""),
    IncidentFilter(assignee="", guard=["a"]),
    IncidentFilter(replica=["r1"], model=["m"]),
    IncidentFilter(fingerprint=[Cause("a", "a.x", model="m", kernel="k1").fingerprint]),
]


@pytest.fixture
def filled(any_catalog: Catalog) -> Catalog:
    """300 incidents; many share the second they were last seen in."""
    chance = random.Random(7)
    causes = [
        Cause(g, f"{g}.x", s, "m", f"r{n}", f"gpu{n % 3}", f"d{n % 2}", f"k{n % 2}", chance.choice(["hit", "miss", ""]))
        for g in "abc" for s in (1, 2) for n in range(4)
    ]  # fmt: skip
    with any_catalog.writing() as session:
        ids = sorted(cause_ids(session, set(causes)).values())
        for number in range(300):
            seen = float(chance.randrange(50))
            session.add(IncidentRow(id=f"inc-{chance.random():.6f}", kind="x", first_seen=seen, last_seen=seen,
                                    cause_id=chance.choice(ids), status=chance.choice(STATUSES),
                                    assignee=chance.choice(["", "", "ann"]), sequence=f"s-{number}"))  # fmt: skip
    return any_catalog


def expected(catalog: Catalog, chosen: IncidentFilter) -> list[str]:
    with catalog.reading() as session:
        rows = session.scalars(sa.select(IncidentRow)).unique().all()
    return [row.id for row in sorted(rows, key=lambda row: (row.last_seen, row.id), reverse=True) if meets(row, chosen)]


def meets(row: IncidentRow, chosen: IncidentFilter) -> bool:
    cause = row.cause
    assert cause is not None
    named = ("guard", "kind", "model", "replica", "device", "driver", "kernel", "fingerprint")
    return (
        all(not getattr(chosen, name) or getattr(cause, name) in getattr(chosen, name) for name in named)
        and (not chosen.prefix or cause.prefix == chosen.prefix)
        and (chosen.least_severity is None or cause.severity >= chosen.least_severity)
        and (not chosen.status or row.status in chosen.status)
        and (chosen.assignee is None or row.assignee == chosen.assignee)
        and (chosen.since is None or row.last_seen >= chosen.since)
        and (chosen.until is None or row.last_seen < chosen.until)
    )


@pytest.mark.parametrize("limit", [1, 7, 500])
def test_pages_together_are_the_whole_list_in_order_without_gap_or_double(filled: Catalog, limit: int) -> None:
    for chosen in FILTERS if limit > 1 else FILTERS[2:4]:
        found: list[str] = []
        cursor: Cursor | None = None
        while True:
            with filled.reading() as session:
                page = incident_page(session, chosen, after=cursor, limit=limit)
            assert len(page.rows) <= limit
            found += [row.id for row in page.rows]
            if page.next is None:
                break
            cursor = Cursor.parse(str(page.next))
        assert found == expected(filled, chosen), chosen


def test_a_row_of_a_page_knows_its_cause(filled: Catalog) -> None:
    with filled.reading() as session:
        (row,) = incident_page(session, IncidentFilter(guard=["b"]), limit=1).rows
    assert row.cause is not None
    assert row.cause.guard == "b"


def test_a_filter_with_hostile_text_finds_nothing_and_breaks_nothing(filled: Catalog) -> None:
    hostile = "'; DROP TABLE incidents; --"
    with filled.reading() as session:
        for chosen in (
            IncidentFilter(guard=[hostile]),
            IncidentFilter(request=hostile),
            IncidentFilter(status=[hostile]),
        ):
            assert incident_page(session, replace(chosen, assignee=hostile)).rows == []
        assert len(incident_page(session, limit=500).rows) == 300


@pytest.mark.parametrize("text", ["", "x", "~", "nan'~x", "1.0.0~a"])
def test_a_page_address_that_nobody_gave_out_is_one_clear_error(text: str) -> None:
    with pytest.raises(UserError, match="begin again at its first"):
        Cursor.parse(text)


def test_menus_offer_the_values_that_there_are(filled: Catalog) -> None:
    with filled.reading() as session:
        assert choices(session, "guard") == ["a", "b", "c"]
        assert choices(session, "driver") == ["d0", "d1"]
        assert incidents_of_request(session, "nobody") == []
