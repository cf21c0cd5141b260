"""Bundles of every released format are read, replayed and judged as on the day they were written."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from make_golden import GOLDEN, SECRET
from small_engine import SmallExecutor, SmallFault, SmallModel

from checkengine.replay.bundle import BundleReader, append_result, results_of
from checkengine.replay.bundle.files import Entry
from checkengine.replay.investigate import investigate
from checkengine.replay.judge.verdict import VerdictKind

FORMATS = sorted(path.name for path in GOLDEN.iterdir() if path.is_dir())


@pytest.fixture
def golden(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "identity").write_bytes(SECRET)
    monkeypatch.setenv("CHECKENGINE_STATE", str(tmp_path / "state"))
    monkeypatch.setenv("CHECKENGINE_IDENTITY", str(tmp_path / "identity"))
    return Path(shutil.copytree(GOLDEN / request.param, tmp_path / "bundle"))


def test_there_is_a_golden_bundle_of_every_format() -> None:
    assert FORMATS == ["1.0", "1.1", "1.2"]


@pytest.mark.parametrize("golden", FORMATS, indirect=True)
def test_a_golden_bundle_replays_and_is_judged_as_on_its_day(golden: Path) -> None:
    reader = BundleReader(golden)
    reader.verify()
    assert reader.level == "full"
    executor = SmallExecutor(SmallModel(5), SmallFault("over_read", layer=1))
    found = investigate(reader.capture(), executor, None)
    assert found.verdict is not None
    assert found.verdict.kind is VerdictKind.CODE_DEFECT, found.verdict
    assert found.verdict.layers == (1,)
    assert found.verdict.slots[0].words.startswith("slot ")
    assert "one past the end" in found.verdict.slots[0].words
    append_result(golden, found.to_dict())
    assert len(results_of(golden)) == 1


@pytest.mark.parametrize("golden", FORMATS, indirect=True)
def test_what_a_newer_minor_version_adds_is_read_over_and_survives_a_result(golden: Path) -> None:
    manifest = json.loads((golden / "manifest.json").read_text())
    manifest["of the future"] = {"deep": [1]}
    manifest["version"] = [1, 99]
    data = json.dumps(manifest).encode()
    (golden / "manifest.json").write_bytes(data)
    marker = json.loads((golden / "BUNDLE").read_text())
    marker |= {"manifest": Entry.of(data).to_json(), "version": [1, 99], "of the future": True}
    (golden / "BUNDLE").write_text(json.dumps(marker))
    (golden / "future.bin").write_bytes(b"x")
    assert BundleReader(golden).capture()
    append_result(golden, {"a": 1})
    assert json.loads((golden / "manifest.json").read_text())["of the future"] == {"deep": [1]}
    assert json.loads((golden / "BUNDLE").read_text())["of the future"] is True
