"""All guards of a replica from its settings and vocabulary."""

from __future__ import annotations

from checkengine.detectors.vocabulary import Vocabulary
from checkengine.guards.guard import Guard
from checkengine.guards.ignored_stop import IgnoredStopGuard
from checkengine.guards.impossible_token import ImpossibleTokenGuard
from checkengine.guards.language import LanguageGuard
from checkengine.guards.nonfinite import NonFiniteGuard
from checkengine.guards.repetition import RepetitionGuard
from checkengine.guards.salad import SaladGuard
from checkengine.guards.settings import GuardsSettings
from checkengine.guards.tool_calls import ToolCallGuard
from checkengine.guards.uniform import UniformGuard


def build_guards(settings: GuardsSettings, vocabulary: Vocabulary) -> list[Guard]:
    """In the order of causes. Guards that are `off` are built too: they can be switched on at run time."""
    return [
        NonFiniteGuard(),
        UniformGuard(settings.uniform, len(vocabulary)),
        ImpossibleTokenGuard(vocabulary.possible),
        IgnoredStopGuard(),
        RepetitionGuard(settings.repetition),
        ToolCallGuard(settings.tool_calls, vocabulary),
        SaladGuard(settings.salad, vocabulary),
        LanguageGuard(settings.language, vocabulary),
    ]
