"""Guards that observe by default: repetition, tool calls, language."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest

from checkengine.detectors.vocabulary import Vocabulary
from checkengine.guards.finding import Severity
from checkengine.guards.language import LanguageGuard
from checkengine.guards.repetition import RepetitionGuard
from checkengine.guards.settings import LanguageSettings, RepetitionSettings, ToolCallSettings
from checkengine.guards.step import SequenceStart
from checkengine.guards.tool_calls import ToolCallGuard


def call(query: str) -> list[str]:
    return ["<tool_call>", json.dumps({"name": "search", "arguments": {"query": query}}), "</tool_call>"]


SEA, SKY = call("sea"), call("sky")
WORDS = ["The", "answer", "is", "here", *SEA, SKY[1], "{"]
WORDS += ["море", "тихое", "海", "静", "بحر", "θάλασσα", "ทะเล", "😀"]


@pytest.fixture
def vocabulary(vocabulary_of) -> Vocabulary:
    return vocabulary_of(WORDS)


def ids(vocabulary: Vocabulary, words: Sequence[str]) -> list[int]:
    return [vocabulary.ids_of(word)[0] for word in words]


def test_a_loop_is_found_with_the_second_copy_as_the_first_bad_token(drive):
    period = list(range(100, 140))
    (finding,) = drive(RepetitionGuard(RepetitionSettings()), [1, 2, 3, *period * 6])
    assert finding.kind == "repetition.loop"
    assert finding.evidence["period"] == 40
    assert finding.token == 3 + 40
    assert finding.step < 3 + 40 * 4


def test_a_loop_is_placed_in_the_whole_output_where_the_guard_came_in_late(drive):
    (finding,) = drive(RepetitionGuard(RepetitionSettings()), list(range(40)) * 4, before=1000)
    assert finding.token == 1040


def test_a_divider_and_a_zero_filled_number_pass(drive, vocabulary_of):
    guard = RepetitionGuard(RepetitionSettings(), vocabulary_of([*(f"word{n}" for n in range(100)), "---", "00"]))
    assert drive(guard, [*range(2, 52), *[102] * 60, *range(52, 82), *[103] * 40]) == []


def test_two_copies_of_a_paragraph_are_never_more_than_a_warning(drive):
    found = drive(RepetitionGuard(RepetitionSettings()), list(range(100)) * 2)
    assert all(finding.severity <= Severity.WARNING for finding in found)


def test_sequences_of_one_batch_do_not_mix_their_tokens(step_of):
    guard = RepetitionGuard(RepetitionSettings())
    found = []
    for index in range(200):
        found += guard.observe(step_of({"loop": [index % 20], "fine": [index]}, step=index, before=index))
    assert [finding.sequence for finding in found] == ["loop"]


def test_the_same_call_is_runaway_by_its_second_repeat(drive, vocabulary):
    guard = ToolCallGuard(ToolCallSettings(), vocabulary)
    guard.begin(SequenceStart(1, "a"))
    (finding,) = drive(guard, ids(vocabulary, ["The", *SEA, "is", *SEA, "here", *SEA, *SEA]))
    assert finding.kind == "tool_call.runaway"
    assert finding.evidence == {"identical_calls": 3, "calls": 3}
    assert finding.token == 5
    assert finding.step == 11


def test_a_call_behind_an_ignored_stop_is_runaway_at_once(drive, vocabulary):
    guard = ToolCallGuard(ToolCallSettings(), vocabulary)
    guard.begin(SequenceStart(1, "a", stop_tokens=(0,)))
    (finding,) = drive(guard, [*ids(vocabulary, SEA), 0, 1, *ids(vocabulary, ["The", *SEA])])
    assert finding.kind == "tool_call.runaway"
    assert finding.evidence["past_stop"]
    assert finding.token == 4


def test_different_calls_in_one_turn_are_no_fault(drive, vocabulary):
    guard = ToolCallGuard(ToolCallSettings(), vocabulary)
    guard.begin(SequenceStart(1, "a", stop_tokens=(0,)))
    assert drive(guard, [*ids(vocabulary, [*SEA, "is", SEA[0], SKY[1], SEA[2]]), 0]) == []


def test_a_call_that_never_closes_is_runaway_from_its_start(drive, vocabulary):
    guard = ToolCallGuard(ToolCallSettings(unclosed_tokens=100), vocabulary)
    guard.begin(SequenceStart(1, "a"))
    (finding,) = drive(guard, ids(vocabulary, ["The", "<tool_call>", "{", *["here"] * 200]))
    assert (finding.kind, finding.token) == ("tool_call.runaway", 1)
    assert finding.evidence["open_tokens"] == 101


def test_closing_tags_again_and_again_are_malformed_and_a_lesser_fault(drive, vocabulary):
    guard = ToolCallGuard(ToolCallSettings(stray_closings=3), vocabulary)
    guard.begin(SequenceStart(1, "a"))
    (finding,) = drive(guard, ids(vocabulary, [*SEA, *["</tool_call>"] * 6]))
    assert (finding.kind, finding.token) == ("tool_call.malformed", 3)


def test_jumps_among_writing_systems_are_salad_from_the_first_foreign_token(drive, vocabulary):
    guard = LanguageGuard(LanguageSettings(), vocabulary)
    guard.begin(SequenceStart(1, "a", prompt_tokens=tuple(ids(vocabulary, ["The", "answer"]))))
    (finding,) = drive(guard, ids(vocabulary, ["The", "answer", "море", "海", "بحر", "ทะเล", "θάλασσα"]))
    assert (finding.kind, finding.token) == ("text.salad", 2)


def test_an_output_that_goes_over_to_one_other_writing_system_is_a_switch(drive, vocabulary):
    guard = LanguageGuard(LanguageSettings(switch_tokens=20), vocabulary)
    guard.begin(SequenceStart(1, "a", prompt_tokens=tuple(ids(vocabulary, ["The"]))))
    (finding,) = drive(guard, ids(vocabulary, ["The", "answer", *["море", "тихое"] * 15]))
    assert (finding.kind, finding.token) == ("language.switch", 2)


def test_the_prompts_own_writing_system_is_no_switch(drive, vocabulary):
    guard = LanguageGuard(LanguageSettings(switch_tokens=20), vocabulary)
    guard.begin(SequenceStart(1, "a", prompt_tokens=tuple(ids(vocabulary, ["море"]))))
    assert drive(guard, ids(vocabulary, ["море", "тихое"] * 30)) == []


def test_the_middle_of_a_long_prompt_counts_too(drive, vocabulary):
    (the,) = ids(vocabulary, ["The"])
    prompt = (*[the] * 5000, *ids(vocabulary, ["море"]), *[the] * 5000)
    guard = LanguageGuard(LanguageSettings(switch_tokens=20), vocabulary)
    guard.begin(SequenceStart(1, "a", prompt_tokens=prompt))
    assert drive(guard, ids(vocabulary, ["море", "тихое"] * 30)) == []


def test_the_language_that_the_request_names_is_no_switch(drive, vocabulary):
    guard = LanguageGuard(LanguageSettings(switch_tokens=20), vocabulary)
    guard.begin(SequenceStart(1, "a", language="ru"))
    assert drive(guard, ids(vocabulary, ["море", "тихое"] * 30)) == []


def test_emoji_and_a_foreign_name_pass(drive, vocabulary):
    guard = LanguageGuard(LanguageSettings(), vocabulary)
    guard.begin(SequenceStart(1, "a"))
    assert drive(guard, ids(vocabulary, ["The", "😀", "answer", "海", "静", "is", "here", *["😀"] * 60])) == []


@pytest.mark.parametrize("kind", ["repetition", "tool_calls", "language"])
def test_guards_keep_nothing_of_a_sequence_that_is_over(drive, vocabulary, kind):
    guard = {
        "repetition": RepetitionGuard(RepetitionSettings()),
        "tool_calls": ToolCallGuard(ToolCallSettings(), vocabulary),
        "language": LanguageGuard(LanguageSettings(), vocabulary),
    }[kind]
    empty = [len(value) for value in vars(guard).values() if isinstance(value, dict)]
    guard.begin(SequenceStart(1, "a"))
    drive(guard, ids(vocabulary, ["море", "海", "بحر", "ทะเล", "θάλασσα", *SEA * 4, *["here"] * 200]))
    guard.forget("a")
    assert [len(value) for value in vars(guard).values() if isinstance(value, dict)] == empty


def test_a_prompt_is_read_at_both_ends_and_only_there(drive, vocabulary, monkeypatch):
    read = []
    monkeypatch.setattr(
        "checkengine.guards.prompt.expected_scripts", lambda text, language=None: read.append(text) or 0
    )
    (the,), (sea,) = ids(vocabulary, ["The"]), ids(vocabulary, ["море"])
    guard = LanguageGuard(LanguageSettings(), vocabulary)
    guard.begin(SequenceStart(1, "a", prompt_tokens=(sea, *[the] * 50_000, sea)))
    assert len(read[0]) < 3 * 2 * 256 + 10
    assert (read[0][:4], read[0][-4:]) == ("море", "море")
    assert drive(guard, [sea] * 60) == []
