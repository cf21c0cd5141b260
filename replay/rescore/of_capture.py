"""Prompt, output and sampling of the sequences that a capture involves."""

from __future__ import annotations

from dataclasses import dataclass

from checkengine.replay.capture import Capture, outputs_before, unknown_histories
from checkengine.replay.rescore.scoring import Sampling, ScoreError


@dataclass(frozen=True, slots=True)
class Written:
    """What a model wrote, to be scored."""

    name: str
    prompt: list[int]
    output: list[int]
    sampling: Sampling


def written_in(capture: Capture) -> list[Written]:
    """Whole outputs up to the capture. ScoreError where the capture holds no content or lacks earlier tokens."""
    followed = capture.involved - unknown_histories(capture)
    if not followed:
        raise ScoreError("the capture lacks the earlier output tokens of its sequences: it cannot be scored")
    outputs = {handle: history.tolist() for handle, history in capture.histories.items() if handle in followed}
    for record, _ in capture.window.walk():
        outputs_before(record, capture.window, outputs, followed)
    found = []
    for handle in sorted(followed):
        start, output = capture.window.starts[handle], outputs.get(handle, [])
        if output:
            found.append(Written(start.name, list(start.prompt_tokens), output, Sampling.of(start.sampling)))
    return found
