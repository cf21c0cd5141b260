"""What all guards together may cost in a step where nothing is wrong."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest

from checkengine.detectors.vocabulary import Vocabulary
from checkengine.guards.build import build_guards
from checkengine.guards.pipeline import Pipeline
from checkengine.guards.settings import GuardsSettings
from checkengine.guards.step import SequenceStart

STEPS = 300


@pytest.fixture
def vocabulary(vocabulary_of: Callable[..., Vocabulary]) -> Vocabulary:
    return vocabulary_of([f" word{number}" for number in range(4000)])


@pytest.mark.parametrize(("rows", "microseconds"), [(1, 100), (16, 500)])
def test_a_healthy_step_costs_far_less_than_its_budget(vocabulary, step_of, stats_of, rows, microseconds):
    settings = GuardsSettings()
    line = Pipeline(build_guards(settings, vocabulary), settings)
    names = [f"s{row}" for row in range(rows)]
    for row, name in enumerate(names):
        line.begin(SequenceStart(row, name, stop_tokens=(0,)))
    stats = stats_of(np.random.default_rng(0).normal(size=(rows, 50)))
    random = np.random.default_rng(1).integers(2, len(vocabulary), (STEPS, rows)).tolist()
    steps = [
        step_of({name: [token] for name, token in zip(names, tokens, strict=True)}, step=i, before=i, stats=stats)
        for i, tokens in enumerate(random)
    ]
    marks = [time.thread_time_ns()]
    for step in steps:
        assert line.observe(step) == []
        marks.append(time.thread_time_ns())
    assert statistics.median(after - before for before, after in pairwise(marks)) < microseconds * 1000
