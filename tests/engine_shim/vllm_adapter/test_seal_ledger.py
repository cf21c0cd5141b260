"""Seals between two processes' KV caches, on plain tensors: what vLLM's connector carries, without vLLM."""

from __future__ import annotations

import os
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from checkengine.detectors.seal import Break
from checkengine.engine_shim.engine.prefix_cache import block_ids
from checkengine.engine_shim.vllm.block_chains import BlockChains
from checkengine.engine_shim.vllm.seal_ledger import Block, SealLedger, SealStore
from checkengine.replay.bundle import DeploymentKey
from checkengine.replay.transfer import Side, judge_transfer

KEY = DeploymentKey(bytes(32))
BLOCKS, HEADS, TOKENS, WIDTH, LAYERS = 6, 3, 16, 32, 4
SENT, TAKEN = Block(b"one", 2), Block(b"one", 4)


def caches(seed: int, dtype=torch.float32) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shape = (BLOCKS, HEADS, TOKENS, WIDTH)
    return {f"model.layers.{n}": torch.randn(shape, generator=generator).to(dtype) for n in range(LAYERS)}


def transfer(folder: Path, damage=lambda blocks, old: None, dtype=torch.float32):
    """One process writes and seals a block, another one takes it over; its verdicts, and its ledger."""
    sender, receiver = caches(1, dtype), caches(2, dtype)
    SealLedger(SealStore(folder, KEY), sender, "owner", "prefill").seal([SENT])
    ledger = SealLedger(SealStore(folder, KEY), receiver, "owner", "decode")
    ledger.expect([TAKEN])
    old = [cache[TAKEN.number].clone() for cache in receiver.values()]
    for name, cache in receiver.items():
        cache[TAKEN.number] = sender[name][SENT.number]
    damage([cache[TAKEN.number] for cache in receiver.values()], old)
    for name in receiver:
        ledger.arrived(name)
    return ledger.verdicts(), ledger


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float8_e4m3fn])
def test_a_block_that_arrives_whole_is_checked_and_told_nothing_of(tmp_path, dtype):
    verdicts, ledger = transfer(tmp_path, dtype=dtype)
    assert (verdicts, ledger.checked, ledger.unsealed) == ([], 1, 0)


def flip(blocks, old):
    blocks[2].view(torch.int32)[1, 5, 7] ^= 1 << 4


def swap(blocks, old):
    third = blocks[2].clone()
    blocks[2].copy_(blocks[3])
    blocks[3].copy_(third)


def never_came(blocks, old):
    for block, before in zip(blocks, old, strict=True):
        block.copy_(before)


def came_short(blocks, old):
    for block, before in zip(blocks, old, strict=True):
        block[:, 9:] = before[:, 9:]


def written_late(blocks, old):
    blocks[1].add_(1)


@pytest.mark.parametrize(
    ("damage", "kind"),
    [
        (flip, Break.BIT_FLIP),
        (swap, Break.SWAPPED_LAYERS),
        (never_came, Break.NOT_READY),
        (came_short, Break.SHORT),
        (written_late, Break.LATE_WRITE),
    ],
)
def test_a_block_that_breaks_between_two_processes_is_named_by_what_broke_it(tmp_path, damage, kind):
    verdicts, _ = transfer(tmp_path, damage)
    assert [(block, way.broken.kind) for block, way in verdicts] == [(TAKEN, kind)]


def test_a_flipped_bit_is_placed_in_layer_head_and_place(tmp_path):
    ((_, way),), _ = transfer(tmp_path, flip)
    broken = way.broken
    assert (broken.layer, broken.token, broken.head, broken.flip.byte, broken.flip.bit) == (2, 5, 1, 28, 4)


def test_a_block_that_nobody_sealed_is_taken_and_counted(tmp_path):
    ledger = SealLedger(SealStore(tmp_path, KEY), caches(2), "owner", "decode")
    ledger.expect([TAKEN])
    for name in caches(2):
        ledger.arrived(name)
    assert (ledger.verdicts(), ledger.unsealed) == ([], 1)


def test_a_torn_seal_is_no_seal(tmp_path):
    SealLedger(SealStore(tmp_path, KEY), caches(1), "owner", "prefill").seal([SENT])
    (file,) = tmp_path.glob("*.seal")
    file.write_bytes(file.read_bytes()[:50])
    assert SealStore(tmp_path, KEY).get(SENT.identity) is None


