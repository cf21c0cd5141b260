"""Makes the golden bundle of the present format: `python tests/replay/make_golden.py` beside its folder, once a format.

Golden bundles are never made again: they stand for what is on users' disks.
"""

from __future__ import annotations

import os
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from plain_bundle import as_format_1_0
from small_engine import SmallEngine, SmallFault

from checkengine.guards.finding import Finding, Severity
from checkengine.replay.bundle import DeploymentKey, Identity, write_bundle
from checkengine.replay.bundle.layout import VERSION

GOLDEN = Path(__file__).parent / "golden"
SECRET = b"golden bundles hold no secret!!!"
"""Of the identity that may read them; 32 bytes."""


def main() -> None:
    engine = SmallEngine(SmallFault("over_read", layer=1), seed=5)
    engine.run(24)
    handle = next(iter(engine.live))
    finding = Finding("audit.defect", f"s{handle}", Severity.ERROR, 23, 0, "audit")
    capture = replace(engine.capture([handle], first=16, undo_from=16, findings=(finding,)), identifier="golden")
    key = DeploymentKey(bytes(32))
    with tempfile.TemporaryDirectory() as folder:
        os.environ["CHECKENGINE_STATE"] = folder
        (Path(folder) / "identity.key").write_bytes(SECRET)
        for version in ("1.0", f"{VERSION[0]}.{VERSION[1]}"):
            if not (GOLDEN / version).exists():
                path = write_bundle(capture, folder, content="full", key=key, recipients=[Identity(SECRET).public])
                if version == "1.0":
                    as_format_1_0(path)
                os.rename(path, GOLDEN / version)


if __name__ == "__main__":
    main()
