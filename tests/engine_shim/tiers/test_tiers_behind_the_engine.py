"""Tiers behind a real engine on a tiny model whose memory holds one conversation only: answers never change."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from checkengine.detectors.seal import Seal
from checkengine.engine_shim.engine.engine import Engine
from checkengine.engine_shim.engine.prefix_cache import block_ids
from checkengine.engine_shim.engine.request import GenerationRequest, SamplingParameters
from checkengine.engine_shim.settings import EngineSettings
from checkengine.engine_shim.tier_settings import TierSettings
from checkengine.engine_shim.tiers import FaultyMove, HostTier, Payload
from checkengine.engine_shim.tiers.moves import PLANTED
from checkengine.engine_shim.tiers.sealing import Sealing
from checkengine.replay.undo import UndoRing
from checkengine.tiny import tiny_model

MODEL = tiny_model()
SIZE = 1000
NOTHING = Seal({}, "", 0, "", 0, "", "")
BLOCK = 8
PROMPTS = {name: [(seed * 7 + index * 3) % 150 + 3 for index in range(41)] for seed, name in enumerate("abcdefgh")}
"""Five full blocks each; the engine's memory holds nine blocks."""
BROKEN_BY = {
    "bit flip": "bit flip",
    "swapped layers": "swapped layers",
    "short restore": "short restore",
    "read before ready": "read before ready",
    "late write": "late write",
    "stale generation": "stale generation",
    "other tenant": "another tenant's block",
}


@pytest.fixture(autouse=True)
def _own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHECKENGINE_STATE", str(tmp_path / "state"))


def engine_with(directory: Path, *, host: int = 1 << 20, disk: int = 0, **options: Any) -> Engine:
    tiers = TierSettings(host_bytes=host, disk_bytes=disk, directory=directory)
    settings = EngineSettings(block_size=BLOCK, blocks=9, threads=1, tiers=tiers)
    return Engine(MODEL, None, settings, **options)


def serve(engine: Engine, name: str) -> tuple[list[int], int]:
    """Tokens of the answer, and how many prompt tokens came from memory of some tier."""
    engine.submit(GenerationRequest(name, PROMPTS[name], SamplingParameters(temperature=0, max_tokens=6)))
    outputs = []
    while engine.has_work:
        outputs += engine.step()
    return [token for output in outputs for token in output.tokens], outputs[-1].cached_tokens


CLEAN = {
    name: serve(Engine(MODEL, None, EngineSettings(block_size=BLOCK, blocks=40, threads=1)), name)[0]
    for name in PROMPTS
}


def test_a_conversation_that_had_to_go_comes_back_from_host_memory_with_the_same_answer(tmp_path: Path) -> None:
    engine = engine_with(tmp_path)
    assert [serve(engine, name) for name in "abc"] == [(CLEAN[name], 0) for name in "abc"]
    assert serve(engine, "a") == (CLEAN["a"], 40)
    counts = engine.tiers.blocks.counts
    assert counts.host_hits == 5
    assert counts.refused == {}


def test_without_tiers_the_same_conversation_is_computed_again() -> None:
    engine = Engine(MODEL, None, EngineSettings(block_size=BLOCK, blocks=9, threads=1))
    for name in "abc":
        serve(engine, name)
    assert engine.tiers is None
    assert serve(engine, "a") == (CLEAN["a"], 0)


def test_what_host_memory_has_no_room_for_comes_back_from_disk(tmp_path: Path) -> None:
    engine = engine_with(tmp_path, host=1, disk=1 << 24)
    for name in "abc":
        serve(engine, name)
    engine.tiers.blocks.wait()
    assert serve(engine, "a") == (CLEAN["a"], 40)
    assert engine.tiers.blocks.counts.disk_hits == 5
    engine.close()


def test_a_hint_brings_blocks_to_host_memory_before_the_request(tmp_path: Path) -> None:
    # Host memory holds fourteen blocks: those that come, and those that give way to them.
    engine = engine_with(tmp_path, host=1 << 16, disk=1 << 24)
    for name in PROMPTS:
        serve(engine, name)
    engine.tiers.blocks.wait()
    assert engine.tiers.prefetch(PROMPTS["a"])
    engine.tiers.blocks.wait()
    assert engine.tiers.blocks.counts.prefetched == 5
    before = engine.tiers.blocks.counts.disk_hits
    assert serve(engine, "a") == (CLEAN["a"], 40)
    assert engine.tiers.blocks.counts.disk_hits == before
    engine.close()


@pytest.mark.parametrize("strike", [0, 3])
@pytest.mark.parametrize("planted", PLANTED)
def test_a_block_that_breaks_on_its_way_is_named_refused_and_computed_again(
    planted: Any, strike: int, tmp_path: Path
) -> None:
    engine = engine_with(tmp_path)
    told: list[Any] = []
    engine.tiers.tell = told.append
    for name in "abc":
        serve(engine, name)
    engine.tiers.blocks.move = fault = FaultyMove(planted, strike, seed=3)
    assert serve(engine, "a") == (CLEAN["a"], BLOCK * strike)
    assert fault.struck == 1
    assert engine.tiers.blocks.counts.refused == {BROKEN_BY[planted]: 1}
    assert [(each.kind, each.sequence) for each in told] == [("kv.integrity", "a")]
    for name in "bcda":
        assert serve(engine, name)[0] == CLEAN[name]
    assert fault.struck == 1


