"""Bundles: how large, what they hold, how long they stay, who opened them; hold, release and erase."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from checkengine.dashboards.web import words
from checkengine.dashboards.web.access import Access, Acting
from checkengine.dashboards.web.bundle_places import BundlePlaces, folder_size
from checkengine.dashboards.web.incident import bundle_row
from checkengine.dashboards.web.incident_view import commands
from checkengine.dashboards.web.pages import Pages, go
from checkengine.dashboards.web.people import Person, Role
from checkengine.dashboards.web.problems import Problem
from checkengine.dashboards.web.render import part
from checkengine.dashboards.web.triage import actor_of
from checkengine.guards.errors import UserError
from checkengine.replay.bundle import (
    AccessLog,
    BundleError,
    BundleReader,
    erase_logged,
    expires,
    held,
    hold,
    hold_reason,
    release,
)
from checkengine.replay.catalog import Catalog, queries
from checkengine.replay.catalog.marks import write_audit
from checkengine.replay.catalog.models import BundleRow

ROWS = 100
MOST_LOG = 200


@dataclass(frozen=True)
class Changes:
    """What is done to a bundle: on record, then done; what cannot be done is rolled back with its record."""

    catalog: Catalog
    clock: Callable[[], float]
    places: BundlePlaces

    def hold(self, acting: Acting) -> Response:
        return self._change(acting, "hold", "held", lambda path: hold(path, reason_of(acting)), {"held": True})

    def release(self, acting: Acting) -> Response:
        return self._change(acting, "release", "released", release, {"held": False})

    def erase(self, acting: Acting) -> Response:
        if acting.form.one("sure") != "yes":
            raise Problem(400, "Nothing was erased", "Tick the box: content that is erased does not come back.")
        purpose = f"dashboard: {acting.person.name}"
        return self._change(
            acting, "erase", "erased", lambda path: erase_logged(path, purpose), {"content": "erased"}, refuse_held
        )

    def _change(
        self,
        acting: Acting,
        action: str,
        note: str,
        do: Callable[[Path], Any],
        columns: Mapping[str, Any],
        allow: Callable[[BundleRow, Path], None] = lambda row, path: None,
    ) -> Response:
        with self.catalog.writing() as session:
            row = bundle_row(session, acting.form.one("bundle"))
            path = self.places.find(row)
            if path is None:
                raise Problem(409, "That bundle is not on this machine", f"Do it where it lies: {row.replica}.")
            allow(row, path)
            write_audit(session, actor_of(acting), action, "bundle", row.id, self.clock())
            for name, value in columns.items():
                setattr(row, name, value)
            session.flush()
            BundleReader(path)  # nothing but a bundle is ever erased
            do(path)
            return go(f"/bundles/{part(row.id)}", note)


def refuse_held(row: BundleRow, path: Path) -> None:
    """As `checkengine bundles erase` does without --force."""
    if row.held or held(path):
        reason = hold_reason(path) or "no reason given"
        raise Problem(409, "Nothing was erased", f"The bundle is held ({reason}): end the hold first.")


def router(
    pages: Pages, access: Access, catalog: Catalog, clock: Callable[[], float], places: BundlePlaces
) -> APIRouter:
    made, changes = APIRouter(), Changes(catalog, clock, places)
    looking, operating, ruling = access.look(), access.act(Role.OPERATOR), access.act(Role.ADMIN)

    @made.get("/bundles")
    def show(request: Request, before: float = 0.0, person: Person = looking) -> Response:
        values = {"now": clock(), "log": access_log("") if person.may(Role.ADMIN) else None}
        values |= list_values(catalog, places, before)
        return pages.answer(request, "bundles.html", person, "Bundles", "/bundles", values)

    @made.get("/bundles/{identifier:path}")
    def one(request: Request, identifier: str, person: Person = looking) -> Response:
        with catalog.reading() as session:
            row = bundle_row(session, identifier)
            values = one_values(row, places) | {"replays": queries.replays(session, row.id, limit=20)}
        values |= {"now": clock(), "log": access_log(row.id) if person.may(Role.OPERATOR) else None}
        return pages.answer(request, "bundle.html", person, f"Bundle {row.id[:60]}", "/bundles", values)

    @made.post("/bundle/hold")
    def keep(acting: Acting = operating) -> Response:
        return changes.hold(acting)

    @made.post("/bundle/release")
    def let_go(acting: Acting = operating) -> Response:
        return changes.release(acting)

    @made.post("/bundle/erase")
    def erase(acting: Acting = ruling) -> Response:
        return changes.erase(acting)

    return made


def list_values(catalog: Catalog, places: BundlePlaces, before: float) -> dict[str, Any]:
    """The newest bundles, or those before a time."""
    with catalog.reading() as session:
        query = sa.select(BundleRow).order_by(BundleRow.time.desc(), BundleRow.id).limit(ROWS + 1)
        rows = list(session.scalars(query.where(BundleRow.time < before) if before > 0 else query))
        total = session.scalar(sa.select(sa.func.sum(BundleRow.size_bytes)).where(BundleRow.erased.is_(None)))
    return {
        "rows": [on_disk(row, places) for row in rows[:ROWS]],
        "total": int(total or 0),
        "next": repr(rows[ROWS - 1].time) if len(rows) > ROWS else None,
    }


def one_values(row: BundleRow, places: BundlePlaces) -> dict[str, Any]:
    path = places.find(row)
    told, problem = contents(path)
    return {
        "each": on_disk(row, places),
        "told": told,
        "problem": problem,
        "commands": commands(str(path or row.path)),
    }


def reason_of(acting: Acting) -> str:
    return f"{acting.person.name}: {acting.form.one('reason').strip()[:200]}"


def on_disk(row: BundleRow, places: BundlePlaces) -> dict[str, Any]:
    path = places.find(row)
    size = row.size_bytes or (folder_size(path) if path is not None else 0)
    return {"row": row, "here": path is not None, "size": size, "held": row.held or (path is not None and held(path))}


def contents(path: Path | None) -> tuple[list[tuple[str, str]], str]:
    """What can be told without opening the content; and why nothing can."""
    if path is None:
        return [], "It is not on this machine, so only what the catalog knows is shown."
    try:
        reader = BundleReader(path, "dashboard")
        step, environment = reader.json("step.json"), reader.json("env.json")
    except BundleError as error:
        return [], str(error)
    ends = expires(reader.manifest)
    told = {
        "content": {"core": "none was captured", "erased": "erased", "full": "encrypted"}.get(
            reader.level, reader.level
        ),
        "capture level": reader.manifest.get("capture_level", "L3"),
        "format": ".".join(str(number) for number in reader.manifest.get("version", ())),
        "steps": f"{step.get('steps')} ({step.get('first_step')} to {step.get('last_step')})",
        "sequences": len(step.get("sequences") or ()),
        "exact from step": step.get("first_exact_step"),
        **{name: environment.get(name) for name in ("engine", "model", "device", "dtype", "kernel")},
    }
    if ends:
        told["content expires"] = words.clock(ends)
    return [(name, str(value)) for name, value in told.items() if value not in (None, "")], ""


def access_log(bundle: str) -> dict[str, Any]:
    """Rows of one bundle, or of all, newest first; and what is wrong with the log."""
    try:
        rows = AccessLog.of_this_deployment().read()
    except (UserError, OSError) as error:
        return {"rows": [], "problem": str(error)}
    mine = [row for row in rows if not bundle or row.get("bundle") == bundle]
    return {"rows": mine[: -MOST_LOG - 1 : -1], "problem": ""}
