"""The language guard on token ids and on text: stages, places, evidence."""

from __future__ import annotations

import logging

import pytest

from checkengine.detectors.vocabulary import Vocabulary
from checkengine.guards.finding import Severity
from checkengine.guards.language import LanguageGuard
from checkengine.guards.settings import LanguageSettings
from checkengine.guards.step import SequenceStart
from checkengine.guards.text import TextStart
from checkengine.guards.text_language import LanguageTextGuard

FRENCH = "Le vieux port était calme ce matin, et les bateaux étaient serrés contre le quai pendant que les enfants "
ENGLISH = "The old harbour was quiet in the morning, and the boats lay close to the wall while the children went home "
RUSSIAN = "Старая гавань была тихой утром, и лодки стояли близко к стене, пока дети шли в школу. "


@pytest.fixture
def vocabulary(vocabulary_of) -> Vocabulary:
    return vocabulary_of([word + " " for word in (FRENCH + ENGLISH + RUSSIAN).split()])


@pytest.fixture
def ids(vocabulary):
    return lambda text: [vocabulary.ids_of(word + " ")[0] for word in text.split()]


def test_a_turn_to_another_language_is_a_warning_and_then_an_error_near_its_first_token(drive, vocabulary, ids):
    guard = LanguageGuard(LanguageSettings(), vocabulary)
    guard.begin(SequenceStart(1, "a", language="fr"))
    warning, error = drive(guard, ids(FRENCH + ENGLISH * 3))
    assert [each.kind for each in (warning, error)] == ["language.switch"] * 2
    assert [each.severity for each in (warning, error)] == [Severity.WARNING, Severity.ERROR]
    # Up to two words after one that spoke for French are not looked at.
    assert len(FRENCH.split()) <= warning.token <= error.token <= len(FRENCH.split()) + 2
    assert warning.step < error.step
    assert warning.evidence["nats"] >= LanguageSettings().warn_evidence


def test_the_prompts_language_is_the_expectation_where_the_request_names_none(drive, vocabulary, ids):
    guard = LanguageGuard(LanguageSettings(), vocabulary)
    guard.begin(SequenceStart(1, "a", prompt_tokens=tuple(ids(FRENCH))))
    assert drive(guard, ids(FRENCH * 3)) == []
    guard.begin(SequenceStart(2, "a", prompt_tokens=tuple(ids(FRENCH))))
    assert drive(guard, ids(ENGLISH * 3))


def test_a_turn_to_another_script_is_told_at_once(drive, vocabulary, ids):
    guard = LanguageGuard(LanguageSettings(), vocabulary)
    guard.begin(SequenceStart(1, "a", language="fr"))
    first = drive(guard, ids(FRENCH + RUSSIAN * 2))[0]
    assert (first.severity, first.token) == (Severity.WARNING, len(FRENCH.split()))
    assert first.step <= len(FRENCH.split()) + 1


def test_places_count_from_the_outputs_first_token_where_the_guard_came_in_late(drive, vocabulary, ids):
    guard = LanguageGuard(LanguageSettings(), vocabulary)
    first = drive(guard, ids(FRENCH * 5 + ENGLISH * 3), before=1000)[0]
    assert 0 <= first.token - (1000 + 5 * len(FRENCH.split())) <= 2


def test_a_guard_without_its_model_still_reads_scripts(drive, vocabulary, ids, monkeypatch, caplog):
    def missing() -> None:
        raise ImportError("py3langid")

    monkeypatch.setattr("checkengine.detectors.language.tokens.language_model", missing)
    with caplog.at_level(logging.WARNING):
        guard = LanguageGuard(LanguageSettings(switch_tokens=10), vocabulary)
    assert "only scripts" in caplog.text
    guard.begin(SequenceStart(1, "a", language="fr"))
    assert drive(guard, ids(FRENCH + ENGLISH)) == []
    assert drive(guard, ids(RUSSIAN))[0].kind == "language.switch"


def test_languages_can_be_left_to_scripts_alone(drive, vocabulary, ids):
    guard = LanguageGuard(LanguageSettings(languages=False), vocabulary)
    guard.begin(SequenceStart(1, "a", language="fr"))
    assert drive(guard, ids(FRENCH + ENGLISH * 3)) == []


def test_five_hundred_sequences_share_the_slots_of_those_that_are_over(step_of, vocabulary, ids):
    guard = LanguageGuard(LanguageSettings(), vocabulary)
    found = []
    for index in range(500):
        name = f"s{index}"
        guard.begin(SequenceStart(index, name, language="fr"))
        text = ENGLISH * 2 if index % 2 else FRENCH * 2
        found += [(index, each) for each in guard.observe(step_of({name: ids(text)}))]
        guard.forget(name)
    assert {index for index, _ in found} == set(range(1, 500, 2))
    assert len(guard._familiar) == 16


def text_findings(text: str, start: TextStart, settings: LanguageSettings | None = None):
    guard = LanguageTextGuard(start, settings)
    return [*guard.push(text), *guard.end()]


def test_a_completion_is_read_against_the_language_of_its_request():
    warning, error = text_findings(FRENCH + ENGLISH * 3, TextStart("r1", language="fr"))
    assert (warning.kind, warning.id, warning.severity) == ("language.switch", "r1", Severity.WARNING)
    assert error.severity == Severity.ERROR
    assert len(FRENCH) <= warning.at["char"] <= len(FRENCH + "The old ")
    assert warning.evidence["foreign"] == "en"
    assert warning.evidence["expected"] == "fr"
    assert warning.evidence["told_at"] > len(FRENCH)


def test_a_completion_in_its_prompts_language_passes_and_another_does_not():
    assert text_findings(FRENCH * 3, TextStart("r1", prompt=FRENCH)) == []
    assert text_findings(RUSSIAN, TextStart("r1", prompt=FRENCH))[0].evidence["by"] == "script"


def test_a_completion_that_the_user_wanted_translated_passes():
    assert text_findings(ENGLISH * 3, TextStart("r1", prompt="Traduis en anglais : " + FRENCH)) == []


def test_evidence_never_holds_the_text():
    for finding in text_findings(FRENCH + ENGLISH * 3, TextStart("r1", language="fr")):
        assert not any(word in str(finding.evidence) for word in ENGLISH.split() if len(word) > 4)


def test_limits_are_settings():
    late = LanguageSettings(warn_evidence=200, error_evidence=400)
    first = text_findings(FRENCH + ENGLISH * 9, TextStart("r1", language="fr"), late)[0]
    assert first.evidence["nats"] >= 200


@pytest.mark.parametrize("language", ["secret: my prompt text", "zz", "English is what I want", "x" * 5000])
def test_a_language_that_is_none_is_no_expectation_and_never_comes_back(drive, vocabulary, ids, language):
    text = LanguageTextGuard(TextStart("a", FRENCH, language))
    assert [*text.push(FRENCH * 4), *text.end()] == []
    text = LanguageTextGuard(TextStart("a", FRENCH, language))
    found = [*text.push(ENGLISH * 4), *text.end()]
    assert {each.evidence["expected"] for each in found} == {"fr"}
    guard = LanguageGuard(LanguageSettings(), vocabulary)
    guard.begin(SequenceStart(1, "a", prompt_tokens=tuple(ids(FRENCH)), language=language))
    assert drive(guard, ids(FRENCH * 3)) == []
