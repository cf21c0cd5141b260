"""A guard that cannot be made costs itself and nothing else."""

from __future__ import annotations

import pytest

from checkengine.detectors.vocabulary import Vocabulary
from checkengine.guards import build
from checkengine.guards.absent import AbsentGuard
from checkengine.guards.build import build_guards
from checkengine.guards.errors import UserError
from checkengine.guards.pipeline import Pipeline
from checkengine.guards.settings import GuardsSettings
from checkengine.tiny import tiny_tokenizer

VOCABULARY = Vocabulary.from_tokenizer(tiny_tokenizer())
SETTINGS = GuardsSettings()


def test_a_guard_that_cannot_be_made_is_absent_with_its_reason_and_the_others_are_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def breaks(*_: object) -> None:
        raise KeyError("a secret word")

    names = [guard.name for guard in build_guards(SETTINGS, VOCABULARY)]
    monkeypatch.setattr(build, "SaladGuard", breaks)
    guards = build_guards(SETTINGS, VOCABULARY)
    assert [guard.name for guard in guards] == names
    assert [guard.name for guard in guards if isinstance(guard, AbsentGuard)] == ["salad"]
    pipeline = Pipeline(guards, SETTINGS)
    pipeline.rearm("salad")
    state = pipeline.states()["salad"]
    assert not state.active
    assert state.reason.startswith("could not be made: KeyError at test_absent_guard.py:")
    assert "secret" not in state.reason
    assert sum(state.active for state in pipeline.states().values()) == len(names) - 1


def test_what_the_user_must_mend_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    def breaks(*_: object) -> None:
        raise UserError("mend me")

    monkeypatch.setattr(build, "SaladGuard", breaks)
    with pytest.raises(UserError, match="mend me"):
        build_guards(SETTINGS, VOCABULARY)
