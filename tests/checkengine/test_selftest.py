"""The self-test finds what is wrong, and its report has the shape of every measuring command."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from checkengine import __version__, selftest, selftest_device, selftest_faults
from checkengine.commands.selftest import NO_DEVICE, app
from checkengine.detectors import row_stats
from checkengine.engine_shim.faults import (
    FAULTS,
    ApproximateTopK,
    Fault,
    FaultClass,
    MaskedStop,
    NanAttention,
    OverRead,
)
from checkengine.engine_shim.faults.blind import BLIND_FAULTS
from checkengine.engine_shim.faults.fresh import FRESH_FAULTS
from checkengine.figures import passed, processor, report
from checkengine.guards.errors import UserError
from checkengine.replay.judge.judge import Judge
from checkengine.replay.judge.verdict import Verdict, VerdictKind
from checkengine.selftest_cases import case_of
from checkengine.selftest_device import PagedCall, depends_on_fills, write_log
from checkengine.selftest_faults import QUICK, figure_of, judged, names_of
from checkengine.selftest_judging import Judged, Outcome
from checkengine.selftest_table import fault_tables

DOCUMENT = Path(__file__).parents[2] / "docs" / "selftest.md"
FEW = ("nan_attention", "over_read", "masked_stop", "approximate_top_k")


def test_this_machine_passes_and_says_so_in_json() -> None:
    done = CliRunner().invoke(app, ["--json"])
    measured = json.loads(done.stdout)
    assert (measured["command"], measured["version"]) == ("selftest", __version__)
    assert {"processor", "cores", "threads", "torch"} <= set(measured["machine"])
    assert all({"name", "value", "unit", "target", "ok"} <= set(figure) for figure in measured["figures"])
    assert [figure for figure in measured["figures"] if not figure["ok"]] == []
    assert done.exit_code == 0


def test_people_get_a_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selftest_faults, "clean_figures", list)
    done = CliRunner().invoke(app, ["--class", "over_read"])
    assert done.exit_code == 0
    assert "planted over_read" in done.stdout
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
    monkeypatch.setattr(selftest_faults, "clean_figures", list)
    monkeypatch.setattr(OverRead, "told", lambda self, lengths, hit: lengths)
    assert CliRunner().invoke(app, ["--json", "--class", "over_read"]).exit_code == 1


def test_a_machine_that_does_not_name_its_processor_is_no_error(tmp_path: Path) -> None:
    assert isinstance(processor(tmp_path / "none"), str)
    (tmp_path / "cpuinfo").write_text("vendor\t: x\nmodel name\t: Some CPU\n")
    assert processor(tmp_path / "cpuinfo") == "Some CPU"


def test_a_fault_that_does_nothing_is_a_missed_figure(monkeypatch: pytest.MonkeyPatch) -> None:
    """The self-test finds the faults because they act, not because they are expected."""
    monkeypatch.setattr(NanAttention, "attention_output", Fault.attention_output)
    monkeypatch.setattr(OverRead, "told", lambda self, lengths, hit: lengths)
    monkeypatch.setattr(MaskedStop, "masks_stop", Fault.masks_stop)
    monkeypatch.setattr(ApproximateTopK, "loses", Fault.loses)
    figures = {name: figure_of(judged(case_of(name))) for name in FEW}
    assert {name: (figure["ok"], figure["outcome"]) for name, figure in figures.items()} == dict.fromkeys(
        FEW, (False, "inert")
    )


def test_a_judge_that_convicts_of_something_else_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def otherwise(self: Judge, *arguments: Any) -> Verdict:
        return Verdict(VerdictKind.STALE_KV, "the memory was overwritten")

    monkeypatch.setattr(Judge, "judge", otherwise)
    figure = figure_of(judged(case_of("over_read")))
    assert (figure["ok"], figure["outcome"], figure["called"]) == (False, "misnamed", "stale or overwritten KV")


def test_a_judge_that_sees_nothing_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Judge, "judge", lambda self, *arguments: Verdict(VerdictKind.NO_FAULT, "nothing"))
    figure = figure_of(judged(case_of("over_read")))
    assert (figure["ok"], figure["outcome"]) == (False, "missed")


def test_a_judge_that_raises_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: Judge, *arguments: Any) -> Verdict:
        raise IndexError("list index out of range")

    monkeypatch.setattr(Judge, "judge", fail)
    figure = figure_of(judged(case_of("over_read")))
    assert (figure["ok"], figure["outcome"]) == (False, "raised")
    assert figure["called"] == "IndexError: list index out of range"


def test_a_nonfinite_fault_must_be_seen_by_the_guards_too() -> None:
    case = case_of("nan_attention")
    figure = figure_of(Judged(case, Outcome.NAMED, "non-finite", findings=["repetition.loop"]))
    assert (figure["ok"], figure["unseen_by"]) == (False, ["logits.nonfinite"])


def test_the_quick_set_has_a_fault_of_every_class() -> None:
    assert {FAULTS[name].fault_class for name in QUICK} == {fault.fault_class for fault in FAULTS.values()}


def test_a_class_is_chosen_by_its_words_or_its_name_and_an_unknown_one_is_refused() -> None:
    known = {**FAULTS, **BLIND_FAULTS, **FRESH_FAULTS}
    both = {name for name, fault in known.items() if fault.fault_class is FaultClass.WINDOW_EDGE}
    assert set(names_of("wrong window edge")) == set(names_of("WINDOW_EDGE")) == both
    assert names_of("over_read") == ("over_read",)
    with pytest.raises(UserError, match="no class and no fault 'gremlin'"):
        names_of("gremlin")


def test_the_table_of_faults_in_the_documentation_is_current() -> None:
    assert fault_tables() in DOCUMENT.read_text()


class TestOnDevice:
    def test_without_an_accelerator_it_says_so_and_exits_with_three(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(selftest_device, "device_name", lambda: "")
        monkeypatch.setattr(selftest_faults, "clean_figures", list)
        log = tmp_path / "log.txt"
        done = CliRunner().invoke(app, ["--on-device", "--json", "--class", "over_read", "--log", str(log)])
        assert done.exit_code == NO_DEVICE
        assert "nothing is proven of an accelerator" in log.read_text()
        assert "nothing was proven" in done.stderr

    def test_a_missed_figure_is_in_the_log(self, tmp_path: Path) -> None:
        figures = [selftest_device._figure("over-reads that fills missed", 2, "of 11", 0)]
        write_log(tmp_path / "log.txt", report("selftest --on-device", figures))
        assert "MISSED  over-reads that fills missed: 2 of 11" in (tmp_path / "log.txt").read_text()

    @pytest.mark.parametrize("length", [17, 32, 100])
    def test_fills_tell_an_over_read_of_torchs_attention_and_convict_no_right_one(self, length: int) -> None:
        assert depends_on_fills(PagedCall(length, torch.float32, over=1))
        assert not depends_on_fills(PagedCall(length, torch.float32))
