"""The estimate of what an upstream has cached."""

from __future__ import annotations

import random

import pytest

from checkengine.engine_shim.proxy.routing.prefix_index import BLOCK_BYTES, ChainHash, PrefixIndex, bytes_of
from checkengine.engine_shim.proxy.routing.prompt import prompt_bytes

HASH = ChainHash(b"key")


def text(seed: int, blocks: float) -> bytes:
    return random.Random(seed).randbytes(int(blocks * BLOCK_BYTES))


def test_a_prompt_that_was_sent_is_a_hit_to_its_last_whole_block() -> None:
    index = PrefixIndex(100)
    index.insert("a", HASH.chain(text(1, 5.5)))
    assert index.hit("a", HASH.chain(text(1, 5.5))) == 5
    assert index.hit("a", HASH.chain(text(1, 5.5) + text(2, 3))) == 5
    assert index.hit("b", HASH.chain(text(1, 5.5))) == 0


def test_equal_blocks_after_different_beginnings_are_no_hit() -> None:
    index = PrefixIndex(100)
    index.insert("a", HASH.chain(text(1, 1) + text(2, 4)))
    assert index.hit("a", HASH.chain(text(3, 1) + text(2, 4))) == 0


def test_the_hit_is_the_common_prefix_at_every_length() -> None:
    index = PrefixIndex(1000)
    index.insert("a", HASH.chain(text(1, 20)))
    for shared in range(21):
        mixed = text(1, 20)[: shared * BLOCK_BYTES] + text(7, 20 - shared)
        assert index.hit("a", HASH.chain(mixed)) == shared


def test_the_index_never_holds_more_than_its_blocks_and_stays_prefix_closed() -> None:
    index, dice = PrefixIndex(64), random.Random(5)
    trunks = [HASH.chain(text(seed, 40)) for seed in range(6)]
    for _ in range(300):
        index.insert("a", dice.choice(trunks)[: dice.randrange(1, 41)])
        assert index.blocks("a") <= 64
        for trunk in trunks:
            kept = [name in index._seen["a"] for name in trunk]
            assert kept == sorted(kept, reverse=True)
            assert index.hit("a", trunk) == sum(kept)


def test_what_was_not_used_for_longest_is_forgotten_first() -> None:
    index = PrefixIndex(10)
    old, used, new = (HASH.chain(text(seed, 5)) for seed in (1, 2, 3))
    for chain in (old, used):
        index.insert("a", chain)
    index.insert("a", used)
    index.insert("a", new)
    assert (index.hit("a", used), index.hit("a", new), index.hit("a", old)) == (5, 5, 0)


def test_a_prompt_longer_than_the_index_keeps_its_beginning() -> None:
    index, chain = PrefixIndex(8), HASH.chain(text(1, 30))
    index.insert("a", chain)
    assert index.hit("a", chain) == 8


def test_names_of_blocks_differ_between_processes() -> None:
    assert ChainHash().chain(text(1, 3)) != ChainHash().chain(text(1, 3))


def test_a_next_turn_begins_with_the_bytes_of_the_one_before() -> None:
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"}]
    tools = [{"type": "function", "function": {"name": "f"}}]
    before = prompt_bytes({"model": "m", "messages": messages, "tools": tools, "temperature": 0.3})
    answer = {"role": "assistant", "content": [{"type": "text", "text": "Hi"}]}
    after = prompt_bytes({"tools": tools, "messages": [*messages, answer, messages[1]], "model": "m", "stream": True})
    assert after.startswith(before)
    assert after != before


def test_a_string_and_its_only_text_part_are_the_same_prompt() -> None:
    parts = [{"type": "text", "text": "Hello"}]
    as_text, as_parts = ({"messages": [{"role": "user", "content": each}]} for each in ("Hello", parts))
    assert prompt_bytes(as_text) == prompt_bytes(as_parts)


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"messages": None},
        {"messages": [None, 3, {"role": 1, "content": {"a": "\ud800"}}]},
        {"prompt": [1, 2, 3]},
        {"prompt": ["a", "b"]},
        {"input": "x"},
        {
            "messages": [
                {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:" + "A" * 9999}}]}
            ]
        },
        {"model": object(), "prompt": float("nan"), "tools": {1: {2, 3}}},
    ],
)
def test_no_body_breaks_the_prompt(body: dict[str, object]) -> None:
    assert isinstance(prompt_bytes(body), bytes)
    assert len(prompt_bytes(body)) < 4096


@pytest.mark.parametrize("shared", [60_000, 70_000, 300_000, 999_000])
def test_of_a_long_prompt_the_shared_part_is_known_to_within_one_block(shared: int) -> None:
    first, second = text(1, 2000), text(2, 2000)
    index = PrefixIndex(10_000)
    index.insert("a", HASH.chain(first))
    found = bytes_of(index.hit("a", HASH.chain(first[:shared] + second[shared:])))
    assert shared - 16 * BLOCK_BYTES < found <= shared


def test_a_long_prompt_has_few_blocks() -> None:
    assert len(HASH.chain(text(1, 2000))) < 250
