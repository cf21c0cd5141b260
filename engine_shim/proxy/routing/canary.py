"""Canaries: prompts whose answer is known. A server that answers 200 with nonsense is not healthy.

Checked: the answer, the entropy and health of the logprobs where the server returns them, and the language.
Limits: a canary sees what breaks every request, not what breaks one length, one block or one request in a thousand.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from checkengine.detectors.language.identifier import identify
from checkengine.engine_shim.proxy.routing.settings import Canary
from checkengine.guards.finding import Severity
from checkengine.guards.settings import UniformSettings
from checkengine.guards.text import TextStart
from checkengine.guards.text_logprobs import LogprobsGuard

TOP_LOGPROBS = 5
LANGUAGE_NATS = 15.0
"""By which another language must be ahead of the expected one."""
LANGUAGE_LETTERS = 16
FOREIGN_LETTERS = 4
"""Of a script that the expected language does not use, in an answer that is mostly of it."""


@dataclass(frozen=True, slots=True)
class Fault:
    reason: str
    is_certain: bool
    """No healthy server of any model answers so. Otherwise the canary may be too hard for this model: it counts once
    a server of the pool has answered it right."""


def body_of(canary: Canary, model: str, number: int, *, logprobs: bool) -> dict[str, Any]:
    """Of /v1/chat/completions. A number stands at the front, so that no prefix cache answers for the prefill: of three
    digits, for longer ones lead small models astray."""
    system = f"Request {100 + number % 900}. You are a helpful assistant."
    body: dict[str, Any] = {
        "model": model,
        "messages": [{"role": "system", "content": system}, {"role": "user", "content": canary.question}],
        "max_tokens": canary.tokens,
        "temperature": 0,
    }
    return body | ({"logprobs": True, "top_logprobs": TOP_LOGPROBS} if logprobs else {})


CANARIES: tuple[Canary, ...] = (
    Canary(name="capital", question="Name the capital city of France in English.", answer=r"\bparis\b"),
    Canary(name="colour", question="What colour is the sky on a clear day?", answer=r"\bblue\b", tokens=48),
    Canary(name="opposite", question="What is the opposite of hot?", answer=r"\bcold\b"),
    Canary(name="water", question="What is water made of?", answer=r"\bhydrogen\b", tokens=48),
)
"""Easy enough for a model of 135 M parameters: SmolLM2 answered all of these right at every number tried."""


def fault_of(answer: object, canary: Canary, most_entropy: float) -> Fault | None:
    """What is wrong with a parsed chat completion; None where it is as it should be. Never raises."""
    choice = _first_choice(answer)
    if choice is None:
        return Fault("the answer has no choice", True)
    return next(_faults(choice, canary, most_entropy), None)


def _faults(choice: Mapping[str, Any], canary: Canary, most_entropy: float) -> Iterator[Fault]:
    """The deepest cause first."""
    logprobs = choice.get("logprobs")
    for finding in LogprobsGuard(TextStart(canary.name), UniformSettings()).read(logprobs):
        yield Fault(f"{finding.kind} in the logprobs of {canary.name}", finding.severity is Severity.ERROR)
    entropy = mean_entropy(logprobs)
    if entropy is not None and entropy > most_entropy:
        yield Fault(f"entropy of {entropy:.2f} nats a token on {canary.name}, at most {most_entropy} is known", False)
    text = _text_of(choice)
    if not text.strip():
        yield Fault(f"an empty answer to {canary.name}", False)
    if found := foreign_language(text, canary.language):
        yield Fault(f"{canary.name} was answered in {found}, not {canary.language}", False)
    if re.search(canary.answer, text, re.IGNORECASE) is None:
        yield Fault(f"a wrong answer to {canary.name}", False)


def mean_entropy(logprobs: object) -> float | None:
    """Nats a token, from below: no token that is not listed is likelier than the least likely one that is.

    None where nothing is listed.
    """
    content = logprobs.get("content") if isinstance(logprobs, Mapping) else None
    rows = [_listed(each) for each in content] if isinstance(content, Sequence) and not isinstance(content, str) else []
    entropies = [_entropy(row) for row in rows if row]
    return sum(entropies) / len(entropies) if entropies else None


def foreign_language(text: str, expected: str) -> str | None:
    """ISO 639-1 code of the language that the text is in, where that is surely not the expected one."""
    identity = identify(text)
    lag = identity.lag_of(expected)
    enough = FOREIGN_LETTERS if math.isinf(lag) else LANGUAGE_LETTERS
    return identity.language if lag > LANGUAGE_NATS and identity.letters >= enough else None


def _entropy(listed: Sequence[float]) -> float:
    probabilities = [math.exp(each) for each in listed]
    rest = max(0.0, 1.0 - sum(probabilities))
    return -sum(p * each for p, each in zip(probabilities, listed, strict=True)) - rest * min(listed)


def _listed(row: object) -> list[float]:
    top = row.get("top_logprobs") if isinstance(row, Mapping) else None
    if not isinstance(top, Sequence) or isinstance(top, str):
        return []
    values = [each.get("logprob") for each in top if isinstance(each, Mapping)]
    return [float(each) for each in values if isinstance(each, int | float) and -1e4 < each <= 0.0]


def _first_choice(answer: object) -> Mapping[str, Any] | None:
    choices = answer.get("choices") if isinstance(answer, Mapping) else None
    first = choices[0] if isinstance(choices, list) and choices else None
    return first if isinstance(first, Mapping) else None


def _text_of(choice: Mapping[str, Any]) -> str:
    message = choice.get("message")
    if not isinstance(message, Mapping):
        return ""
    pieces = (message.get(name) for name in ("reasoning_content", "reasoning", "content"))
    return "\n".join(piece for piece in pieces if isinstance(piece, str))
