"""Works through replays that were asked for: one process each, whose progress and verdict go into the catalog."""

from __future__ import annotations

import json
import logging
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from sqlalchemy.exc import SQLAlchemyError

from checkengine.dashboards.web.bundle_places import places
from checkengine.guards.errors import first_line
from checkengine.replay.catalog import Catalog, jobs
from checkengine.replay.catalog.fleet import JobRow
from checkengine.replay.catalog.ingest import record_replay
from checkengine.replay.catalog.models import BundleRow

logger = logging.getLogger("checkengine.replays")

IDLE_SECONDS = 0.5
TELL_SECONDS = 0.5
"""Between two words on progress, which are a heartbeat too."""
MOST_SECONDS = 3600.0
"""Of one replay; then it is ended."""
MOST_RESULT = 8 << 20
NOT_KEPT = ("tokens", "strip")
"""Of a result, what a catalog does not hold: content, and what is drawn anew from the bundle."""
LOCAL = ("local",)
VERDICT_CODES = (0, 1, 125)


class ReplayWorker:
    """A thread that claims jobs for `targets` ("local", "device:NAME", "replica:NAME") and runs each bundle of `roots`
    in a process of its own: a bundle that crashes a kernel crashes no dashboard."""

    def __init__(
        self,
        catalog: Catalog,
        roots: Sequence[Path],
        targets: Sequence[str] = LOCAL,
        *,
        clock: Callable[[], float] = time.time,
        command: Sequence[str] = (sys.executable, "-m", "checkengine.replay_job"),
        repeats: int = 20,
    ) -> None:
        """`repeats`: runs of a convicting step in fresh processes."""
        self._catalog, self._places, self._targets, self._clock = catalog, places(roots), tuple(targets), clock
        self._command = [*command, "--repeats", str(repeats)]
        self.name = f"{socket.gethostname()}:{os.getpid()}"
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="checkengine-replays", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """A replay that runs is ended; another worker takes it up when this one has been silent for a minute."""
        self._stop.set()
        self._thread.join(10)

    def work_once(self) -> bool:
        """False where nothing waits."""
        with self._catalog.writing() as session:
            job = jobs.claim(session, self.name, self._targets, self._clock())
        if job is None:
            return False
        self._work(job)
        return True

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                if self.work_once():
                    continue
            except SQLAlchemyError as error:
                logger.error("the catalog cannot be asked for replays: %s", first_line(error))
            self._stop.wait(IDLE_SECONDS)

    def _work(self, job: JobRow) -> None:
        with self._catalog.reading() as session:
            row = session.get(BundleRow, job.bundle)
        path = self._places.find(row) if row is not None else None
        if path is None:
            self._fail(job, f"the bundle {job.bundle} is not on this machine ({self.name})")
            return
        try:
            process = subprocess.Popen(
                [*self._command, str(path)], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
            )
        except OSError as error:
            self._fail(job, f"the replay cannot be started: {error.strerror}")
            return
        self._end(job, *Following(process, lambda told: self._tell(job, told), self._stop).run())

    def _tell(self, job: JobRow, told: dict[str, Any]) -> bool:
        steps, done = int(told.get("steps") or 0), int(told.get("done") or 0)
        message = f"{told.get('kernel', '')} kernel, step {done} of {steps}" if steps else str(told.get("words", ""))
        share = float(told.get("share") or 0.0)
        with self._catalog.writing() as session:
            return jobs.advance(
                session, job.id, self.name, progress=min(share, 0.99), message=message[:300], now=self._clock()
            )

    def _end(self, job: JobRow, code: int | None, result: dict[str, Any] | None, error: str) -> None:
        if code is None:
            return  # Cancelled, or this worker ends.
        if code not in VERDICT_CODES or result is None:
            self._fail(job, error or f"the replay ended with code {code}")
            return
        verdict = result.get("verdict")
        kind = str(verdict.get("kind", "")) if isinstance(verdict, dict) else ""
        now = self._clock()
        with self._catalog.writing() as session:
            short = {name: value for name, value in result.items() if name not in NOT_KEPT}
            if jobs.finish(session, job.id, self.name, verdict=kind, exit_code=code, result={}, now=now):
                record_replay(session, bundle=job.bundle, time=now, verdict=kind, exit_code=code, result=short)

    def _fail(self, job: JobRow, message: str) -> None:
        with self._catalog.writing() as session:
            jobs.fail(session, job.id, self.name, message[:2000], self._clock())


class Following:
    """Reads a replay's lines: objects with `share` are progress, one with `result` is the end."""

    def __init__(
        self, process: subprocess.Popen[bytes], tell: Callable[[dict[str, Any]], bool], stop: threading.Event
    ) -> None:
        self._process, self._tell, self._stop = process, tell, stop
        self._last: dict[str, Any] = {"words": "starting"}
        self._result: dict[str, Any] | None = None
        self._errors = b""

    def run(self) -> tuple[int | None, dict[str, Any] | None, str]:
        """Exit code (None where it was ended from here), result, and the last words of its stderr."""
        readers = [threading.Thread(target=each, daemon=True) for each in (self._read_lines, self._read_errors)]
        for reader in readers:
            reader.start()
        ended = self._wait()
        for reader in readers:
            reader.join(10)
        lines = self._errors.decode("utf-8", "replace").strip().splitlines()
        return (self._process.returncode if ended else None), self._result, lines[-1] if lines else ""

    def _wait(self) -> bool:
        began = time.monotonic()
        while True:
            try:
                self._process.wait(TELL_SECONDS)
                return True
            except subprocess.TimeoutExpired:
                late = time.monotonic() - began > MOST_SECONDS
                if self._stop.is_set() or late or not self._tell(dict(self._last)):
                    self._process.kill()
                    self._process.wait()
                    return late

    def _read_lines(self) -> None:
        assert self._process.stdout is not None
        while line := self._process.stdout.readline(MOST_RESULT):
            try:
                told = json.loads(line)
            except ValueError:
                continue
            if isinstance(told, dict) and isinstance(told.get("result"), dict):
                self._result = told["result"]
            elif isinstance(told, dict):
                self._last = told

    def _read_errors(self) -> None:
        assert self._process.stderr is not None
        while line := self._process.stderr.readline(1 << 16):
            self._errors = (self._errors + line)[-4096:]
