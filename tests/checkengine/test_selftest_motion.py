"""The self-test's faults of KV in motion, ranks and loops: all told, and a self-test that misses one says so."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from checkengine import selftest_motion
from checkengine.commands.selftest import app
from checkengine.engine_shim.tiers.moves import PLANTED, Move
from checkengine.guards.errors import UserError
from checkengine.selftest_faults import names_of


@pytest.mark.parametrize("name", ["kv tier", "looped model"])
def test_every_planted_fault_of_a_class_is_told(name):
    assert [each["name"] for each in selftest_motion.class_figures(name) if not each["ok"]] == []


def test_every_class_of_a_broken_block_is_planted_on_each_side_that_can_break_it():
    done = CliRunner().invoke(app, ["--class", "kv transfer", "--json"])
    figures = json.loads(done.stdout)["figures"]
    assert done.exit_code == 0
    assert len(figures) == 13
    assert all(any(planted in each["name"] for each in figures) for planted in PLANTED)


def test_a_transfer_that_breaks_nothing_is_a_self_test_that_failed(monkeypatch):
    monkeypatch.setattr("checkengine.motion.tiers.FaultyMove", lambda *ignored: Move())
    assert not any(each["ok"] for each in selftest_motion.class_figures("kv transfer"))


def test_an_unknown_class_is_told_the_ones_of_moving_kv_too():
    with pytest.raises(UserError, match="kv transfer, kv tier, lost rank, looped model"):
        names_of("nonsense")
