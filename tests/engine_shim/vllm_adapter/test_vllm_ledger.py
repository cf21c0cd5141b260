"""Records made from the scheduler's messages."""

from __future__ import annotations

from itertools import chain

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from checkengine.benchmarks.vllm_traffic import CachedRequests, Message, NewRequest, Parameters, Traffic
from checkengine.engine_shim.vllm.ledger import NO_TOKEN, UNREPLAYABLE, Ledger
from checkengine.engine_shim.vllm.recorder import StepRecorder
from checkengine.replay.recorded import row_slices, written_slots
from checkengine.replay.settings import RecorderSettings

SETTINGS = RecorderSettings(steps=256, bytes=4 << 20, checkpoint_every=16)


def drive(seed: int, steps: int, late: int = 0) -> tuple[StepRecorder, list[tuple[dict, dict, dict]], list[dict]]:
    """`late`: outcomes that are still on their way when the next step begins, as under async scheduling."""
    traffic, recorder = Traffic(seed), StepRecorder(4, None, SETTINGS)
    expected, sampled, waiting = [], [], []
    for step in range(steps):
        if step % 17 == 11:
            traffic.abort()
        message, told = traffic.step()
        recorder.before_step(message)
        recorder.ran()
        rows, tokens = traffic.outcome(message)
        if not message.total_num_scheduled_tokens:
            continue
        expected.append((told.inputs, told.slots, told.tables))
        sampled.append(dict(zip(rows, tokens, strict=True)))
        waiting.append((rows, tokens))
        while len(waiting) > late:
            recorder.after_step(*waiting.pop(0))
        if step % 3 == 0:  # Somebody asks in between.
            asked = traffic.random.choice(rows)
            prompt, outputs = recorder.ledger.tokens(asked)
            truth = traffic.sequences.get(asked)
            assert truth is None or [*prompt, *outputs] == truth.tokens[: len(prompt) + len(outputs)]
            assert truth is None or late or len(prompt) + len(outputs) == len(truth.tokens)
    while waiting:
        recorder.after_step(*waiting.pop(0))
    return recorder, expected, sampled


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10**6), late=st.integers(0, 2))
def test_every_record_says_what_the_scheduler_knew(seed: int, late: int) -> None:
    recorder, expected, sampled = drive(seed, 60, late)
    assert recorder.off == ""
    window = recorder.recorder.window()
    assert len(window) == len(expected)
    for (record, tables), (inputs, slots, blocks), tokens in zip(window.walk(), expected, sampled, strict=True):
        names = {handle: window.starts[handle].name for handle in record.handles.tolist()}
        assert sorted(names.values()) == sorted(inputs)
        written = written_slots(record, tables, 4)
        outcome = iter(record.sampled.tolist())
        for (handle, start, _, where), samples in zip(row_slices(record), record.samples.tolist(), strict=True):
            name = names[handle]
            assert (start, record.token_ids[where].tolist()) == inputs[name]
            assert written[handle].tolist() == slots[name]
            assert tables[handle].tolist() == blocks[name]
            assert ([next(outcome)] if samples else []) == tokens[name]


def test_slots_are_known_before_the_step_runs() -> None:
    traffic, ledger = Traffic(3), Ledger(4)
    for _ in range(40):
        message, told = traffic.step()
        scheduled = ledger.schedule(message)
        rows, tokens = traffic.outcome(message)
        if scheduled is not None:
            assert sorted(scheduled.slots.tolist()) == sorted(chain.from_iterable(told.slots.values()))
            assert scheduled.random == any(
                ledger._requests[name].start.sampling["temperature"] > 0 for name in message.num_scheduled_tokens
            )
            ledger.record(scheduled, rows, tokens)


def new(name: str, prompt: list[int] | None = None, **named: object) -> Message:
    request = NewRequest(name, prompt or [1, 2, 3], ([5],), 0, **named)  # type: ignore[arg-type]
    return Message([request], num_scheduled_tokens={name: 3}, total_num_scheduled_tokens=3)


