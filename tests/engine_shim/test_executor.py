from __future__ import annotations

from contextlib import contextmanager

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from checkengine.detectors.logits import row_stats
from checkengine.engine_shim.capturing import take_capture
from checkengine.engine_shim.engine.engine import Engine
from checkengine.engine_shim.engine.executor import EmbeddedExecutor, refuse_other_weights
from checkengine.engine_shim.engine.request import GenerationRequest, SamplingParameters
from checkengine.engine_shim.faults import NanAttention, OverRead
from checkengine.engine_shim.settings import EngineSettings
from checkengine.guards.finding import Finding, Severity
from checkengine.replay.executor import CannotReplayError, WeightsChangedError
from checkengine.replay.judge.judge import Judge
from checkengine.replay.judge.verdict import VerdictKind
from checkengine.replay.playback import Playback
from checkengine.replay.recorder import Recorder
from checkengine.replay.replayer import Replayer
from checkengine.replay.undo import UndoRing
from checkengine.replay.windows import build_window


def tiny_model(seed: int = 0):
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=160,
        hidden_size=48,
        intermediate_size=64,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        initializer_range=0.4,
        eos_token_id=None,
        bos_token_id=None,
    )
    return LlamaForCausalLM(config).eval()


class Recording:
    """A shim that records with fingerprints and takes one capture, at the step asked for."""

    def __init__(self) -> None:
        self.recorder = Recorder(512, 4 << 20)
        self.capture_at: tuple[int, list[str], int] | None = None
        self.capture = None
        self.engine: Engine | None = None

    @contextmanager
    def step(self, record):
        self.record, self.prints = record, None
        self.recorder.begin(record)
        yield self

    def logits(self, logits) -> None:
        self.prints = row_stats(logits, "full").fingerprint if len(logits) else None

    def tokens(self, tokens):
        self.recorder.finish(self.record.step, self.prints, tokens)
        if self.capture_at and self.capture_at[0] == self.record.step:
            _, names, first = self.capture_at
            starts = self.recorder.window().starts
            handles = [handle for handle, start in starts.items() if start.name in names]
            finding = Finding("language.switch", names[0], Severity.WARNING, self.record.step, 0, "test")
            self.capture = take_capture(self.engine, self.recorder, handles, first_step=first, findings=(finding,))
        return []


def serve(
    faults=(), *, at: int, first: int = 0, names=("r1",), undo: bool = True, requests: int = 6, model=None, **settings
):
    """Serve some random requests and return the engine and the capture taken in step `at`."""
    shim = Recording()
    options = {"block_size": 8, "blocks": 64, "tokens_per_step": 40, "threads": 1, **settings}
    ring = UndoRing(64, 64 << 20) if undo else None
    engine = Engine(model or tiny_model(), None, EngineSettings(**options), shim, ring, faults)
    shim.engine, shim.capture_at = engine, (at, list(names), first)
    random = np.random.default_rng(1)
    for number in range(requests):
        prompt = random.integers(0, 150, int(random.integers(3, 50))).tolist()
        temperature = 0.0 if number % 2 else 0.8
        sampling = SamplingParameters(temperature=temperature, seed=number, max_tokens=40, top_p=0.9)
        engine.submit(GenerationRequest(f"r{number}", prompt, sampling))
    while shim.capture is None:
        assert engine.has_work, "the engine ended before the capture"
        engine.step()
    return engine, shim.capture


def executor_over(engine: Engine) -> EmbeddedExecutor:
    return EmbeddedExecutor.over(engine.model, engine.environment())


def test_a_served_window_replays_bit_exact_with_chunks_and_sampled_tokens():
    engine, capture = serve(at=25, names=("r1", "r2"))
    replay = Replayer(executor_over(engine), capture).replay()
    assert replay.bit_exact, replay.words()
    assert replay.exact_from == "undo"
    assert replay.rows > 30


