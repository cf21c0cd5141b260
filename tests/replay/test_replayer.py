from __future__ import annotations

import numpy as np
import pytest
from small_engine import SmallEngine, SmallExecutor, SmallFault

from checkengine.replay.executor import ReplayError
from checkengine.replay.replayer import Replayer


def replayer_of(engine: SmallEngine, capture, **options):
    return Replayer(SmallExecutor(engine.model, engine.fault), capture, **options)


def test_random_windows_of_a_right_kernel_replay_bit_exact_after_reuse_and_preemption():
    random = np.random.default_rng(7)
    replayed = 0
    for seed in range(4):
        engine = SmallEngine(seed=seed, blocks=26)
        engine.run(70)
        for _ in range(10):
            first = int(random.integers(0, len(engine.records)))
            last = int(random.integers(first, len(engine.records)))
            alive = sorted({int(h) for r in engine.records[first : last + 1] for h in r.handles})
            chosen = random.choice(alive, size=min(2, len(alive)), replace=False).tolist()
            replay = replayer_of(engine, engine.capture(chosen, first=first, last=last)).replay()
            assert replay.first_difference is None, (seed, first, last, replay.words())
            assert replay.exact_from == "undo"
            assert replay.from_step == first
            replayed += replay.bit_exact
    assert replayed > 30


def test_an_over_read_replays_bit_exact_where_the_undo_ring_reaches():
    engine = SmallEngine(SmallFault("over_read"), seed=3)
    engine.run(40)
    replay = replayer_of(engine, engine.capture([1, 2], first=10, undo_from=10)).replay()
    assert replay.bit_exact, replay.words()
    assert replay.rows > 10


def test_without_the_undo_ring_the_first_difference_of_an_over_read_is_named():
    engine = SmallEngine(SmallFault("over_read"), seed=3)
    engine.run(40)
    capture = engine.capture([1], first=5, last=25, undo_from=99)
    replay = replayer_of(engine, capture).replay()
    assert replay.exact_from == "fills"
    assert replay.first_difference is not None
    assert replay.first_difference.sequence == "s1"
    assert not replay.bit_exact


def test_a_right_kernel_is_bit_exact_without_the_undo_ring_too():
    engine = SmallEngine(seed=5)
    engine.run(40, preemptions=0)
    replay = replayer_of(engine, engine.capture([2], first=8, last=20, undo_from=99)).replay()
    assert replay.exact_from == "fills"
    assert replay.bit_exact, replay.words()


def test_a_replay_that_feeds_itself_equals_the_forced_one_while_bits_are_exact():
    engine = SmallEngine(seed=6)
    engine.run(40)
    replayer = replayer_of(engine, engine.capture([1, 3], first=12))
    assert replayer.replay(free=True).equal_rows == replayer.replay().equal_rows > 0


def test_a_replay_that_feeds_itself_follows_its_own_tokens_after_a_difference():
    engine = SmallEngine(SmallFault("wrong_scale"), seed=6)
    engine.run(40)
    replayer = replayer_of(engine, engine.capture([1, 3], first=0, last=30))
    forced, free = replayer.replay("reference"), replayer.replay("reference", free=True)
    assert forced.first_difference is not None
    assert free.equal_rows <= forced.equal_rows < forced.rows


def test_a_level_without_fingerprints_compares_tokens_and_claims_no_bits():
    engine = SmallEngine(seed=8)
    engine.run(30)
    for record in engine.records:
        record.fingerprints = np.empty(0, np.uint64)
    replay = replayer_of(engine, engine.capture([1], first=3)).replay()
    assert replay.compared == "tokens"
    assert replay.equal_rows == replay.rows > 0
    assert not replay.bit_exact
    assert "fingerprints were not recorded" in replay.words()


def test_one_changed_token_is_named_by_step_row_and_sequence():
    engine = SmallEngine(seed=9)
    engine.run(30)
    record = next(r for r in engine.records[10:] if 1 in r.sampling_handles)
    index = int(np.flatnonzero(record.sampling_handles == 1)[0])
    record.sampled = record.sampled.copy()
    record.sampled[index] += 1
    difference = replayer_of(engine, engine.capture([1], first=5)).replay().first_difference
    assert difference is not None
    assert (difference.step, difference.sequence, difference.what) == (record.step, "s1", "token")
    assert record.handles[difference.row] == 1


def test_memory_that_was_overwritten_before_capture_is_refused_with_one_clear_error():
    engine = SmallEngine(seed=10, blocks=24)
    engine.run(100)
    gone = next(handle for handle in engine.starts if handle not in engine.live)
    capture = engine.capture([gone], first=5, undo_from=99)
    with pytest.raises(ReplayError, match="overwritten before it was captured"):
        replayer_of(engine, capture)


def test_earlier_outputs_that_the_capture_lacks_are_refused():
    engine = SmallEngine(seed=11)
    engine.run(40)
    capture = engine.capture([1], first=12, last=20)
    capture.histories.clear()
    with pytest.raises(ReplayError, match="lacks earlier output tokens"):
        replayer_of(engine, capture)
