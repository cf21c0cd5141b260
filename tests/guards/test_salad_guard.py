"""The guard against word salad, over a vocabulary trained here and over the demo model's engine."""

from __future__ import annotations

import os
import random
import statistics
import time
from itertools import pairwise
from pathlib import Path
from pydoc_data import topics

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from checkengine.detectors.vocabulary import Vocabulary
from checkengine.guards.build import build_guards
from checkengine.guards.salad import SaladGuard
from checkengine.guards.settings import GuardsSettings, SaladSettings
from checkengine.guards.step import SequenceStart

MODEL = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "checkengine/models/smollm2-135m"
needs_model = pytest.mark.skipif(not (MODEL / "tokenizer.json").exists(), reason="the demo model is not here")
TEXTS = [text for _, text in sorted(topics.topics.items())]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=4000, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(TEXTS[::3], trainer)
    return tokenizer


@pytest.fixture(scope="module")
def vocabulary(tokenizer) -> Vocabulary:
    return Vocabulary.from_tokenizer(tokenizer)


def salad(vocabulary: Vocabulary, length: int = 80) -> list[int]:
    draw = random.Random(1)
    return [draw.randrange(len(vocabulary)) for _ in range(length)]


def test_salad_is_one_finding_that_begins_where_the_answer_turned(tokenizer, vocabulary, drive):
    guard = SaladGuard(SaladSettings(), vocabulary)
    text = tokenizer.encode(TEXTS[1]).ids
    guard.begin(SequenceStart(1, "a", tuple(text[:100])))
    (finding,) = drive(guard, text[100:200] + salad(vocabulary))
    assert finding.kind == "text.salad"
    assert 95 <= finding.token <= 110
    assert finding.step < 100 + 40
    assert finding.evidence["evidence_nats"] >= 16.0
    parts = {"transition_nats", "mark_nats", "word_nats", "logit_nats"}
    assert set(finding.evidence) == {"evidence_nats", "tokens", *parts}


def test_salad_is_placed_in_the_whole_output_where_the_guard_came_in_late(vocabulary, drive):
    (finding,) = drive(SaladGuard(SaladSettings(), vocabulary), salad(vocabulary), before=1000)
    assert 1000 <= finding.token <= 1010


def test_sequences_of_one_batch_are_tested_apart(tokenizer, vocabulary, step_of):
    guard = SaladGuard(SaladSettings(), vocabulary)
    good, bad = tokenizer.encode(TEXTS[4]).ids, salad(vocabulary)
    found = [
        finding
        for index in range(60)
        for finding in guard.observe(step_of({"good": [good[index]], "bad": [bad[index]]}, step=index, before=index))
    ]
    assert [finding.sequence for finding in found] == ["bad"]


def test_a_higher_setting_asks_for_more_evidence(vocabulary, drive):
    steps = [
        drive(SaladGuard(SaladSettings(evidence=nats), vocabulary), salad(vocabulary))[0].step
        for nats in (8.0, 16.0, 24.0)
    ]
    assert steps == sorted(set(steps))


def test_nothing_is_kept_of_a_sequence_that_is_over(vocabulary, drive):
    guard = SaladGuard(SaladSettings(), vocabulary)
    guard.begin(SequenceStart(1, "a"))
    drive(guard, salad(vocabulary, 5))
    guard.forget("a")
    assert [value for value in vars(guard).values() if isinstance(value, dict)] == [{}, {}]


def test_a_vocabulary_without_order_is_not_judged(vocabulary_of, drive):
    words = vocabulary_of([f" word{number}" for number in range(400)])
    assert drive(SaladGuard(SaladSettings(), words), [random.Random(0).randrange(400) for _ in range(500)]) == []


def test_the_guard_is_built_from_its_settings(vocabulary):
    settings = GuardsSettings.model_validate({"salad": {"evidence": 20.0}})
    assert settings.salad.action == "observe"
    (guard,) = [guard for guard in build_guards(settings, vocabulary) if guard.name == "salad"]
    assert isinstance(guard, SaladGuard)


def test_sixteen_healthy_rows_cost_a_fraction_of_the_budget(tokenizer, vocabulary, step_of):
    guard = SaladGuard(SaladSettings(), vocabulary)
    names = [f"s{row}" for row in range(16)]
    text = tokenizer.encode("\n".join(TEXTS[1::3])).ids
    texts = [text[row * 500 :][:300] for row in range(16)]
    steps = [
        step_of({name: [ids[index]] for name, ids in zip(names, texts, strict=True)}, step=index, before=index)
        for index in range(300)
    ]
    marks = [time.thread_time_ns()]
    for step in steps:
        guard.observe(step)
        marks.append(time.thread_time_ns())
    budget = SaladSettings().budget_microseconds + 16 * SaladSettings().budget_microseconds_per_row
    assert statistics.median(after - before for before, after in pairwise(marks)) < budget * 1000 / 2


@needs_model
@pytest.mark.timeout(240)
def test_an_off_by_one_read_of_the_demo_model_is_found_within_32_tokens_and_its_neighbours_pass(drive):
    """Only the article is long enough for the kernel's fault."""
    from checkengine.drills.requests import CHATS, to_request
    from checkengine.engine_shim.engine.engine import Engine
    from checkengine.engine_shim.engine.load import load_model
    from checkengine.engine_shim.faults import OverRead
    from checkengine.engine_shim.settings import EngineSettings

    model, tokenizer = load_model(MODEL)
    engine = Engine(model, tokenizer, EngineSettings(threads=1, blocks=40), faults=[OverRead(250)])
    guard = SaladGuard(SaladSettings(), Vocabulary.from_tokenizer(tokenizer, model.config.vocab_size))
    outputs: dict[str, list[int]] = {}
    for chat in [chat for chat in CHATS if chat.name in ("article", "bread", "python")]:
        request = to_request(chat, tokenizer)
        request.sampling = request.sampling.model_copy(update={"max_tokens": 33})
        guard.begin(SequenceStart(len(outputs), chat.name, tuple(request.prompt_tokens)))
        outputs[chat.name] = []
        engine.submit(request)
    while engine.has_work:
        for output in engine.step():
            outputs[output.name] += output.tokens
    found = [finding for name, tokens in outputs.items() for finding in drive(guard, tokens, sequence=name)]
    assert [(finding.kind, finding.sequence) for finding in found] == [("text.salad", "article")]
    assert found[0].token <= 8
