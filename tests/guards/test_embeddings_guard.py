"""Embedding vectors that carry nothing become findings, each of its own kind."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from checkengine.guards.embeddings import EmbeddingGuard
from checkengine.guards.finding import CAUSE_ORDER
from checkengine.guards.step import StepView


def test_three_kinds_of_empty_vectors_are_found_and_a_healthy_one_is_not(step_of: Callable[..., StepView]) -> None:
    vectors = np.random.default_rng(0).standard_normal((4, 16)).astype(np.float32)
    vectors[1], vectors[2], vectors[3, 7] = 0.0, 0.5, np.inf
    view = replace(step_of({"good": [], "zero": [], "flat": [], "broken": []}), embeddings=vectors)
    found = {finding.sequence: finding for finding in EmbeddingGuard().observe(view)}
    assert {name: finding.kind for name, finding in found.items()} == {
        "zero": "embedding.zero",
        "flat": "embedding.constant",
        "broken": "embedding.nonfinite",
    }
    assert all(finding.kind in CAUSE_ORDER for finding in found.values())
    assert dict(found["broken"].evidence) == {"dimensions": 16, "nonfinite": 1}
    assert found["flat"].evidence["norm"] == 2.0


def test_steps_without_embeddings_are_passed_over(step_of: Callable[..., StepView]) -> None:
    assert list(EmbeddingGuard().observe(step_of({"a": [1]}))) == []
