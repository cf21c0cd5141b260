from __future__ import annotations

from pathlib import Path

import pytest
from small_engine import SmallEngine, SmallExecutor, SmallFault

from checkengine.replay.bundle import BundleReader, DeploymentKey, write_bundle
from checkengine.replay.replayer import Replayer


@pytest.mark.parametrize("kind", ["none", "over_read"])
@pytest.mark.parametrize("chosen", [[1], [2, 3]])
def test_a_replay_from_a_bundle_equals_the_replay_from_memory(tmp_path: Path, kind: str, chosen: list[int]) -> None:
    engine = SmallEngine(SmallFault(kind), seed=3)  # type: ignore[arg-type]
    engine.run(40)
    capture = engine.capture(chosen, first=10, last=30, undo_from=10)
    path = write_bundle(capture, tmp_path, content="full", key=DeploymentKey(bytes(32)))
    executor = SmallExecutor(engine.model, engine.fault)
    from_memory = Replayer(executor, capture).replay()
    from_bundle = Replayer(executor, BundleReader(path).capture()).replay()
    assert from_bundle.bit_exact == from_memory.bit_exact
    assert from_bundle.to_dict() == from_memory.to_dict()
    assert from_bundle.rows > 0
    assert from_bundle.exact_from == "undo"
