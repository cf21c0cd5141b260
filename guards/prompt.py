"""The text of a sequence's prompt and the writing systems it justifies, read once for all guards that want them."""

from __future__ import annotations

from dataclasses import dataclass

from checkengine.detectors.language.expectation import expected_scripts
from checkengine.detectors.vocabulary import Vocabulary
from checkengine.guards.step import SequenceStart

PROMPT_TOKENS_READ = 256
"""From each end of the prompt: where requests name a language, and little enough to read before the first step."""


@dataclass(frozen=True, slots=True)
class PromptText:
    text: str
    scripts: int
    """Bit mask of what `expected_scripts` says."""


_last: tuple[SequenceStart, Vocabulary, PromptText] | None = None
"""Of the sequence that was asked for last: guards begin one after another with the same one."""


def prompt_text(start: SequenceStart, vocabulary: Vocabulary) -> PromptText:
    global _last
    last = _last
    if last is not None and last[0] is start and last[1] is vocabulary:
        return last[2]
    prompt = start.prompt_tokens
    if len(prompt) > 2 * PROMPT_TOKENS_READ:
        prompt = (*prompt[:PROMPT_TOKENS_READ], *prompt[-PROMPT_TOKENS_READ:])
    text = vocabulary.text(prompt)
    found = PromptText(text, expected_scripts(text, start.language))
    _last = (start, vocabulary, found)
    return found
