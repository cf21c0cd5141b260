"""How the transfer drill judges what its two vLLM processes say; the processes themselves run in make test-vllm."""

from __future__ import annotations

from pathlib import Path

import pytest

from checkengine.engine_shim.spool import SpoolWriter
from checkengine.guards.errors import UserError
from checkengine.guards.events import FindingRaised
from checkengine.guards.finding import Finding, Severity
from checkengine.motion import kv_transfer

ANSWERS = {
    "clean": [1, 2],
    "bit flip, transport": [1, 2],
    "bit flip, transport struck": [1],
    "late write, prefill": [3],
    "late write, prefill struck": [1],
}
WRITTEN = {"clean": [1, 2], "late write, prefill": [3], "late write, prefill struck": [1]}
TOLD = [{"bit_flip": True}, {"late_write": True}]
SIDES = ["transport", "prefill"]


def missed(answers, told, written=(), sides=SIDES):
    found = kv_transfer.judged(WRITTEN | dict(written), answers, told, list(sides))
    return [each["name"] for each in found if not each["ok"]]


def test_a_drill_in_which_all_is_caught_meets_every_target():
    assert missed(ANSWERS, TOLD) == []


def test_a_share_is_not_told_as_a_count():
    units = {each["unit"].partition(":")[0] for each in kv_transfer.judged(WRITTEN, ANSWERS, TOLD, SIDES)}
    assert units == {"share of 2", "share of 1"}


@pytest.mark.parametrize(
    ("answers", "told", "figure"),
    [
        (ANSWERS | {"bit flip, transport struck": []}, TOLD, "faults that struck"),
        (ANSWERS, TOLD[:1], "caught and named"),
        (ANSWERS, TOLD[::-1], "caught and named"),
        (ANSWERS, [*TOLD, {"late_write": True}], "caught and named"),
        (ANSWERS | {"late write, prefill": [1, 2]}, TOLD, "answers equal"),
        (ANSWERS | {"clean": [9]}, TOLD, "clean transfer"),
    ],
)
def test_whatever_goes_wrong_misses_its_target(answers, told, figure):
    assert any(figure in name for name in missed(answers, told))


@pytest.mark.parametrize("sides", [["prefill", "transport"], ["transport"], [*SIDES, "decode"]])
def test_a_side_that_is_not_told_or_wrongly_told_misses_its_target(sides):
    assert any("side that broke it" in name for name in missed(ANSWERS, TOLD, sides=sides))


def test_a_prefill_fault_that_did_not_strike_in_the_prefilling_process_misses_its_target():
    assert any("struck" in name for name in missed(ANSWERS, TOLD, {"late write, prefill struck": []}))


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
