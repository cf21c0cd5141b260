"""The self-test finds what is wrong, and its report has the shape of every measuring command."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from checkengine import __version__, selftest
from checkengine.commands.selftest import app
from checkengine.detectors import row_stats
from checkengine.engine_shim.faults import FAULTS, ApproximateTopK, Fault, MaskedStop, NanAttention, OverRead
from checkengine.figures import passed, processor, report
from checkengine.selftest_faults import fault_figures, planted


def test_this_machine_passes_and_says_so_in_json() -> None:
    done = CliRunner().invoke(app, ["--json"])
    measured = json.loads(done.stdout)
    assert (measured["command"], measured["version"]) == ("selftest", __version__)
    assert {"processor", "cores", "threads", "torch"} <= set(measured["machine"])
    assert all({"name", "value", "unit", "target", "ok"} <= set(figure) for figure in measured["figures"])
    assert [figure for figure in measured["figures"] if not figure["ok"]] == []
    assert done.exit_code == 0


def test_people_get_a_table() -> None:
    done = CliRunner().invoke(app)
    assert done.exit_code == 0
    assert "one NaN planted" in done.stdout
    assert "MISSED" not in done.stdout


def test_a_backend_that_miscounts_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(logits: torch.Tensor, level: Any = "full", backend: str = "auto") -> Any:
        stats = row_stats(logits, level, backend)  # type: ignore[arg-type]
        if backend == "numba":
            stats.fingerprint[2] += np.uint64(1)  # type: ignore[index]
            stats.logsumexp[0] += 0.01  # type: ignore[index]
        return stats

    monkeypatch.setattr(selftest, "row_stats", wrong)
    missed = {figure["name"]: figure["value"] for figure in selftest.selftest_figures() if not figure["ok"]}
    assert missed["row statistics that differ between backends"] == 2
    assert missed["largest difference of logsumexp between backends"] == pytest.approx(0.01, rel=0.1)


def test_guards_that_see_nothing_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selftest, "build_guards", lambda settings, vocabulary: [])
    missed = [figure for figure in selftest.selftest_figures() if not figure["ok"]]
    assert [figure["name"] for figure in missed] == ["rows wrongly judged with one NaN planted"]
    assert not passed(report("selftest", missed))


def test_a_missed_figure_is_exit_code_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selftest, "build_guards", lambda settings, vocabulary: [])
    assert CliRunner().invoke(app, ["--json"]).exit_code == 1


def test_a_machine_that_does_not_name_its_processor_is_no_error(tmp_path: Path) -> None:
    assert isinstance(processor(tmp_path / "none"), str)
    (tmp_path / "cpuinfo").write_text("vendor\t: x\nmodel name\t: Some CPU\n")
    assert processor(tmp_path / "cpuinfo") == "Some CPU"


def test_a_fault_that_does_nothing_is_a_missed_figure(monkeypatch: pytest.MonkeyPatch) -> None:
    """The self-test finds the faults because they act, not because they are expected."""
    monkeypatch.setattr(NanAttention, "attention_output", Fault.attention_output)
    monkeypatch.setattr(OverRead, "reads", Fault.reads)
    monkeypatch.setattr(MaskedStop, "masks_stop", Fault.masks_stop)
    monkeypatch.setattr(ApproximateTopK, "loses", Fault.loses)
    missed = {figure["name"]: figure["missed_by"] for figure in fault_figures() if not figure["ok"]}
    assert missed == {
        "watchers that missed a planted nan_attention": ["the guards", "the judge"],
        "watchers that missed a planted over_read": ["the audit"],
        "watchers that missed a planted masked_stop": ["the judge"],
        "watchers that missed a planted approximate_top_k": ["the guards"],
    }


def test_every_fault_has_a_self_test() -> None:
    with pytest.raises(ValueError, match="no self-test for the fault 'other'"):
        planted("other", None, None)
    assert set(FAULTS) == {NanAttention.name, OverRead.name, MaskedStop.name, ApproximateTopK.name}
