"""Call bundles of every released format are read and judged as on the day they were written."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest
import torch

from checkengine.engine_shim.faults import OverRead
from checkengine.replay.bundle import BundleError, BundleReader, append_result, export_bundle, import_bundle, results_of
from checkengine.replay.bundle.calls import read_call
from checkengine.replay.judge.fault_class import FaultClass
from checkengine.replay.judge.verdict import VerdictKind
from checkengine.replay.minimise.investigate_call import investigate_call

sys.path.insert(0, str(Path(__file__).parent.parent / "replay"))
from make_golden_call import GOLDEN_CALLS, stored

FORMATS = sorted(path.name for path in GOLDEN_CALLS.iterdir() if path.is_dir())


@pytest.fixture(params=FORMATS)
def golden(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CHECKENGINE_STATE", str(tmp_path / "state"))
    path = Path(shutil.copytree(GOLDEN_CALLS / request.param, tmp_path / "bundle"))
    (path / "results").mkdir(exist_ok=True)  # git keeps no empty folder
    return path


def test_there_is_a_golden_call_of_every_format_since_the_first() -> None:
    assert FORMATS == ["1.2"]


def test_a_golden_call_is_judged_as_on_its_day(golden: Path) -> None:
    reader = BundleReader(golden)
    reader.verify()
    found = investigate_call(reader)
    assert found.reproduced
    assert found.exit_code == 1
    assert found.verdict is not None
    assert found.verdict.kind is VerdictKind.CODE_DEFECT
    assert found.verdict.fault_class is FaultClass.OVER_READ
    assert found.verdict.layers == (3,)
    assert [place.slot for place in found.verdict.slots] == [9]
    append_result(golden, found.to_dict())
    assert len(results_of(golden)) == 1


def test_a_call_is_not_taken_for_a_damaged_window(golden: Path) -> None:
    for read in (BundleReader(golden).window, BundleReader(golden).capture):
        with pytest.raises(BundleError, match="one op's call and no window"):
            read()


def test_a_golden_calls_values_are_the_bits_of_its_day(golden: Path) -> None:
    read, made = read_call(BundleReader(golden)).call, stored().call
    assert torch.equal(read.keys, made.keys)
    assert torch.equal(read.beside[0].query, made.beside[0].query)
    assert (read.query * 32).flatten()[:4].tolist() == [18.0, -95.0, -111.0, 58.0]


def test_a_mended_kernel_makes_a_golden_call_good(golden: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(OverRead, "told", lambda self, lengths, hit: lengths)
    found = investigate_call(BundleReader(golden))
    assert found.reproduced is False
    assert found.exit_code == 0


def test_a_golden_call_travels_as_one_file(golden: Path, tmp_path: Path) -> None:
    file = export_bundle(golden, tmp_path / "fault.checkengine")
    assert investigate_call(BundleReader(import_bundle(file, tmp_path / "there"))).reproduced
