"""Many engines write to one catalog while they and its server are killed at random: is anything lost or doubled?

An engine here is a process with a spool and a collector of its own, as in a fleet on many hosts. It tells each record
that it has appended; what was told must be in the catalog in the end, once.
"""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from checkengine.dashboards.collector import Collector
from checkengine.engine_shim.spool import SpoolWriter
from checkengine.guards.events import FindingRaised
from checkengine.guards.finding import Finding, Severity
from checkengine.replay.catalog import Catalog
from checkengine.replay.catalog.models import FindingRow, IncidentRow
from checkengine.replay.spool_format import SUFFIX

ROTATE_BYTES = 1 << 18
COLLECT_SECONDS = 0.2
MOST_FILES = 3
"""Spool files that an engine may be ahead of its collector, so that kills fall on the whole of the writing."""


@dataclass(frozen=True, slots=True)
class Plan:
    writers: int
    findings: int
    """Of each writer, told."""
    kills: int
    """Of each writer, at random."""
    server_kills: int
    told_every: int = 1
    """Records between two words of a writer; what it wrote since its last word may or may not be there."""
    seed: int = 0


@dataclass(slots=True)
class Outcome:
    told: int = 0
    """Records that writers said they had appended, and that must be there."""
    found: int = 0
    lost: int = 0
    doubled: int = 0
    miscounted: int = 0
    """Incidents whose counts are not those of their findings."""
    server_kills: int = 0
    writer_kills: int = 0
    seconds: float = 0.0
    boots: dict[str, int] = field(default_factory=dict)
    """The last number that each process told."""


def engine(directory: Path, url: str, findings: int, told_every: int, told: Connection) -> None:
    """Append findings, tell (boot, number) now and then, collect meanwhile; ends when all are told."""
    spool = SpoolWriter(directory, replica=directory.name, rotate_bytes=ROTATE_BYTES, sync="never")
    # Fifty of them would say with every kill of the server that it is gone.
    logging.getLogger("checkengine.collector").setLevel(logging.CRITICAL)
    collected = threading.Event()
    collector = Collector(directory, lambda: Catalog.open(url), after_round=[lambda *_: collected.set()])
    stop = threading.Event()
    # A daemon: an engine that fails must end, or the fleet waits for it for ever.
    thread = threading.Thread(target=collector.run, args=(stop, COLLECT_SECONDS), daemon=True)
    thread.start()
    for number in range(1, findings + 1):
        found = Finding("logits.nonfinite", f"{spool.boot}-{number}", Severity.ERROR, 4, 2, "nonfinite", 1, {"nan": 3})
        spool.handle(FindingRaised(found, f"inc-{spool.boot}", time.time(), True))
        if number % told_every == 0 or number == findings:
            told.send((spool.boot, number))
            # Wait to be heard: else all is written before the first kill.
            told.recv()
            while len(list(directory.glob(f"*{SUFFIX}"))) > MOST_FILES:
                collected.clear()
                collected.wait(COLLECT_SECONDS)
    spool.close()
    stop.set()
    thread.join()
    collector.close()


