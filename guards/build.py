"""All guards of a replica from its settings and vocabulary."""

from __future__ import annotations

from collections.abc import Callable

from checkengine.detectors.vocabulary import Vocabulary
from checkengine.guards.absent import made_or_absent
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
    """In the order of causes. Guards that are `off` are built too: they can be switched on at run time. One that cannot
    be built is absent, and says why; the others go on."""
    makers: dict[str, Callable[[], Guard]] = {
        "nonfinite": NonFiniteGuard,
        "uniform": lambda: UniformGuard(settings.uniform, len(vocabulary)),
        "magnitude": lambda: MagnitudeGuard(settings.magnitude),
        "impossible_token": lambda: ImpossibleTokenGuard(vocabulary.possible),
        "sampler": lambda: SamplerGuard(settings.sampler),
        "embeddings": EmbeddingGuard,
        "recurrence": lambda: RecurrenceGuard(settings.recurrence),
        "speculation": lambda: SpeculationGuard(settings.speculation),
        "ignored_stop": IgnoredStopGuard,
        "repetition": lambda: RepetitionGuard(settings.repetition, vocabulary),
        "tool_calls": lambda: ToolCallGuard(settings.tool_calls, vocabulary),
        "salad": lambda: SaladGuard(settings.salad, vocabulary),
        "language": lambda: LanguageGuard(settings.language, vocabulary),
        "latency": lambda: LatencyGuard(settings.latency),
    }
    return [made_or_absent(name, make) for name, make in makers.items()]
