"""Looped models in three forms: those that blow up are told in time, contractions never."""

from __future__ import annotations

import json

import pytest
import torch
from typer.testing import CliRunner

from checkengine.commands.drill import app
from checkengine.motion.loop import figures, run
from checkengine.motion.looped_model import FORMS, LoopedModel


@pytest.mark.parametrize("form", FORMS[:2])
def test_an_unstable_loop_is_told_before_a_value_overflows(form):
    found = run(form, 1.2, seed=0)
    assert found.overflow is not None
    assert len(found.told) == found.rows
    assert max(found.told) < found.overflow
    assert found.estimates == pytest.approx([1.2] * found.rows, abs=0.05)


@pytest.mark.parametrize("form", FORMS[:2])
def test_a_stable_loop_is_not_told(form):
    found = run(form, 0.9, seed=1)
    assert (found.told, found.overflow) == ([], None)


@pytest.mark.parametrize("radius", [0.5, 1.4, 100.0])
def test_the_constrained_form_contracts_whatever_its_parameters_are(radius):
    found = run("constrained", radius, seed=2)
    assert (found.told, found.overflow) == ([], None)


def test_all_forms_are_models_that_give_logits():
    for form in FORMS:
        logits = LoopedModel(form, 0.9, loops=3)(torch.tensor([[1, 2, 3]]))
        assert logits.shape == (1, 3, 160)
        assert torch.isfinite(logits).all()


def test_every_figure_of_the_quick_drill_meets_its_target():
    missed = [each["name"] for each in figures(quick=True) if not each["ok"]]
    assert missed == []


def test_the_command_prints_json_in_the_shape_of_all_measuring_commands(monkeypatch):
    monkeypatch.setattr("checkengine.motion.loop.figures", lambda *, quick: [dict.fromkeys(("name", "ok"), True)])
    done = CliRunner().invoke(app, ["loop", "--json"])
    assert done.exit_code == 0
    assert json.loads(done.stdout)["command"] == "drill loop"


def test_a_drill_that_is_not_there_is_one_clear_error():
    done = CliRunner().invoke(app, ["nothing"])
    assert "there are tiers, loop" in str(done.exception)
