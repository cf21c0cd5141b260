"""Names of OpenTelemetry's conventions for generative AI, by version.

The conventions are in development (github.com/open-telemetry/semantic-conventions-genai, moved there 2026-05-05): spans
are made with today's names, and a version translates them. What a version has no name for goes under `checkengine.`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal

from opentelemetry.util.types import AttributeValue

Version = Literal["latest", "1.36"]
OWN = "checkengine."
EVALUATION = "gen_ai.evaluation.result"
CACHED, OUTPUT, STEPS = "checkengine.cached_tokens", "checkengine.output_tokens", "checkengine.steps"


class Phase(StrEnum):
    """Spans below a request's. The conventions know none of what happens inside a model's server."""

    TOKENISE = "tokenise"
    SCHEDULE = "schedule"
    """In the queue, from its arrival to its first step."""
    CACHE_LOOKUP = "cache_lookup"
    """Of that, in the prefix cache and the tiers behind it."""
    PREFILL = "prefill"
    """From the first step to the first token."""
    DECODE = "decode"
    GUARD = "guard"
    """All turns of the guards and the recorder in its steps together."""
    DETOKENISE = "detokenise"
    """All its turns together."""
    CAPTURE = "capture"
    """From a finding to the bundle on the disk."""


@dataclass(frozen=True, slots=True)
class Convention:
    renamed: Mapping[str, str] = field(default_factory=dict)
    """Today's name to that of the version."""

    def name(self, today: str) -> str:
        return self.renamed.get(today, today)

    def attributes(self, today: Mapping[str, AttributeValue]) -> dict[str, AttributeValue]:
        return {self.name(key): value for key, value in today.items()}


def own(*names: str) -> dict[str, str]:
    return {name: OWN + name.removeprefix("gen_ai.") for name in names}


CONVENTIONS: Mapping[Version, Convention] = {
    "latest": Convention(),
    # 1.37 renamed the provider and brought evaluations; the others came after it.
    "1.36": Convention(
        {"gen_ai.provider.name": "gen_ai.system"}
        | own(
            EVALUATION,
            "gen_ai.evaluation.name",
            "gen_ai.evaluation.score.label",
            "gen_ai.evaluation.score.value",
            "gen_ai.evaluation.explanation",
            "gen_ai.request.stream",
            "gen_ai.response.time_to_first_chunk",
            "gen_ai.usage.cache_read.input_tokens",
        )
    ),
}
