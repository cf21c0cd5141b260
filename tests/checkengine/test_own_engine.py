"""The example of an engine of one's own, as the README shows it."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest
import torch

from checkengine.config import Settings
from checkengine.replay.settings import SpoolSettings
from checkengine.selftest_faults import tiny_model, tiny_tokenizer

EXAMPLE = runpy.run_path(str(Path(__file__).parents[2] / "examples" / "own_engine.py"))
PROMPTS = [list(range(3, 12)), list(range(40, 47))]
QUIET = Settings(spool=SpoolSettings(enabled=False))


@pytest.fixture
def model() -> Any:
    return tiny_model()


def serve(model: Any, **options: Any) -> tuple[Any, Any]:
    engine = EXAMPLE["ToyEngine"](model, PROMPTS, max_tokens=20, **options)
    incidents = EXAMPLE["serve"](engine, tiny_tokenizer(), QUIET)
    return engine, incidents


def test_the_example_decodes_as_transformers_does(model: Any) -> None:
    engine, incidents = serve(model)
    for prompt, outputs in zip(PROMPTS, engine.results.values(), strict=True):
        wanted = model.generate(torch.tensor([prompt]), do_sample=False, max_new_tokens=20, pad_token_id=0)
        assert outputs == wanted[0, len(prompt) :].tolist()
    assert incidents == []


def test_the_example_stops_a_sequence_whose_logits_are_nan_and_no_other(model: Any) -> None:
    clean, _ = serve(model)
    steps = iter(range(1000))

    def plant(module: Any, inputs: Any, output: Any) -> None:
        if next(steps) == 5:
            output.logits[0, -1, 7] = float("nan")

    model.register_forward_hook(plant)
    engine, incidents = serve(model)
    assert engine.results["request-0"] == clean.results["request-0"][:5]
    assert engine.results["request-1"] == clean.results["request-1"]
    assert [incident.kind for incident in incidents] == ["logits.nonfinite"]
