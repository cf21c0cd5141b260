"""What guards know of a prompt's text."""

from __future__ import annotations

from checkengine.detectors.language import Script
from checkengine.guards.prompt import prompt_text
from checkengine.guards.step import SequenceStart


def test_a_prompt_is_read_once_and_another_ones_text_is_never_told(vocabulary_of):
    vocabulary, other = vocabulary_of(["the", "Привет", "end"]), vocabulary_of(["a", "b", "c"])
    first, second = SequenceStart(1, "a", (2, 3)), SequenceStart(2, "b", (2, 4))
    told = prompt_text(first, vocabulary)
    assert told.text == vocabulary.text((2, 3))
    assert told.scripts >> Script.CYRILLIC & 1
    assert prompt_text(first, vocabulary) is told
    assert prompt_text(second, vocabulary).text == vocabulary.text((2, 4))
    assert prompt_text(second, other).text == other.text((2, 4))