def test_a_request_that_a_replay_cannot_feed_says_so() -> None:
    ledger = Ledger(4)
    message = new("a")
    message.scheduled_new_reqs[0].lora_request = object()
    scheduled = ledger.schedule(message)
    assert scheduled is not None
    assert "LoRA" in str(scheduled.begun[0].sampling[UNREPLAYABLE])


def test_tokens_that_a_replay_cannot_draw_say_why_and_logits_stay_comparable() -> None:
    parameters = Parameters()
    parameters.structured_outputs = object()  # type: ignore[attr-defined]
    scheduled = Ledger(4).schedule(new("a", sampling_params=parameters))
    assert scheduled is not None
    assert "grammar" in str(scheduled.begun[0].sampling[NO_TOKEN])
    assert UNREPLAYABLE not in scheduled.begun[0].sampling


def test_several_groups_of_blocks_switch_recording_off_and_serving_goes_on() -> None:
    recorder = StepRecorder(4, None, SETTINGS)
    message = new("a")
    message.scheduled_new_reqs[0].block_ids = ([1], [2])
    recorder.before_step(message)
    recorder.ran()
    assert "several groups" in recorder.off
    assert recorder.after_step(["a"], [[7]]) is None
    recorder.before_step(new("b"))
    recorder.ran()
    assert recorder.dropped == 1


def test_more_than_one_token_a_row_is_not_recorded() -> None:
    recorder = StepRecorder(4, None, SETTINGS)
    recorder.before_step(new("a"))
    recorder.ran()
    assert recorder.after_step(["a"], [[7, 8]]) is None
    assert "speculative" in recorder.off


def test_a_name_used_again_is_another_sequence() -> None:
    recorder = StepRecorder(4, None, SETTINGS)
    for prompt in ([1, 2, 3], [9, 8, 7]):
        message = new("a", prompt)
        message.finished_req_ids = {"a"}
        recorder.before_step(message)
        recorder.ran()
        recorder.after_step(["a"], [[4]])
    window = recorder.recorder.window()
    assert [start.prompt_tokens for start in window.starts.values()] == [(1, 2, 3), (9, 8, 7)]
    assert window.records[1].ended == (0,)


def test_tokens_of_a_request_that_left_are_known_for_a_while() -> None:
    recorder = StepRecorder(4, None, SETTINGS)
    recorder.before_step(new("a"))
    recorder.ran()
    recorder.after_step(["a"], [[4]])
    recorder.before_step(Message(finished_req_ids={"a"}))
    recorder.ran()
    assert recorder.ledger.tokens("a") == ((1, 2, 3), [4])
    with pytest.raises(KeyError):
        recorder.ledger.tokens("b")


def test_fingerprints_of_rows_that_yield_no_token_are_left_out() -> None:
    recorder = StepRecorder(4, None, SETTINGS)
    message = new("a")
    message.scheduled_new_reqs.append(NewRequest("b", [1, 2, 3, 4], ([6],), 0, Parameters()))
    message.num_scheduled_tokens["b"] = 2
    message.total_num_scheduled_tokens = 5
    recorder.before_step(message)
    recorder.ran()
    record = recorder.after_step(["b", "a"], [[], [7]], np.array([11, 22], np.uint64))
    assert record is not None
    assert record.samples.tolist() == [False, True]
    assert record.fingerprints.tolist() == [22]


def test_a_resumed_request_forgets_tokens_that_the_scheduler_discarded() -> None:
    recorder = StepRecorder(4, None, SETTINGS)
    recorder.before_step(new("a"))
    recorder.ran()
    recorder.after_step(["a"], [[4]])
    cached = CachedRequests(["a"], {"a"}, [], {}, [([8],)], [0], [0])
    recorder.before_step(Message([], cached, {"a": 3}, 3))
    recorder.ran()
    record = recorder.after_step(["a"], [[5]])
    assert record is not None
    assert record.token_ids.tolist() == [1, 2, 3]
    assert recorder.ledger.tokens("a")[1] == [5]
