"""Repetition as findings: warn, stop, withhold, recover; on tokens and on text."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from checkengine.guards.finding import Severity
from checkengine.guards.repetition import RepetitionGuard
from checkengine.guards.repetition_request import asks_for_repetition
from checkengine.guards.settings import RepetitionSettings
from checkengine.guards.step import SequenceStart
from checkengine.guards.text import TextStart
from checkengine.guards.text_repetition import TextRepetitionGuard

SENTENCE = "I am sorry, I cannot answer that question right now. "


def read(text: str, prompt: str = "", size: int = 1 << 30):
    guard = TextRepetitionGuard(TextStart("a", prompt), RepetitionSettings())
    found = [finding for first in range(0, len(text), size) for finding in guard.push(text[first : first + size])]
    return [*found, *guard.end()]


def stages(findings):
    return [(finding.kind, finding.severity) for finding in findings]


def test_a_loop_is_warned_of_first_and_stopped_once_it_has_gone_on_for_long(drive):
    found = drive(RepetitionGuard(RepetitionSettings()), list(range(100, 120)) * 40)
    assert stages(found) == [("repetition.loop", Severity.WARNING), ("repetition.loop", Severity.ERROR)]
    assert {finding.token for finding in found} == {20}


def test_a_loop_that_ends_by_itself_is_told_as_recovered(drive):
    found = drive(RepetitionGuard(RepetitionSettings()), [*list(range(100, 110)) * 8, *range(1000, 1080)])
    assert stages(found) == [("repetition.loop", Severity.WARNING), ("repetition.recovered", Severity.INFO)]


def test_a_prompt_that_asks_for_repetition_withholds_warning_and_stop(drive, vocabulary_of):
    vocabulary = vocabulary_of(["Write", " it", " 500", " times", *(f" word{n}" for n in range(50))])
    guard = RepetitionGuard(RepetitionSettings(), vocabulary)
    guard.begin(SequenceStart(1, "a", prompt_tokens=(2, 3, 4, 5)))
    assert {finding.severity for finding in drive(guard, list(range(6, 16)) * 80)} == {Severity.INFO}


def test_a_prompt_that_holds_the_repeated_part_twice_withholds_the_stop(drive):
    guard = RepetitionGuard(RepetitionSettings())
    guard.begin(SequenceStart(1, "a", prompt_tokens=(1, 2, *list(range(100, 110)) * 3)))
    assert all(finding.severity < Severity.ERROR for finding in drive(guard, list(range(100, 110)) * 80))


def test_several_tokens_of_one_step_are_read_in_order(step_of):
    guard, tokens, found = RepetitionGuard(RepetitionSettings()), list(range(10)) * 60, []
    for first in range(0, len(tokens), 4):
        found += guard.observe(step_of({"a": tokens[first : first + 4]}, step=first, before=first))
    assert stages(found) == [("repetition.loop", Severity.WARNING), ("repetition.loop", Severity.ERROR)]
    assert found[0].token == 10


def test_a_token_outside_the_vocabulary_is_read_like_any_other(drive, vocabulary_of):
    guard = RepetitionGuard(RepetitionSettings(), vocabulary_of(["a", "b"]))
    assert drive(guard, [-5, 1 << 40, 7] * 20)


@pytest.mark.parametrize("token", [1 << 63, -(1 << 63) - 1, 1 << 200])
def test_a_token_beyond_64_bits_in_output_or_prompt_is_read_like_any_other(drive, vocabulary_of, token):
    for vocabulary in (None, vocabulary_of(["a", "b"])):
        guard = RepetitionGuard(RepetitionSettings(), vocabulary)
        guard.begin(SequenceStart(1, "a", prompt_tokens=(token, 1)))
        assert drive(guard, [*range(2, 12), token, *list(range(100, 110)) * 8])


def test_a_strange_token_in_one_row_leaves_the_loop_of_its_neighbour_a_loop(step_of, vocabulary_of):
    guard = RepetitionGuard(RepetitionSettings(), vocabulary_of([f" word{n}" for n in range(60)]))
    found = []
    for index in range(120):
        step = step_of({"loop": [2 + index % 20], "odd": [1 << 70 if index % 3 else 5]}, step=index, before=index)
        found += guard.observe(step)
    assert "loop" in {finding.sequence for finding in found}


TWO_SENTENCES = [
    "The cat sat. The dog ran. ",
    "I am sorry, I cannot answer that. Please try again later. ",
    "Paris is the capital of France. It lies on the Seine.\n",
    "Je suis désolé. Je ne peux pas répondre à cette question. ",
    "对不起，我不能回答。请稍后再试。",
]


@pytest.mark.parametrize("sentences", TWO_SENTENCES)
def test_forty_copies_of_two_sentences_that_nobody_asked_for_reach_the_stop_stage(sentences):
    found = read("Here is an answer. " + sentences * 40, prompt="What is the capital of France?")
    assert stages(found) == [("repetition.loop", Severity.WARNING), ("repetition.loop", Severity.ERROR)]


@pytest.mark.parametrize("sentences", TWO_SENTENCES)
def test_five_copies_of_two_sentences_are_a_warning_at_most(sentences):
    assert all(finding.severity <= Severity.WARNING for finding in read("Here is an answer. " + sentences * 5))


def test_text_is_warned_of_stopped_and_placed_at_its_second_copy():
    found = read("An answer. " + SENTENCE * 60)
    assert stages(found) == [("repetition.loop", Severity.WARNING), ("repetition.loop", Severity.ERROR)]
    assert found[0].at["char"] <= 11 + len(SENTENCE)


def test_a_request_for_repetition_is_only_noted():
    found = read(SENTENCE * 60, prompt="Write the sentence 60 times.")
    assert {finding.severity for finding in found} == {Severity.INFO}
    assert all(finding.evidence["asked"] for finding in found)


@pytest.mark.parametrize("text", ["\n" * 4000, "\u200b" * 6000, "\t \n" * 2000, "\u2800 " * 2000, "\u3164" * 3000])
def test_a_run_of_nothing_that_a_reader_sees_is_told(text):
    assert any(finding.severity == Severity.ERROR for finding in read("Well." + text))


def test_a_short_blank_run_passes():
    assert read("Well." + "\n" * 30 + " " * 100 + "then") == []


@pytest.mark.parametrize("text", ["\ud800\udfff" * 500, "\0" * 5000, "a" * 200_000, "é" * 5000, "0" * 300_000])
def test_text_of_any_kind_is_read(text):
    read(text, size=7777)


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 97), st.sampled_from([SENTENCE * 12, "|---|" * 90 + "\n", "no no " * 60 + "yes. Then 3 came."]))
def test_splitting_a_text_anywhere_changes_no_finding(size, text):
    assert read(text, size=size) == read(text)


@pytest.mark.parametrize(
    "prompt",
    ["Repeat after me", "write hello 50 times", "escribe hola 20 veces", "Schreibe das 10 mal", "répète ce mot",
     "повтори это", "重复五遍这句话", "この文を繰り返して", "이 문장을 반복해"],
)  # fmt: skip
def test_requests_for_repetition_are_known_in_several_languages(prompt):
    assert asks_for_repetition(prompt)


@pytest.mark.parametrize("prompt", ["", "What is the capital of France?", "Summarise the report in three sentences."])
def test_other_prompts_ask_for_nothing_of_the_kind(prompt):
    assert not asks_for_repetition(prompt)
