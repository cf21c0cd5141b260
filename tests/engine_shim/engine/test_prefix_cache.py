"""Known prefixes are found again, old ones give way, bad ones are not found."""

from __future__ import annotations

from typing import Any

from checkengine.engine_shim.engine.block_pool import BlockPool, BlockState
from checkengine.engine_shim.engine.engine import Engine
from checkengine.engine_shim.engine.prefix_cache import ROOT, PrefixCache, block_id
from checkengine.engine_shim.engine.request import GenerationRequest, SamplingParameters
from checkengine.engine_shim.settings import EngineSettings

SETTINGS = EngineSettings(block_size=8, blocks=40, threads=1)


def finish(engine: Engine, name: str, prompt: list[int]) -> Any:
    engine.submit(GenerationRequest(name, prompt, SamplingParameters(temperature=0, max_tokens=4)))
    outputs = []
    while engine.has_work:
        outputs += engine.step()
    return outputs[-1]


def cached_blocks(cache: PrefixCache, pool: BlockPool, tokens: list[int]) -> list[int]:
    blocks, parent = [], ROOT
    for begin in range(0, len(tokens), 4):
        block = pool.take(handle=1)
        parent = block_id(parent, tokens[begin : begin + 4])
        cache.insert(parent, block)
        blocks.append(block)
    for block in reversed(blocks):
        cache.release(block, 1)
    return blocks


def test_equal_blocks_after_different_beginnings_are_different() -> None:
    assert block_id(block_id(ROOT, [1, 2]), [5, 6]) != block_id(block_id(ROOT, [3, 4]), [5, 6])


def test_a_hit_leaves_at_least_one_token_to_compute() -> None:
    pool = BlockPool(4)
    cache = PrefixCache(pool, 4)
    blocks = cached_blocks(cache, pool, list(range(8)))
    assert [block for _, block in cache.match(list(range(8)))] == blocks[:1]
    assert [block for _, block in cache.match(list(range(9)))] == blocks


def test_the_tail_of_the_least_recently_used_prefix_is_evicted_first() -> None:
    pool = BlockPool(4)
    cache = PrefixCache(pool, 4)
    old = cached_blocks(cache, pool, [1] * 8)
    new = cached_blocks(cache, pool, [2] * 8)
    assert [cache.evict() for _ in range(4)] == [old[1], old[0], new[1], new[0]]


def test_a_second_request_reuses_the_first_ones_blocks_and_reports_it(tiny_llama: Any) -> None:
    engine = Engine(tiny_llama, None, SETTINGS)
    prompt = list(range(3, 40))
    assert finish(engine, "first", prompt).cached_tokens == 0
    assert finish(engine, "second", prompt).cached_tokens == 32
    assert finish(engine, "other", [*prompt[:16], 99, *prompt[17:]]).cached_tokens == 16


def test_without_the_prefix_cache_nothing_is_kept(tiny_llama: Any) -> None:
    engine = Engine(tiny_llama, None, SETTINGS.model_copy(update={"prefix_cache": False}))
    finish(engine, "first", list(range(3, 40)))
    assert {engine.pool.owner(block).state for block in range(40)} == {BlockState.FREE}
    assert finish(engine, "second", list(range(3, 40))).cached_tokens == 0