def test_a_poisoned_sequences_blocks_are_in_no_tier(tmp_path: Path) -> None:
    engine = engine_with(tmp_path)
    for name in "abc":
        serve(engine, name)
    identities = block_ids(PROMPTS["a"], BLOCK)
    assert all(identity in engine.tiers for identity in identities)
    engine.submit(GenerationRequest("a", PROMPTS["a"], SamplingParameters(temperature=0, max_tokens=6)))
    engine.step()
    engine.scheduler.poison(next(iter(engine._live.values())))
    assert not any(identity in engine.tiers for identity in identities)


def test_a_replay_never_begins_before_a_block_that_came_back(tmp_path: Path) -> None:
    undo = UndoRing(64, 1 << 22)
    engine = engine_with(tmp_path, undo=undo)
    for name in "abc":
        serve(engine, name)
    step = engine.steps
    serve(engine, "a")
    assert undo.first_step == step


def test_an_engine_of_the_same_model_finds_what_another_one_left_on_disk(tmp_path: Path) -> None:
    first = engine_with(tmp_path, disk=1 << 24)
    for name in "abc":
        serve(first, name)
    first.close()
    second = engine_with(tmp_path, disk=1 << 24)
    assert serve(second, "a") == (CLEAN["a"], 40)
    assert second.tiers.blocks.counts.disk_hits == 5
    second.close()


def test_another_models_blocks_are_not_found(tmp_path: Path) -> None:
    first = engine_with(tmp_path, disk=1 << 24)
    for name in "abc":
        serve(first, name)
    first.close()
    tiers = TierSettings(host_bytes=1, disk_bytes=1 << 24, directory=tmp_path)
    other = Engine(tiny_model(seed=1), None, EngineSettings(block_size=BLOCK, blocks=9, threads=1, tiers=tiers))
    assert serve(other, "a")[1] == 0
    other.close()


