"""Seals of KV blocks on real arrays of several dtypes: what breaks on the way is told by its name."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from types import MappingProxyType

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from checkengine.detectors.seal import (
    Break,
    Expected,
    Flip,
    Seal,
    SealError,
    copy_tensor,
    diagnose,
    find_flip,
    hash_tensor,
)
from checkengine.detectors.seal.cells import digest

LAYERS, TOKENS, HEADS, DIM = 4, 16, 3, 64
DTYPES = [torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn]


def block(seed: int = 0, dtype=torch.float32, dim: int = DIM) -> dict[str, np.ndarray]:
    """Bits of every dtype, as unsigned numbers of its width."""
    generator = torch.Generator().manual_seed(seed)
    bits = {1: torch.uint8, 2: torch.uint16, 4: torch.uint32}[dtype.itemsize]
    shape = (LAYERS, TOKENS, HEADS, dim)
    drawn = {name: torch.randn(shape, generator=generator) for name in ("kv0.key", "kv0.value")}
    return {name: tensor.to(dtype).view(bits).numpy() for name, tensor in drawn.items()}


def cells_of(tensors):
    return {name: hash_tensor(tensor) for name, tensor in tensors.items()}


def seal_of(tensors, **changes) -> Seal:
    told = {"tokens": "ab" * 16, "length": TOKENS, "dtype": "float32"}
    told |= {"generation": 3, "owner": "tenant", "writer": "prefill-0"}
    return Seal(cells=cells_of(tensors), **(told | changes))


EXPECTED = Expected(tokens="ab" * 16, length=TOKENS, generation=3, owner="tenant", dtype="float32")


def broken(tensors, *, seal=None, expected=EXPECTED, before=None):
    seal = seal or seal_of(block())
    return diagnose(
        seal,
        cells_of(tensors),
        expected,
        before=None if before is None else cells_of(before),
        vector=lambda name, layer, token, head: tensors[name][layer, token, head],
    )


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_block_that_arrives_whole_breaks_no_seal(dtype):
    assert broken(block(dtype=dtype), seal=seal_of(block(dtype=dtype))) is None


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("dim", [64, 80, 13])
def test_a_flipped_bit_is_named_with_its_layer_token_head_byte_and_bit(dtype, dim):
    draw = np.random.default_rng(1)
    for _ in range(40):
        tensors, seal = block(dtype=dtype, dim=dim), seal_of(block(dtype=dtype, dim=dim))
        name = str(draw.choice(list(tensors)))
        layer, token, head = (int(draw.integers(size)) for size in (LAYERS, TOKENS, HEADS))
        data = tensors[name][layer, token, head].view(np.uint8)
        byte, bit = int(draw.integers(len(data))), int(draw.integers(8))
        data[byte] ^= np.uint8(1 << bit)
        found = broken(tensors, seal=seal)
        assert (found.kind, found.cells, found.flip) == (Break.BIT_FLIP, 1, Flip(byte, bit))
        assert (found.layer, found.token, found.head) == (layer, token, head)


def test_two_flipped_bits_of_one_vector_are_not_called_one_bit_flip():
    tensors = block()
    tensors["kv0.key"][1, 2, 0].view(np.uint8)[[3, 77]] ^= 1
    assert broken(tensors).kind is Break.LATE_WRITE


def test_swapped_layers_are_told_as_such():
    tensors = block()
    for tensor in tensors.values():
        tensor[[1, 2]] = tensor[[2, 1]]
    assert broken(tensors).kind is Break.SWAPPED_LAYERS


def test_keys_alone_in_the_wrong_order_of_layers_are_swapped_layers_too():
    tensors = block()
    tensors["kv0.key"] = tensors["kv0.key"][::-1].copy()
    assert broken(tensors).kind is Break.SWAPPED_LAYERS


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("first_missing", [1, 9, TOKENS - 1])
def test_a_tail_that_was_not_restored_is_a_short_restore(known, first_missing):
    old, tensors = block(seed=9), block()
    for name, tensor in tensors.items():
        tensor[:, first_missing:] = old[name][:, first_missing:]
    assert broken(tensors, before=old if known else None).kind is Break.SHORT


@pytest.mark.parametrize("known", [True, False])
def test_memory_in_which_nothing_has_arrived_yet_was_read_before_ready(known):
    old = block(seed=9)
    assert broken(old, before=old if known else None).kind is Break.NOT_READY


def test_bytes_that_are_neither_sealed_nor_what_lay_there_before_are_a_late_write():
    tensors = block()
    tensors["kv0.value"][2, 5] += 1
    found = broken(tensors, before=block(seed=9))
    assert (found.kind, found.cells, found.layer, found.token) == (Break.LATE_WRITE, HEADS, 2, 5)


def test_a_whole_block_written_over_late_is_not_called_read_before_ready():
    assert broken(block(seed=5), before=block(seed=9)).kind is Break.LATE_WRITE


def test_content_of_an_earlier_generation_is_stale_though_its_label_is_new():
    old = block(seed=7)
    expected = replace(EXPECTED, earlier=MappingProxyType({2: digest(cells_of(old))}))
    assert broken(old, expected=expected).kind is Break.STALE


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        ({"owner": "other"}, Break.OTHER_TENANT),
        ({"tokens": "cd" * 16}, Break.OTHER_BLOCK),
        ({"generation": 2}, Break.STALE),
        ({"dtype": "bfloat16"}, Break.OTHER_FORMAT),
    ],
)
def test_a_whole_block_that_is_not_the_one_asked_for_is_told_by_what_it_is(change, kind):
    found = broken(block(), seal=seal_of(block(), **change))
    assert (found.kind, found.cells) == (kind, 0)


def test_a_tensor_that_did_not_come_is_another_format():
    tensors = block()
    del tensors["kv0.value"]
    assert broken(tensors).kind is Break.OTHER_FORMAT


@given(cut=st.integers(1, HEADS - 1), seed=st.integers(0, 100))
@settings(max_examples=20, deadline=None)
def test_shards_of_heads_join_to_the_whole_and_their_digests_add_up(cut, seed):
    tensors = block(seed)
    shards = [
        seal_of({name: tensor[:, :, part] for name, tensor in tensors.items()}, first_head=part.start or 0)
        for part in (slice(0, cut), slice(cut, HEADS))
    ]
    whole = seal_of(tensors)
    assert sum(shard.digest for shard in shards) % 2**64 == whole.digest
    joined = Seal.joined(shards[::-1])
    assert joined.digest == whole.digest
    assert joined.heads(cut, HEADS - cut).digest == shards[1].digest


def test_shards_with_a_head_missing_or_of_other_blocks_are_refused():
    whole = seal_of(block())
    with pytest.raises(SealError, match="head 1 is in no seal"):
        Seal.joined([whole.heads(0, 1), whole.heads(2, 1)])
    with pytest.raises(SealError, match="different blocks"):
        Seal.joined([whole.heads(0, 1), replace(whole.heads(1, 2), generation=9)])
    with pytest.raises(SealError, match="there is no seal"):
        Seal.joined([])
    with pytest.raises(SealError, match="not in this seal"):
        whole.heads(2, 2)


def test_a_seal_survives_being_written_and_read():
    seal = seal_of(block(), scales=MappingProxyType({"kv0.key": "12ab"}), converted_from="float32")
    again = Seal.from_bytes(seal.to_bytes())
    assert again.digest == seal.digest
    assert replace(again, cells={}) == replace(seal, cells={})


@given(st.data())
@settings(max_examples=150, deadline=None)
def test_bytes_that_are_no_seal_give_one_kind_of_error(data):
    whole = seal_of(block()).to_bytes()
    kind = data.draw(st.sampled_from(["cut", "noise", "changed"]))
    if kind == "cut":
        mangled = whole[: data.draw(st.integers(0, len(whole) - 1))]
    elif kind == "noise":
        mangled = data.draw(st.binary(max_size=200))
    else:
        at = data.draw(st.integers(0, 600))
        mangled = whole[:at] + bytes([data.draw(st.integers(0, 255))]) + whole[at + 1 :]
    with contextlib.suppress(SealError):
        Seal.from_bytes(mangled)


def test_every_single_bit_of_a_vector_is_found_again():
    vector = np.random.default_rng(0).normal(size=DIM).astype(np.float16)
    wanted = int(hash_tensor(vector[None, None, None]).item())
    for byte in range(vector.nbytes):
        for bit in range(8):
            flipped = vector.copy()
            flipped.view(np.uint8)[byte] ^= np.uint8(1 << bit)
            assert find_flip(flipped, wanted) == Flip(byte, bit)
    assert find_flip(vector, wanted ^ 5) is None


def test_two_flipped_signs_never_cancel():
    tensors = block()
    sealed = hash_tensor(tensors["kv0.key"])
    for first in range(0, DIM, 2):
        for second in range(first + 1, DIM, 2):
            vector = tensors["kv0.key"].copy()
            vector[0, 0, 0, [first, second]] ^= np.uint32(1 << 31)
            assert hash_tensor(vector[:1, :1, :1]).item() != sealed[0, 0, 0]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("dim", [64, 13])
def test_a_copy_that_seals_on_its_way_gives_the_same_bytes_and_hashes(dtype, dim):
    for tensor in block(dtype=dtype, dim=dim).values():
        copies = np.zeros_like(tensor)
        np.testing.assert_array_equal(copy_tensor(tensor, copies), hash_tensor(tensor))
        np.testing.assert_array_equal(copies, tensor)


def test_a_tensor_without_cells_has_no_hashes():
    empty = np.zeros((3, 0, 2, 64), np.float16)
    assert hash_tensor(empty).shape == (3, 0, 2)
    assert copy_tensor(empty, empty.copy()).shape == (3, 0, 2)
