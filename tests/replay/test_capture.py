from __future__ import annotations

import numpy as np
import pytest
import torch
from naive_engine import BLOCK_SIZE, NaiveEngine, served

from checkengine.replay.capture import first_exact_step, unknown_histories
from checkengine.replay.involve import blocks_needed, involved, redact_uninvolved


def bits(tensors: dict[str, torch.Tensor]) -> dict[str, list[int]]:
    return {name: tensor.contiguous().view(torch.uint8).flatten().tolist() for name, tensor in tensors.items()}


@pytest.mark.parametrize("seed", range(8))
def test_memory_is_exact_bit_for_bit_from_the_step_that_the_capture_names(seed: int) -> None:
    engine, sequence = served(seed)
    capture = engine.capture(sequence)
    first = capture.first_exact_step
    assert first is not None
    assert first == max(capture.window.first_step, engine.undo.first_step)
    for step in range(first, capture.window.last_step + 1):
        expected = engine.image(capture.memory.blocks, engine.images[step])
        assert bits(capture.memory_at(step).tensors) == bits(expected.tensors)


def test_without_the_last_step_in_the_undo_ring_no_step_is_exact() -> None:
    engine, sequence = served()
    capture = engine.capture(sequence)
    kept = [entry for entry in capture.undo if entry.step != capture.window.last_step]
    assert first_exact_step(capture.window, kept, capture.memory) is None


def test_a_gap_in_the_undo_ring_ends_the_exact_steps_after_it() -> None:
    engine, sequence = served()
    capture = engine.capture(sequence)
    gap = capture.window.last_step - 2
    kept = [entry for entry in capture.undo if entry.step != gap]
    assert first_exact_step(capture.window, kept, capture.memory) == gap + 1


@pytest.mark.parametrize("first_step", [None, 14])
def test_replay_steps_carry_the_tables_and_earlier_outputs_of_every_involved_row(first_step: int | None) -> None:
    engine, sequence = served(3)
    capture = engine.capture(sequence, first_step)
    steps = list(capture.replay_steps(capture.window.first_step))
    assert len(steps) == len(capture.window)
    for step in steps:
        record = step.record
        for row, handle in enumerate(record.handles.tolist()):
            length = int(record.starts[row] + record.query_lengths[row])
            assert len(step.block_tables[row]) * BLOCK_SIZE >= length
            if handle in capture.involved and record.samples[row]:
                assert list(step.outputs[handle]) == engine.outputs[record.step][handle]
                assert step.starts[handle].handle == handle


def test_outputs_from_before_the_window_that_nobody_knows_are_named() -> None:
    engine, sequence = served(3)
    capture = engine.capture(sequence, 14)
    assert unknown_histories(capture) == set()
    capture.histories = {}
    assert sequence.start.handle in unknown_histories(capture)


def test_involvement_follows_shared_prefixes_transitively_and_no_further() -> None:
    engine = NaiveEngine()
    first, stranger = engine.join(prompt=list(range(12))), engine.join(prompt=list(range(50, 62)))
    for _ in range(4):
        engine.step()
    second = engine.share(first, 2)
    engine.step()
    third = engine.share(second, 2)
    engine.step()
    window = engine.recorder.window()
    assert involved(window, [third.start.handle], BLOCK_SIZE) == {first.start.handle, third.start.handle}
    assert involved(window, [stranger.start.handle], BLOCK_SIZE) == {stranger.start.handle}
    everyone = {s.start.handle for s in engine.live}
    assert involved(window, [stranger.start.handle], BLOCK_SIZE, all_rows=True) == everyone


def test_blocks_needed_are_the_tables_and_their_neighbours_inside_the_pool() -> None:
    engine = NaiveEngine()
    engine.free = [0, 5, 63, *range(10, 20)]
    sequence = engine.join(prompt=list(range(12)))
    engine.step(), engine.step(), engine.step()
    window = engine.recorder.window()
    assert blocks_needed(window, [sequence.start.handle], 64).tolist() == [0, 1, 4, 5, 6, 62, 63]
    assert blocks_needed(window, []).tolist() == []


def test_redaction_keeps_shapes_and_involved_rows_and_no_token_of_others() -> None:
    engine, sequence = served(5)
    capture = engine.capture(sequence)
    others = set(capture.window.starts) - capture.involved
    assert others
    redacted = redact_uninvolved(capture)
    for before, after in zip(capture.window.records, redacted.window.records, strict=True):
        mine = np.isin(before.handles, list(capture.involved))
        packed = np.repeat(mine, before.query_lengths)
        assert np.array_equal(before.token_ids[packed], after.token_ids[packed])
        assert len(before.token_ids) == len(after.token_ids)
        assert not np.array_equal(before.token_ids[~packed], after.token_ids[~packed]) or packed.all()
        assert (after.fingerprints[~mine[before.samples]] == 0).all()
    for handle in others:
        assert set(redacted.window.starts[handle].prompt_tokens) <= {0}
        assert len(redacted.window.starts[handle].prompt_tokens) == len(capture.window.starts[handle].prompt_tokens)
        assert "запрос" not in redacted.window.starts[handle].name
    for (_, before_tables), (_, after_tables) in zip(capture.window.walk(), redacted.window.walk(), strict=True):
        for handle, table in before_tables.items():
            known = np.isin(table, capture.memory.blocks) | (handle in capture.involved)
            assert np.array_equal(after_tables[handle], np.where(known, table, -1))


def test_redaction_does_not_move_the_first_exact_step() -> None:
    for seed in range(6):
        engine, sequence = served(seed)
        capture = engine.capture(sequence)
        assert redact_uninvolved(capture).first_exact_step == capture.first_exact_step
