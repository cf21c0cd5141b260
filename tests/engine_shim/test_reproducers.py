"""What an incident keeps while content is off, made in the background: bounded, counted, and never in the way."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from checkengine.assemble import embed
from checkengine.config import Settings
from checkengine.engine_shim.engine.request import GenerationRequest, SamplingParameters
from checkengine.engine_shim.faults import NanAttention
from checkengine.engine_shim.reproducers import Reproducers
from checkengine.engine_shim.settings import EngineSettings
from checkengine.guards.finding import Finding, Severity
from checkengine.replay.bundle import BundleReader
from checkengine.replay.bundle.calls import holds_call, read_call
from checkengine.replay.capture import Capture
from checkengine.replay.memory import MemoryImage
from checkengine.replay.recorded import RecordedWindow, pack_tables
from checkengine.replay.settings import AuditSettings, CaptureSettings, SpoolSettings
from checkengine.tiny import tiny_model, tiny_tokenizer

HERE = Path("bundle")


def a_capture(*findings: Finding) -> Capture:
    image = MemoryImage(8, np.empty(0, np.int32), {}, {})
    return Capture(RecordedWindow([], pack_tables({}), {}), image, frozenset(), findings=findings)


FINDING = Finding("logits.nonfinite", "r1", Severity.ERROR, 3, 0, "test")


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_every_capture_is_counted_once_whatever_becomes_of_it(caplog: pytest.LogCaptureFixture) -> None:
    results: list[Any] = [HERE, None, ValueError("broken")]
    told: list[Path] = []
    clock = Clock()

    def make(capture: Capture, path: Path) -> Path | None:
        result = results.pop(0)
        if isinstance(result, Exception):
            raise result
        return result

    reproducers = Reproducers(make, told=lambda capture, path: told.append(path), clock=clock)
    for _ in range(3):
        reproducers.take(a_capture(FINDING), HERE)
        reproducers._worker._queue.join()
        reproducers.take(a_capture(FINDING), HERE)  # too soon after the last one
        clock.now += 61.0
    reproducers.close()
    assert reproducers.outcomes() == {"made": 1, "none": 1, "failed": 1, "dropped": 3}
    assert told == [HERE]
    assert "making it failed" in caplog.text


def test_one_waits_at_most_and_taking_never_does() -> None:
    begun, go_on = threading.Event(), threading.Event()

    def make(capture: Capture, path: Path) -> None:
        begun.set()
        go_on.wait(10)

    reproducers = Reproducers(make, pause_seconds=0.0)
    reproducers.take(a_capture(FINDING), HERE)
    assert begun.wait(10)
    for _ in range(3):
        reproducers.take(a_capture(FINDING), HERE)
    go_on.set()
    reproducers.close()
    assert reproducers.outcomes() == {"made": 0, "none": 2, "failed": 0, "dropped": 2}


def test_a_capture_without_a_finding_and_one_after_the_end_are_left_alone() -> None:
    made: list[Path] = []
    reproducers = Reproducers(lambda capture, path: made.append(path), pause_seconds=0.0)
    reproducers.take(a_capture(), HERE)
    reproducers.close()
    reproducers.take(a_capture(FINDING), HERE)
    assert made == []


def served(directory: Path, **capture: Any) -> Any:
    """One incident of NaN under a kernel that makes it."""
    torch.set_num_threads(1)
    settings = Settings(
        engine=EngineSettings(block_size=8, blocks=40, threads=1),
        audit=AuditSettings(enabled=False),
        spool=SpoolSettings(enabled=False),
        capture=CaptureSettings(directory=directory, window_steps=8, **capture),
    )
    engine, shim = embed(tiny_model(layers=2), tiny_tokenizer(), settings, [NanAttention(8, 1, 1)])
    assert shim is not None
    sampling = SamplingParameters(temperature=0.8, seed=1, max_tokens=16, ignore_eos=True)
    engine.submit(GenerationRequest("r1", list(range(5, 17)), sampling))
    while engine.has_work:
        engine.step()
    shim.close()
    return shim.assembly


def test_with_content_off_an_incident_keeps_a_reproducer_with_made_up_values_beside_its_bundle(tmp_path: Path) -> None:
    assembly = served(tmp_path)
    assert assembly.reproducers.outcomes()["made"] == 1
    (incident,) = assembly.book.incidents(0.0)
    assert len(incident.bundles) == 2
    readers = [BundleReader(tmp_path / name, "test") for name in incident.bundles]
    assert [holds_call(reader) for reader in readers] == [False, True]
    stored = read_call(readers[1])
    assert stored.values.value != "recorded"
    assert readers[1].json("lineage.json")["parent"]["manifest_sha256"]
    assert not (tmp_path / incident.bundles[1] / "content").exists()


@pytest.mark.parametrize("capture", [{"reproducer": False}, {"content": "full"}], ids=["switched off", "with content"])
def test_no_reproducer_is_made_where_it_is_switched_off_or_the_content_is_there(tmp_path: Path, capture: Any) -> None:
    assembly = served(tmp_path, **capture)
    assert assembly.reproducers is None
    assert len(list(tmp_path.iterdir())) == 1
