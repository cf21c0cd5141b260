from __future__ import annotations

import multiprocessing
import os
import random
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from pathlib import Path

import crashing_writer
import pytest

from checkengine.replay.bundle import BundleError, BundleReader

KILLS = 25


@pytest.fixture(scope="module")
def context() -> multiprocessing.context.ForkServerContext:
    """One server a session: it is told of all modules that any test wants, whichever test comes first."""
    tests = Path(__file__).parent.parent
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["crashing_writer", "crashing_collector"])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join(str(tests / folder) for folder in ("replay", "dashboards")))
        forkserver.ensure_running()
    return context


def kill_after(context: multiprocessing.context.ForkServerContext, directory: Path, signs: int) -> set[str]:
    """Start a writer, SIGKILL it after so many signs of life; the names of bundles that it said are written."""
    read, write = context.Pipe(duplex=False)
    process = context.Process(target=crashing_writer.write_until_killed, args=(directory, write), daemon=True)
    process.start()
    write.close()
    done = {read.recv() for _ in range(signs)}
    process.kill()
    done |= drained(read)
    process.join()
    assert process.exitcode == -9
    return done - {""}


def drained(read: Connection) -> set[str]:
    names = set()
    try:
        while True:
            names.add(read.recv())
    except EOFError:
        return names


def test_no_kill_loses_a_written_bundle_or_leaves_a_torn_one_that_is_taken_for_whole(
    tmp_path: Path, context: multiprocessing.context.ForkServerContext
) -> None:
    chance = random.Random(20261130)
    written: set[str] = set()
    for _ in range(KILLS):
        written |= kill_after(context, tmp_path, chance.randrange(1, 60))
    found = {path.name for path in tmp_path.iterdir() if not path.name.startswith(".")}
    assert written <= found
    assert len(written) >= KILLS // 4
    for name in found:
        reader = BundleReader(tmp_path / name)
        reader.verify()
        assert reader.capture().first_exact_step is not None
    drafts = list(tmp_path.glob(".writing-*"))
    torn = [draft for draft in drafts if is_torn(draft)]
    assert len(torn) >= KILLS // 4
    for draft in set(drafts) - set(torn):
        BundleReader(draft).verify()


def is_torn(path: Path) -> bool:
    """A draft is refused, or whole in every byte: killed between its marker and its name."""
    try:
        BundleReader(path).verify()
    except BundleError as error:
        return "no whole bundle" in str(error)
    return False