def test_a_torn_file_is_a_miss_and_never_an_answer(tmp_path: Path) -> None:
    first = engine_with(tmp_path, disk=1 << 24)
    for name in "abc":
        serve(first, name)
    first.close()
    for number, file in enumerate(sorted(tmp_path.rglob("*.kv"))):
        content = file.read_bytes()
        changed = bytearray(content)
        changed[len(content) // 2] ^= 1
        file.write_bytes([content[: len(content) // 2], b"", bytes(changed)][number % 3])
    second = engine_with(tmp_path, disk=1 << 24)
    assert serve(second, "a") == (CLEAN["a"], 0)
    assert second.tiers.blocks.counts.refused == {}
    second.close()


KILLED = """
import sys
from pathlib import Path
sys.path.insert(0, {folder!r})
from test_tiers_behind_the_engine import PROMPTS, engine_with, serve
engine = engine_with(Path(sys.argv[1]), host=1, disk=1 << 24)
print("ready", flush=True)
while True:
    for name in PROMPTS:
        serve(engine, name)
        print(len(list(Path(sys.argv[1]).rglob("*.kv"))), flush=True)
"""


def test_kill_9_while_blocks_go_to_disk_leaves_only_whole_blocks_and_the_same_answers(tmp_path: Path) -> None:
    program = KILLED.format(folder=str(Path(__file__).parent))
    with subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path)], stdout=subprocess.PIPE, text=True, env=os.environ
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        while int(process.stdout.readline()) < 3:
            pass
        process.send_signal(signal.SIGKILL)
    again = engine_with(tmp_path, host=1, disk=1 << 24)
    for name in PROMPTS:
        assert serve(again, name)[0] == CLEAN[name]
    assert again.tiers.blocks.counts.disk_hits > 0
    assert again.tiers.blocks._disk.torn == 0
    assert again.tiers.blocks.counts.refused == {}
    again.close()


def test_a_prefetched_block_that_is_about_to_be_read_gives_way_to_none_that_makes_room_for_it(tmp_path: Path) -> None:
    # Host memory holds just the five blocks that were prefetched; each one's way up pushes another conversation's down.
    engine = engine_with(tmp_path, host=1 << 24, disk=1 << 24)
    for name in PROMPTS:
        serve(engine, name)
    size = next(iter(dict(engine.tiers.blocks._host.items()).values())).size
    engine.tiers.blocks.flush()
    engine.tiers.blocks._host.budget = 5 * size
    engine.tiers.prefetch(PROMPTS["a"])
    engine.tiers.blocks.wait()
    prefetched = block_ids(PROMPTS["a"], BLOCK)
    given_up: set[bytes] = set()
    waiting = set(prefetched)
    blocks, host = engine.tiers.blocks, engine.tiers.blocks._host
    hand_down, restore = host.give_up, blocks.restore

    def gives_way(name: bytes, payload: Payload) -> None:
        given_up.update({name} if waiting else ())
        hand_down(name, payload)

    def restored(name: bytes, block: int) -> bool:
        assert name not in given_up
        waiting.discard(name)
        return restore(name, block)

    host.give_up, blocks.restore = gives_way, restored
    assert serve(engine, "a") == (CLEAN["a"], 40)
    assert given_up
    assert waiting == set()
    assert engine.tiers.blocks._host.pinned == frozenset()
    engine.close()


def test_host_memory_full_of_pinned_blocks_hands_what_comes_further_down() -> None:
    gone: list[bytes] = []
    host = HostTier(2 * SIZE, lambda identity, payload: gone.append(identity))
    payload = Payload({"key": np.zeros(SIZE, np.uint8)}, NOTHING)
    for identity in (b"1", b"2"):
        host.put(identity, payload)
    host.pinned = frozenset((b"1", b"2", b"9"))
    assert not host.put(b"3", payload)
    host.pinned = frozenset((b"1",))
    assert host.put(b"4", payload)
    assert (gone, b"1" in host, b"4" in host) == ([b"3", b"2"], True, True)


def test_with_a_sealing_thread_answers_findings_and_what_lies_on_disk_are_the_same(tmp_path: Path) -> None:
    tiers = TierSettings(host_bytes=1 << 20, disk_bytes=1 << 24, directory=tmp_path, pipelined=True)
    settings = EngineSettings(block_size=BLOCK, blocks=9, threads=1, tiers=tiers)
    engine = Engine(MODEL, None, settings)
    for name in "abc":
        assert serve(engine, name)[0] == CLEAN[name]
    assert serve(engine, "a") == (CLEAN["a"], 40)
    engine.tiers.blocks.move = fault = FaultyMove("bit flip", 0, 1)
    assert serve(engine, "b")[0] == CLEAN["b"]
    assert (fault.struck, engine.tiers.blocks.counts.refused) == (1, {"bit flip": 1})
    engine.close()
    again = engine_with(tmp_path, disk=1 << 24)
    assert serve(again, "a") == (CLEAN["a"], 40)
    assert again.tiers.blocks._disk.torn == 0
    again.close()


def test_a_seal_that_cannot_be_made_is_told_to_whoever_asks_for_it() -> None:
    def fails(cells: object) -> Seal:
        raise MemoryError("no room")

    sealing = Sealing(pipelined=True)
    payload = sealing.copied({"key": np.zeros((1, 2, 1, 8), np.uint32)}, fails)
    with pytest.raises(MemoryError, match="no room"):
        _ = payload.seal
    sealing.close()


def test_a_disk_that_is_no_folder_is_told_once_and_costs_its_blocks_only_and_holds_none_in_memory(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    place = tmp_path / "a file"
    place.write_text("")
    engine = engine_with(place, host=1, disk=1 << 24)
    for name in "abca":
        assert serve(engine, name) == (CLEAN[name], 0)
    engine.tiers.blocks.wait()
    assert engine.tiers.blocks._disk.failed == engine.tiers.blocks.counts.dropped > 0
    assert engine.tiers.blocks._on_the_way == {}
    told = [record.getMessage() for record in caplog.records if "takes no blocks" in record.getMessage()]
    assert len(told) == 1
    assert str(place) in told[0]
    engine.close()


def test_a_write_that_fails_in_a_way_nobody_thought_of_holds_no_block_in_memory(tmp_path: Path) -> None:
    engine = engine_with(tmp_path, host=1, disk=1 << 24)

    def fails(identity: bytes, payload: Payload) -> bool:
        raise RuntimeError("planted")

    engine.tiers.blocks._disk.put = fails
    for name in "abca":
        assert serve(engine, name)[0] == CLEAN[name]
    engine.tiers.blocks.wait()
    assert engine.tiers.blocks._on_the_way == {}
    engine.close()


def test_an_engine_takes_a_block_that_another_one_wrote_first_under_its_own_count_of_generations(
    tmp_path: Path,
) -> None:
    first, second = engine_with(tmp_path, host=1, disk=1 << 24), engine_with(tmp_path, host=1, disk=1 << 24)
    for name in "abc":
        serve(first, name)
    first.tiers.blocks.wait()
    # As after giving up the same blocks itself, a moment later: the first one's files stay.
    second.tiers.blocks._generations = dict.fromkeys(block_ids(PROMPTS["a"], BLOCK), 77)
    assert serve(second, "a") == (CLEAN["a"], 40)
    assert second.tiers.blocks.counts.refused == {}
    first.close()
    second.close()


@pytest.mark.parametrize("name", ["ä 字", "with \n a line", "'quotes' \"and\" $HOME", "x" * 200])
def test_a_tiers_folder_may_have_any_name(tmp_path: Path, name: str) -> None:
    engine = engine_with(tmp_path / name, host=1, disk=1 << 24)
    for other in "abc":
        serve(engine, other)
    engine.tiers.blocks.wait()
    assert serve(engine, "a") == (CLEAN["a"], 40)
    engine.close()