def test_a_window_after_preemption_and_reuse_replays_bit_exact():
    engine, capture = serve(at=60, first=20, names=("r3", "r4"), blocks=24)
    assert engine.stats.preemptions > 0
    replay = Replayer(executor_over(engine), capture).replay()
    assert replay.bit_exact, replay.words()


def test_an_over_read_in_the_engine_is_reproduced_and_convicted():
    engine, capture = serve([OverRead(minimum_length=20, block_size=8)], at=25)
    executor = executor_over(engine)
    replayer = Replayer(executor, capture)
    replay = replayer.replay()
    assert replay.bit_exact, replay.words()
    verdict = Judge(executor).judge(replayer.window, capture.findings[0], replay)
    assert verdict.kind is VerdictKind.CODE_DEFECT
    assert verdict.layers == (0, 1, 2)
    assert "one past the end of sequence r1" in verdict.sentence


def tokens_under(executor: EmbeddedExecutor, capture, kernel: str) -> list[int]:
    window = build_window(capture)
    steps = Playback(executor, window, kernel=kernel, free=True)
    return [int(token) for step, output in steps for token in output.tokens[step.sampling_involved]]


def test_the_reference_kernel_and_float64_carry_no_planted_fault():
    engine, capture = serve([OverRead(minimum_length=0, block_size=8)], at=20)
    executor = executor_over(engine)
    clean_engine, clean = serve(at=20)
    wanted = tokens_under(executor_over(clean_engine), clean, "paged")
    assert tokens_under(executor, capture, "paged") != wanted
    assert tokens_under(executor, capture, "reference") == wanted
    assert tokens_under(executor, capture, "float64") == wanted


def test_nan_from_an_attention_kernel_is_a_defect_of_its_layer():
    engine, capture = serve([NanAttention(modulus=8, remainder=1, layer=1)], at=22)
    executor = executor_over(engine)
    replayer = Replayer(executor, capture)
    verdict = Judge(executor).judge(replayer.window, capture.findings[0], replayer.replay())
    assert verdict.kind is VerdictKind.CODE_DEFECT
    assert verdict.layers == (1,)
    assert "attention of layer 1" in verdict.sentence


def test_a_right_kernel_in_the_engine_is_not_convicted():
    engine, capture = serve(at=25, names=("r0",))
    executor = executor_over(engine)
    replayer = Replayer(executor, capture)
    verdict = Judge(executor).judge(replayer.window, capture.findings[0], replayer.replay())
    assert verdict.kind is VerdictKind.INCONCLUSIVE
    assert "habit" in verdict.sentence


def test_other_weights_are_refused_by_name():
    engine, _ = serve(at=3)
    environment = engine.environment()
    with pytest.raises(WeightsChangedError, match="weights changed"):
        refuse_other_weights(tiny_model(seed=1), environment)
    refuse_other_weights(engine.model, environment)


def test_a_model_that_is_not_on_this_machine_cannot_be_judged_and_says_how_to_get_it():
    with pytest.raises(CannotReplayError, match="cannot be loaded"):
        EmbeddedExecutor().load({"engine": "embedded", "model": "no-such-model", "dtype": "float32"})


def test_an_unknown_kernel_is_refused_by_name():
    engine, capture = serve(at=5)
    with pytest.raises(CannotReplayError, match="no kernel named 'fast'"):
        Replayer(executor_over(engine), capture).replay("fast")


def test_the_window_of_one_sequence_leaves_every_other_row_a_stand_in():
    _, capture = serve(at=15)
    window = build_window(capture)
    for step in window.steps:
        theirs = np.repeat(~step.involved, step.replay.record.query_lengths)
        original = next(r for r in capture.window.records if r.step == step.number)
        if theirs.sum() > 8:
            assert (step.replay.record.token_ids[theirs] != original.token_ids[theirs]).any()
        assert np.array_equal(step.replay.record.token_ids[~theirs], original.token_ids[~theirs])