def test_a_seals_file_name_tells_nothing_without_the_key(tmp_path):
    SealStore(tmp_path, KEY).put(SENT.identity, a_seal(tmp_path))
    assert SENT.identity.hex() not in next(tmp_path.glob("*.seal")).name
    assert SealStore(tmp_path, DeploymentKey(bytes([1]) * 32)).get(SENT.identity) is None


def a_seal(folder: Path):
    store = SealStore(folder / "own", KEY)
    SealLedger(store, caches(1), "owner", "prefill").seal([SENT])
    written = store.get(SENT.identity)
    assert written is not None
    return written


def sides(folder: Path, *, sending=lambda cache: None, arriving=lambda cache: None, reading=lambda cache: None):
    """A block's whole way between two processes, each struck where it is told to be; the verdict on it."""
    sender, receiver = caches(1), caches(2)
    writer = SealLedger(SealStore(folder, KEY), sender, "owner", "prefill")
    sent = {}
    for layer, cache in sender.items():
        writer.sending(layer, [SENT])
        sent[layer] = cache[SENT.number].clone()
    sending(sender["model.layers.2"][SENT.number])
    writer.seal([SENT])
    ledger = SealLedger(SealStore(folder, KEY), receiver, "owner", "decode")
    ledger.expect([TAKEN])
    for layer, cache in receiver.items():
        cache[TAKEN.number] = sent[layer]
    arriving(receiver["model.layers.2"][TAKEN.number])
    for layer in receiver:
        ledger.arrived(layer)
    reading(receiver["model.layers.2"][TAKEN.number])
    return [judge_transfer(way) for _, way in ledger.verdicts()]


@pytest.mark.parametrize(
    ("struck", "side"),
    [("sending", Side.PREFILL), ("arriving", Side.TRANSPORT), ("reading", Side.DECODE)],
)
def test_the_side_of_a_transfer_that_broke_the_block_is_named(tmp_path, struck, side):
    (verdict,) = sides(tmp_path, **{struck: lambda cache: cache.view(torch.int32).bitwise_xor_(1 << 7)})
    assert verdict.side is side


def test_a_whole_transfer_with_all_records_accuses_nobody(tmp_path):
    assert sides(tmp_path) == []


def test_a_writer_that_recorded_no_sending_leaves_a_broken_arrival_untold(tmp_path):
    ((_, way),), _ = transfer(tmp_path, flip)
    assert way.prefill.sent is None
    assert judge_transfer(way).side is Side.UNTOLD


@pytest.mark.parametrize("content", [b"", b"x", bytes(4096), b"\xff" * 100_000, '{"ß": "字"}'.encode()])
def test_a_hostile_seal_file_is_no_seal_and_is_counted(tmp_path, content):
    store = SealStore(tmp_path, KEY)
    store.put(SENT.identity, a_seal(tmp_path))
    (file,) = tmp_path.glob("*.seal")
    file.write_bytes(content)
    assert store.get(SENT.identity) is None
    assert store.torn == 1


def test_another_blocks_seal_under_this_ones_name_is_no_seal(tmp_path):
    store = SealStore(tmp_path, KEY)
    store.put(SENT.identity, a_seal(tmp_path))
    store.put(b"another", a_seal(tmp_path))
    one, other = sorted(tmp_path.glob("*.seal"))
    content = one.read_bytes()
    one.write_bytes(other.read_bytes())
    other.write_bytes(content)
    assert (store.get(SENT.identity), store.get(b"another")) == (None, None)


def test_a_seal_file_holds_no_hash_in_the_clear(tmp_path):
    written = a_seal(tmp_path)
    SealStore(tmp_path, KEY).put(SENT.identity, written)
    (file,) = tmp_path.glob("*.seal")
    assert written.seal.cells["kv"][0, 0].tobytes() not in file.read_bytes()


def test_a_block_of_which_a_transfer_brings_a_part_is_not_checked_against_the_whole_ones_seal():
    tokens, chains = list(range(40)), BlockChains(8)
    chains.loads("a", 0, 20)
    loading, _ = chains.step(scheduled(new=[("a", tokens, [7, 3, 5, 6, 9], 20)], counts={"a": 20}))
    assert [block.number for block in loading] == [7, 3]


