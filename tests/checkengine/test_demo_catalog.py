"""What the demo leaves in its catalog."""

from __future__ import annotations

from pathlib import Path

from checkengine.drills.catalogued import Judged, collect_into_catalog
from checkengine.drills.run import drill_settings
from checkengine.engine_shim.spool import SpoolWriter
from checkengine.guards.events import BundleWritten, FindingRaised
from checkengine.guards.finding import Finding, Severity
from checkengine.replay.catalog import Catalog, queries


def test_the_demos_verdicts_stand_beside_its_bundles_without_content(tmp_path: Path) -> None:
    settings = drill_settings(tmp_path)
    spool = SpoolWriter(settings.spool.directory)
    found = Finding("logits.nonfinite", "chat-3", Severity.ERROR, 4, 2, "nonfinite", 1, {"nan": 3})
    spool.handle(FindingRaised(found, "inc-1", 1.0, True))
    spool.handle(BundleWritten("b-1", "inc-1", str(tmp_path / "b-1"), 2.0))
    spool.close()
    verdict = {"kind": "code defect", "sentence": "the kernel reads a slot that nobody owns"}
    result = {"verdict": verdict, "steps": 3, "tokens": ["private"], "strip": ["private"]}
    collect_into_catalog(settings, [Judged("b-1", 3.0, 1, result)])
    catalog = Catalog.open(settings.catalog.url)
    with catalog.reading() as session:
        (row,) = queries.replays(session, "b-1")
    catalog.close()
    assert (row.verdict, row.exit_code, row.time) == ("code defect", 1, 3.0)
    assert row.result == {"verdict": verdict, "steps": 3}
