from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from checkengine.detectors.logits import row_stats
from checkengine.engine_shim.capturing import take_capture
from checkengine.engine_shim.engine.engine import Engine
from checkengine.engine_shim.engine.executor import EmbeddedExecutor, refuse_other_weights
from checkengine.engine_shim.engine.request import GenerationRequest, SamplingParameters
from checkengine.engine_shim.faults import MaskedStop, NanAttention, OverRead
from checkengine.engine_shim.settings import EngineSettings
from checkengine.engine_shim.vllm.lone_worker import directory_of
from checkengine.guards.finding import Finding, Severity
from checkengine.replay.audit import Auditor
from checkengine.replay.executor import CannotReplayError, WeightsChangedError
from checkengine.replay.judge.judge import Judge
from checkengine.replay.judge.verdict import VerdictKind
from checkengine.replay.playback import Playback
from checkengine.replay.recorder import Recorder
from checkengine.replay.replayer import Replayer
from checkengine.replay.undo import UndoRing
from checkengine.replay.windows import build_window
from checkengine.tiny import tiny_model


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
    engine = Engine(tiny_model(), None, EngineSettings(**options), shim, UndoRing(64, 64 << 20), faults)
    shim.engine, shim.capture_at = engine, (at, list(names), first)
    random = np.random.default_rng(1)
    for number in range(6):
        prompt = random.integers(0, 150, int(random.integers(3, 50))).tolist()
        temperature = 0.0 if number % 2 else 0.8
        sampling = SamplingParameters(temperature=temperature, seed=number, max_tokens=40, top_p=0.9)
        engine.submit(GenerationRequest(f"r{number}", prompt, sampling))
    while shim.capture is None:
        assert engine.has_work, "the engine ended before the capture"
        engine.step()
    return engine, shim.capture


class RecordingMany(Recording):
    """Takes a capture of random live sequences every few steps, over a random number of steps before."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.random = np.random.default_rng(seed)
        self.captures = []

    def tokens(self, tokens):
        super().tokens(tokens)
        step = self.record.step
        if step % 2:
            first = max(0, step - int(self.random.integers(0, 16)))
            handles = self.random.choice(self.record.handles, size=min(2, len(self.record.handles)), replace=False)
            self.captures.append(take_capture(self.engine, self.recorder, handles.tolist(), first_step=first))
        return []


def serve_many(seed: int, faults=()):
    """Requests that share prefixes, more than fit into memory; returns the engine and its captures."""
    shim = RecordingMany(seed)
    settings = EngineSettings(block_size=8, blocks=22, tokens_per_step=32, maximum_sequences=6, threads=1)
    engine = Engine(tiny_model(), None, settings, shim, UndoRing(64, 64 << 20), faults)
    shim.engine = engine
    prefix = shim.random.integers(0, 150, 24).tolist()
    for number in range(12):
        prompt = prefix[: int(shim.random.integers(4, 25))] + shim.random.integers(0, 150, 9).tolist()
        sampling = SamplingParameters(temperature=0.7 * (number % 2), seed=number, max_tokens=24)
        engine.submit(GenerationRequest(f"r{number}", prompt, sampling))
    while engine.has_work:
        engine.step()
    return engine, shim.captures


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


def test_a_hundred_random_windows_with_prefix_hits_reuse_and_preemption_replay_bit_exact():
    replayed = 0
    for seed in range(4):
        engine, captures = serve_many(seed)
        assert engine.stats.prefix_hit_tokens > 0
        assert engine.stats.preemptions > 0
        executor = executor_over(engine)
        for capture in captures:
            replay = Replayer(executor, capture).replay()
            assert replay.first_difference is None, (seed, replay.words())
            assert replay.from_step == capture.window.first_step
            replayed += replay.bit_exact
    assert replayed >= 100


def test_an_audit_over_a_live_engines_weights_convicts_the_quiet_read_and_clears_the_right_kernel():
    for faults, kind in (((), VerdictKind.NO_FAULT), ([OverRead(block_size=8)], VerdictKind.CODE_DEFECT)):
        engine, captures = serve_many(5, faults)
        auditor = Auditor(executor_over(engine))
        chosen = [capture for capture in captures if (capture.window.records[-1].query_lengths == 1).all()][:6]
        verdicts = [auditor.audit(capture) for capture in chosen]
        assert [verdict.kind for verdict in verdicts] == [kind] * 6


def greedy_request(**options) -> GenerationRequest:
    sampling = SamplingParameters(temperature=0.0, max_tokens=30, **options)
    return GenerationRequest("r1", list(range(20, 31)), sampling)


def serve_one(request: GenerationRequest, at: int, faults=()):
    shim = Recording()
    settings = EngineSettings(block_size=8, blocks=16, threads=1)
    engine = Engine(tiny_model(), None, settings, shim, UndoRing(64, 8 << 20), faults)
    shim.engine, shim.capture_at = engine, (at, ["r1"], 0)
    engine.submit(request)
    while engine.has_work:
        engine.step()
    return engine, shim


def test_a_masked_end_token_in_the_engine_is_a_defect_of_the_stop_path():
    _, clean = serve_one(greedy_request(), at=20)
    tokens = [int(record.sampled[0]) for record in clean.recorder.window().records]
    index = next(i for i in range(4, 20) if tokens[i] not in tokens[:i])
    stops = (tokens[index],)
    assert serve_one(greedy_request(stop_token_ids=stops), at=99)[1].record.step == index
    engine, masked = serve_one(greedy_request(stop_token_ids=stops), at=20, faults=[MaskedStop([tokens[1]])])
    executor = executor_over(engine)
    replayer = Replayer(executor, masked.capture)
    replay = replayer.replay()
    assert replay.bit_exact, replay.words()
    verdict = Judge(executor).judge(replayer.window, masked.capture.findings[0], replay)
    assert verdict.kind is VerdictKind.CODE_DEFECT
    assert f"end token {stops[0]} was masked out of sampling at output token {index}" in verdict.sentence


@pytest.mark.parametrize("threads", [0, -4, "x", 10**12, 1.5, True, [1]])
def test_a_record_of_impossible_threads_cannot_be_replayed(threads: Any) -> None:
    with pytest.raises(CannotReplayError, match="threads"):
        EmbeddedExecutor.over(None, {"threads": threads})


@pytest.mark.parametrize("dtype", ["system", "5", "nn", "load", ""])
def test_a_record_of_a_dtype_that_is_none_cannot_be_replayed(dtype: str) -> None:
    with pytest.raises(CannotReplayError, match="dtype"):
        EmbeddedExecutor().load({"model": "smollm2-135m", "dtype": dtype})


def test_a_damaged_model_is_no_verdict_and_no_traceback(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("not json")
    with pytest.raises(CannotReplayError, match="cannot be loaded"):
        EmbeddedExecutor().load({"model": str(tmp_path)})


def test_a_record_of_vllm_is_looked_for_where_the_variable_says_and_before_any_hub(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CHECKENGINE_MODEL", raising=False)
    assert directory_of("someone/model") == "someone/model"
    with pytest.raises(CannotReplayError, match="give --model DIR"):
        directory_of("model")
    monkeypatch.setenv("CHECKENGINE_MODEL", str(tmp_path))
    with pytest.raises(CannotReplayError, match=r"holds no config\.json"):
        directory_of("someone/model")
    (tmp_path / "config.json").write_text("{}")
    assert directory_of("someone/model") == directory_of("model") == str(tmp_path)
