"""How the transfer drill judges what its two vLLM processes say; the processes themselves run in make test-vllm."""

from __future__ import annotations

from pathlib import Path

import pytest

from checkengine.engine_shim.spool import SpoolWriter
from checkengine.guards.errors import UserError
from checkengine.guards.events import FindingRaised
from checkengine.guards.finding import Finding, Severity
from checkengine.motion import kv_transfer

ANSWERS = {"clean": [1, 2], "bit flip": [1, 2], "bit flip struck": [1], "late write": [1, 2], "late write struck": [1]}
TOLD = [{"bit_flip": True}, {"late_write": True}]


def missed(answers, told, clean=(1, 2)):
    return [each["name"] for each in kv_transfer.judged(list(clean), answers, told) if not each["ok"]]


def test_a_drill_in_which_all_is_caught_meets_every_target():
    assert missed(ANSWERS, TOLD) == []


def test_a_share_is_not_told_as_a_count():
    units = {each["unit"].partition(":")[0] for each in kv_transfer.judged([1, 2], ANSWERS, TOLD)}
    assert units == {"share of 2", "share of 1"}


@pytest.mark.parametrize(
    ("answers", "told", "figure"),
    [
        (ANSWERS | {"bit flip struck": []}, TOLD, "faults that struck"),
        (ANSWERS, TOLD[:1], "caught and named"),
        (ANSWERS, TOLD[::-1], "caught and named"),
        (ANSWERS, [*TOLD, {"late_write": True}], "caught and named"),
        (ANSWERS | {"late write": [1, 3]}, TOLD, "answers equal"),
        (ANSWERS | {"clean": [9]}, TOLD, "clean transfer"),
    ],
)
def test_whatever_goes_wrong_misses_its_target(answers, told, figure):
    assert any(figure in name for name in missed(answers, told))


def test_findings_are_read_from_the_spool_in_their_order(tmp_path: Path):
    spool = SpoolWriter(tmp_path)
    for evidence in TOLD:
        finding = Finding("kv.integrity", "", Severity.WARNING, 0, 0, "seal", evidence=evidence)
        spool.handle(FindingRaised(finding, "incident", 1.0, True))
    spool.close()
    assert kv_transfer.findings(tmp_path) == TOLD


def test_without_vllm_the_drill_says_where_it_runs(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UserError, match="make vllm-setup"):
        kv_transfer.figures()
