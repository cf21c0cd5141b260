"""The guards that a replay runs: those of the record's settings, over the record's vocabulary."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from checkengine.detectors.vocabulary import Vocabulary
from checkengine.guards.build import build_guards
from checkengine.guards.pipeline import Pipeline
from checkengine.guards.settings import GuardsSettings
from checkengine.replay.refire import GuardsFactory


def replay_guards(vocabulary: Vocabulary, environment: Mapping[str, Any] | None = None) -> GuardsFactory:
    """Makes fresh guards for every replay, without a CPU budget: a slow machine finds what a fast one finds."""
    settings = GuardsSettings.model_validate((environment or {}).get("guards", {}))
    return lambda: Pipeline(build_guards(settings, vocabulary), settings, cpu_clock=lambda: 0)


def vocabulary_of(environment: Mapping[str, Any]) -> Vocabulary:
    """From the tokenizer of the recorded model; raises ModelError where it is not here."""
    from transformers import AutoConfig, AutoTokenizer

    from checkengine.engine_shim.models import recorded_model

    directory = recorded_model(str(environment.get("model", "")))
    size = AutoConfig.from_pretrained(directory).get_text_config().vocab_size
    return Vocabulary.from_tokenizer(AutoTokenizer.from_pretrained(directory), size)