class Fleet:
    """Writers that are started again, with what they still have to tell, whenever they were killed."""

    def __init__(self, plan: Plan, folder: Path, url: str, context: Any) -> None:
        self.plan, self._folder, self._url, self._context = plan, folder, url, context
        self._chance = random.Random(plan.seed)
        self.outcome = Outcome()
        self.left = dict.fromkeys(range(plan.writers), plan.findings)
        self._kills = dict.fromkeys(range(plan.writers), plan.kills)
        self._fuse: dict[int, int] = {}
        self.running: dict[Connection, tuple[int, BaseProcess]] = {}
        for writer in range(plan.writers):
            self.start(writer)

    def start(self, writer: int) -> None:
        read, write = self._context.Pipe()
        directory = self._folder / f"writer{writer}"
        arguments = (directory, self._url, self.left[writer], self.plan.told_every, write)
        process = self._context.Process(target=engine, args=arguments, daemon=True)
        process.start()
        write.close()
        self.running[read] = (writer, process)
        words = max(1, self.plan.findings // self.plan.told_every)
        self._fuse[writer] = self._chance.randrange(1, max(2, words // (self.plan.kills + 1)))

    def turn(self) -> int:
        """Hear who speaks, kill whose time has come; returns how many words were heard."""
        heard = 0
        for read in wait(list(self.running)):
            assert isinstance(read, Connection)
            writer, process = self.running[read]
            try:
                self._hear(writer, *read.recv())
                heard += 1
            except (EOFError, ConnectionResetError):
                self._ended(read, writer, process)
                continue
            self._fuse[writer] -= 1
            if self._fuse[writer] <= 0 and self._kills[writer] > 0 and self.left[writer] > 0:
                self._kill(read, writer, process)
            else:
                with contextlib.suppress(BrokenPipeError):
                    read.send(None)
        return heard

    def _hear(self, writer: int, boot: str, number: int) -> None:
        self.left[writer] -= number - self.outcome.boots.get(boot, 0)
        self.outcome.told += number - self.outcome.boots.get(boot, 0)
        self.outcome.boots[boot] = number

    def _kill(self, read: Connection, writer: int, process: BaseProcess) -> None:
        process.kill()
        self._kills[writer] -= 1
        self.outcome.writer_kills += 1
        with contextlib.suppress(EOFError, ConnectionResetError):
            while True:
                self._hear(writer, *read.recv())
        self._ended(read, writer, process)

    def _ended(self, read: Connection, writer: int, process: BaseProcess) -> None:
        process.join()
        read.close()
        del self.running[read]
        if self.left[writer] > 0:
            self.start(writer)


def crash_store(
    plan: Plan, folder: Path, url: str, context: Any, kill_server: Callable[[], None] | None = None
) -> Outcome:
    """`folder` holds the spools. `kill_server` kills the database's server and starts it again."""
    began = time.perf_counter()
    Catalog.open(url).close()
    fleet = Fleet(plan, folder, url, context)
    words = plan.writers * max(1, plan.findings // plan.told_every)
    every = words // (plan.server_kills + 1) + 1
    heard = 0
    while fleet.running:
        before = heard // every
        heard += fleet.turn()
        if kill_server is not None and heard // every > before and fleet.outcome.server_kills < plan.server_kills:
            kill_server()
            fleet.outcome.server_kills += 1
    for writer in range(plan.writers):
        collect_rest(folder / f"writer{writer}", url)
    judge(fleet.outcome, url)
    fleet.outcome.seconds = time.perf_counter() - began
    return fleet.outcome


def collect_rest(directory: Path, url: str) -> None:
    collector = Collector(directory, lambda: Catalog.open(url))
    collector.run_once()
    collector.close()
    assert not list(directory.glob("*.spool"))


def judge(outcome: Outcome, url: str) -> None:
    catalog = Catalog.open(url)
    with catalog.reading() as session:
        by_boot = sa.select(FindingRow.boot, sa.func.count(), sa.func.max(FindingRow.number)).group_by(FindingRow.boot)
        rows = {boot: (count, newest) for boot, count, newest in session.execute(by_boot)}
        distinct = session.scalar(sa.select(sa.func.count(sa.distinct(FindingRow.sequence)))) or 0
        counted = {row.id: (row.findings, row.sequences) for row in session.scalars(sa.select(IncidentRow)).unique()}
    catalog.close()
    outcome.found = sum(count for count, _ in rows.values())
    outcome.doubled = outcome.found - distinct
    for boot, told in outcome.boots.items():
        count, newest = rows.get(boot, (0, 0))
        # A process appends in order: with `told` records told, the first `told` must be there, and no gap.
        outcome.lost += max(0, told - count) + max(0, newest - count)
    outcome.miscounted = sum(counted.get(f"inc-{boot}") != (count, count) for boot, (count, _) in rows.items())


def fork_context() -> Any:
    """Processes that share this module's imports, and nothing of this process's threads."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    return context
