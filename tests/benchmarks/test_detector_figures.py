"""The measuring functions give figures in the form that every measuring command prints."""

from __future__ import annotations

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from checkengine.benchmarks import logits, token_detectors
from checkengine.detectors import Vocabulary


def test_row_statistics_are_measured_beside_a_peer(monkeypatch):
    monkeypatch.setattr(logits, "SHAPES", ((8, 512),))
    figures = logits.logit_figures(pairs=3)
    assert figures[0]["name"] == "row_stats full 8 x 512"
    for figure in figures:
        assert set(figure) == {"name", "value", "unit", "target", "ok", "peer", "peer_value"}
        assert figure["value"] > 0
        assert figure["ok"] == (figure["value"] <= figure["target"]) or figure["value"] == pytest.approx(
            figure["target"], abs=0.1
        )


def test_token_detectors_are_measured_in_time_a_token(monkeypatch):
    monkeypatch.setattr(token_detectors, "TOKENS", 500)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({character: number for number, character in enumerate(alphabet)}, []))
    figures = token_detectors.token_detector_figures(Vocabulary.from_tokenizer(tokenizer), [70, 71, 72])
    assert [figure["name"] for figure in figures] == [
        "script turns",
        "tool calls, no call in the text",
        "word salad, one row a call",
    ]
    assert all(figure["unit"] == "ns/token" and figure["value"] > 0 for figure in figures)
