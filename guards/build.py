"""All guards of a replica from its settings and vocabulary."""

from __future__ import annotations

from checkengine.detectors.vocabulary import Vocabulary
from checkengine.guards.embeddings import EmbeddingGuard
from checkengine.guards.guard import Guard
from checkengine.guards.ignored_stop import IgnoredStopGuard
from checkengine.guards.impossible_token import ImpossibleTokenGuard
from checkengine.guards.language import LanguageGuard
from checkengine.guards.latency import LatencyGuard
from checkengine.guards.magnitude import MagnitudeGuard
from checkengine.guards.nonfinite import NonFiniteGuard
from checkengine.guards.recurrence import RecurrenceGuard
from checkengine.guards.repetition import RepetitionGuard
from checkengine.guards.salad import SaladGuard
from checkengine.guards.sampler import SamplerGuard
from checkengine.guards.settings import GuardsSettings
from checkengine.guards.speculation import SpeculationGuard
from checkengine.guards.tool_calls import ToolCallGuard
from checkengine.guards.uniform import UniformGuard


def build_guards(settings: GuardsSettings, vocabulary: Vocabulary) -> list[Guard]:
    """In the order of causes. Guards that are `off` are built too: they can be switched on at run time."""
    return [
        NonFiniteGuard(),
        UniformGuard(settings.uniform, len(vocabulary)),
        MagnitudeGuard(settings.magnitude),
        ImpossibleTokenGuard(vocabulary.possible),
        SamplerGuard(settings.sampler),
        EmbeddingGuard(),
        RecurrenceGuard(settings.recurrence),
        SpeculationGuard(settings.speculation),
        IgnoredStopGuard(),
        RepetitionGuard(settings.repetition, vocabulary),
        ToolCallGuard(settings.tool_calls, vocabulary),
        SaladGuard(settings.salad, vocabulary),
        LanguageGuard(settings.language, vocabulary),
        LatencyGuard(settings.latency),
    ]
