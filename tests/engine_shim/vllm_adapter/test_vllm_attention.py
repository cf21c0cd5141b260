"""The float64 kernel of vLLM's executor, and pages in a packed layout."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from checkengine.engine_shim.vllm.attention import exact_attention
from checkengine.engine_shim.vllm.executor import by_slot, owned_pages
from checkengine.engine_shim.vllm.kv_cache import KEY, VALUE, PackedCache
from checkengine.replay.judge.bound import bounded
from checkengine.replay.op_call import OpCall

SIZE, HEADS, GROUPS, DIM = 4, 4, 2, 8


def call_of(length: int, tokens: int, **options: object) -> OpCall:
    torch.manual_seed(length)
    blocks = np.array([0, 2, 5, 7, 8], np.int32)
    return OpCall(
        layer=0,
        row=0,
        kernel="vllm",
        query=torch.randn(tokens, HEADS, DIM),
        keys=torch.randn(len(blocks), SIZE, GROUPS, DIM),
        values=torch.randn(len(blocks), SIZE, GROUPS, DIM),
        blocks=blocks,
        table=np.array([7, 2, 5], np.int32)[: -(-length // SIZE)],
        length=length,
        scaling=0.3,
        **options,  # type: ignore[arg-type]
    )


@pytest.mark.parametrize(
    "options", [{}, {"window": 3}, {"softcap": 5.0}, {"sinks": torch.tensor([0.1, 2.0, -1.0, 0.0])}]
)
@pytest.mark.parametrize(("length", "tokens"), [(1, 1), (9, 1), (12, 5), (7, 7)])
def test_float64_attention_is_what_the_judge_takes_for_exact(
    length: int, tokens: int, options: dict[str, object]
) -> None:
    call = call_of(length, tokens, **options)
    found = exact_attention(owned_pages(call))
    assert found.dtype == torch.float64
    assert torch.allclose(found, bounded(call).exact, rtol=0, atol=1e-12)


def test_pages_come_back_from_the_packed_layout_and_as_slots() -> None:
    def write(keys: torch.Tensor, values: torch.Tensor, cache: torch.Tensor, slots: torch.Tensor) -> None:
        flat = cache.view(len(cache), GROUPS, -1)
        dims = torch.arange(DIM)
        for index, slot in enumerate(slots.tolist()):
            block, offset = divmod(slot, SIZE)
            flat[block][:, dims * SIZE + offset] = keys[index]
            flat[block][:, SIZE * DIM + offset * DIM + dims] = values[index]

    cache = PackedCache([torch.randn(6, GROUPS, SIZE, 2 * DIM) for _ in range(2)], write)
    pages = cache.pages(1, torch.tensor([4, 1]))
    assert torch.equal(cache.packed(pages["key"], pages["value"]), cache.layers[1][[4, 1]])
    image = cache.image(np.array([1, 4], np.int32))
    slots = cache.read_slots(np.arange(4, 8, dtype=np.int32))
    for name, part in ((KEY, "key"), (VALUE, "value")):
        assert torch.equal(image.tensors[name][1, 1], pages[part][0])
        assert torch.equal(by_slot(image.tensors[name])[:4], slots[name])