def scheduled(new=(), cached=(), counts=None, finished=()):
    """In the form of vLLM's SchedulerOutput."""
    return SimpleNamespace(
        finished_req_ids=set(finished),
        scheduled_new_reqs=[
            SimpleNamespace(req_id=name, prompt_token_ids=tokens, block_ids=(blocks,), num_computed_tokens=computed)
            for name, tokens, blocks, computed in new
        ],
        scheduled_cached_reqs=SimpleNamespace(
            req_ids=[name for name, *_ in cached],
            new_block_ids=[(blocks,) if blocks else None for _, blocks, *_ in cached],
            num_computed_tokens=[computed for _, _, computed, *_ in cached],
            resumed_req_ids={name for name, _, _, resumed in cached if resumed},
        ),
        num_scheduled_tokens=counts or {},
    )


def test_prompt_blocks_are_sealed_as_chunks_make_them_whole():
    tokens, chains = list(range(40)), BlockChains(8)
    ids = block_ids(tokens, 8)
    assert len(ids) == 5
    _, whole = chains.step(scheduled(new=[("a", tokens, [7, 3], 0)], counts={"a": 12}))
    assert whole == [Block(ids[0], 7)]
    _, whole = chains.step(scheduled(cached=[("a", [9, 5, 6], 12, False)], counts={"a": 28}))
    assert whole == [Block(ids[index], number) for index, number in ((1, 3), (2, 9), (3, 5), (4, 6))]
    _, whole = chains.step(scheduled(cached=[("a", [8], 40, False)], counts={"a": 1}))
    assert whole == []


def test_blocks_that_come_from_outside_are_expected_and_not_sealed_again():
    tokens, chains = list(range(24)), BlockChains(8)
    ids = block_ids(tokens, 8)
    chains.loads("a", 0, 16)
    loading, whole = chains.step(scheduled(new=[("a", tokens, [1, 2, 3], 16)], counts={"a": 8}))
    assert loading == [Block(ids[0], 1), Block(ids[1], 2)]
    assert whole == [Block(ids[2], 3)]


def test_a_request_that_was_preempted_has_all_its_blocks_named_anew():
    tokens, chains = list(range(16)), BlockChains(8)
    chains.step(scheduled(new=[("a", tokens, [1, 2], 0)], counts={"a": 16}))
    _, whole = chains.step(scheduled(cached=[("a", [5, 6], 0, True)], counts={"a": 16}))
    assert [block.number for block in whole] == [5, 6]


def test_nothing_is_kept_of_a_finished_request():
    chains = BlockChains(8)
    chains.step(scheduled(new=[("a", list(range(16)), [1, 2], 0)], counts={"a": 16}))
    chains.step(scheduled(finished=["a"]))
    assert chains._chains == {}


def test_equal_blocks_behind_different_beginnings_have_different_identities():
    assert block_ids([1] * 8 + [2] * 8, 8)[1] != block_ids([3] * 8 + [2] * 8, 8)[1]


def test_old_seals_and_drafts_of_processes_that_died_are_swept(tmp_path):
    store = SealStore(tmp_path, KEY)
    store.put(SENT.identity, a_seal(tmp_path))
    (seal,) = tmp_path.glob("*.seal")
    (tmp_path / "dead.part").write_bytes(b"x")
    (tmp_path / "somebody's").write_bytes(b"x")
    hour_ago = time.time() - 3600
    for file in tmp_path.iterdir():
        os.utime(file, (hour_ago, hour_ago))
    assert SealStore(tmp_path, KEY).get(SENT.identity) is not None
    assert not (tmp_path / "dead.part").exists()
    SealStore(tmp_path, KEY, keep_hours=0.5)
    assert not seal.exists()
    assert (tmp_path / "somebody's").exists()


def test_a_full_disk_costs_a_seal_and_leaves_no_draft(tmp_path, monkeypatch):
    store, written = SealStore(tmp_path, KEY), a_seal(tmp_path)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.replace", full)
    with pytest.raises(OSError, match="No space"):
        store.put(SENT.identity, written)
    assert [file for file in tmp_path.iterdir() if file.is_file()] == []
