"""The production kernel against the textbook, and what it may and may not depend on."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from checkengine.engine_shim.engine.kernels import KERNELS, AttentionCall, Rows
from checkengine.engine_shim.engine.kv_memory import KVGroup, KVLayout, KVMemory

BLOCK = 8


def make_memory(heads: int = 2, key_dim: int = 24, value_dim: int = 16, blocks: int = 40) -> KVMemory:
    memory = KVMemory(KVLayout((KVGroup("kv0", (0, 1), heads, key_dim, value_dim),), torch.float32), blocks, BLOCK)
    memory.fill_garbage(scale=1.0, seed=3)
    return memory


def make_rows(lengths: list[int], query_lengths: list[int], blocks: int = 40) -> Rows:
    """Every row on its own scattered blocks."""
    order = iter(np.random.default_rng(5).permutation(blocks).tolist())
    width = -(-max(lengths) // BLOCK) + 1
    tables = np.full((len(lengths), width), -1, np.int32)
    for row, length in enumerate(lengths):
        pages = -(-length // BLOCK)
        tables[row, :pages] = [next(order) for _ in range(pages)]
    first = np.concatenate(([0], np.cumsum(query_lengths))).astype(np.int32)
    return Rows.of(tables, np.array(lengths, np.int32), np.array(query_lengths, np.int32), first)


def make_call(memory: KVMemory, rows: Rows, **options: object) -> AttentionCall:
    query = torch.randn((int(rows.first_tokens[-1]), 6, 24), generator=torch.Generator().manual_seed(1))
    values = {"window": None, "softcap": None, "sinks": None} | options
    return AttentionCall(query, memory.layers[1], 0.2, **values)  # type: ignore[arg-type]


LENGTHS, QUERIES = [1, 7, 8, 9, 33, 64, 20], [1, 1, 1, 1, 1, 5, 20]


@pytest.mark.parametrize(
    "options",
    [{}, {"window": 5}, {"window": 16}, {"softcap": 2.0}, {"sinks": torch.linspace(-1, 2, 6)}],
    ids=["plain", "window", "longer window", "softcap", "sinks"],
)
def test_pages_give_what_the_textbook_gives(options: dict[str, object]) -> None:
    memory, rows = make_memory(), make_rows(LENGTHS, QUERIES)
    call = make_call(memory, rows, **options)
    got, wanted = KERNELS["paged"](call, rows), KERNELS["reference"](call, rows)
    torch.testing.assert_close(got, wanted, rtol=2e-5, atol=2e-6)


def test_large_scores_do_not_overflow() -> None:
    memory, rows = make_memory(), make_rows(LENGTHS, QUERIES)
    call = replace(make_call(memory, rows), scaling=80.0)
    got, wanted = KERNELS["paged"](call, rows), KERNELS["reference"](call, rows)
    torch.testing.assert_close(got, wanted, rtol=1e-3, atol=1e-3)


def test_a_row_keeps_its_bits_when_everything_that_is_not_its_own_changes() -> None:
    memory, rows = make_memory(), make_rows([33, 40, 12], [1, 1, 1])
    call = make_call(memory, rows)
    before = KERNELS["paged"](call, rows).clone()
    own = {int(block) * BLOCK + offset for block in rows.tables[0] if block >= 0 for offset in range(BLOCK)}
    own -= {int(rows.tables[0, 4]) * BLOCK + offset for offset in range(1, BLOCK)}
    others = np.array([slot for slot in range(40 * BLOCK) if slot not in own], np.int32)
    memory.write_slots(others, 1e4)
    call.query[1:] = 3.0
    after = KERNELS["paged"](call, rows)
    assert torch.equal(before[0], after[0])
    assert not torch.equal(before[1], after[1])


def test_a_row_keeps_its_bits_on_one_thread_and_on_two() -> None:
    memory, rows = make_memory(), make_rows([33, 40, 12, 64], [1, 1, 1, 1])
    call = make_call(memory, rows)
    torch.set_num_threads(1)
    alone = KERNELS["paged"](call, rows)
    torch.set_num_threads(2)
    assert torch.equal(alone, KERNELS["paged"](call, rows))


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_what_is_not_finite_in_memory_is_not_finite_in_the_output(value: float) -> None:
    memory, rows = make_memory(), make_rows([33, 40], [1, 1])
    memory.write_slots(np.array([int(rows.tables[0, 2]) * BLOCK], np.int32), value)
    output = KERNELS["paged"](make_call(memory, rows), rows)
    assert not torch.isfinite(output[0]).any()
    assert torch.isfinite(output[1]).all()


def test_it_trusts_a_length_that_is_too_long() -> None:
    """As a GPU kernel does: the slot past the end is read, and nothing else."""
    memory, rows = make_memory(), make_rows([33, 40], [1, 1])
    longer = Rows.of(rows.tables, rows.lengths + np.array([1, 0], np.int32), rows.query_lengths, rows.first_tokens)
    call = make_call(memory, rows)
    before = KERNELS["paged"](call, longer)
    memory.write_slots(np.array([int(rows.tables[0, 4]) * BLOCK + 2], np.int32), 1e4)
    assert torch.equal(before, KERNELS["paged"](call, longer))
    memory.write_slots(np.array([int(rows.tables[0, 4]) * BLOCK + 1], np.int32), 1e4)
    assert not torch.equal(before[0], KERNELS["paged"](call, longer)[0])


def test_the_reference_kernel_computes_in_float64() -> None:
    memory, rows = make_memory(), make_rows(LENGTHS, QUERIES)
    call = make_call(memory, rows)
    exact = KERNELS["reference"](replace(call, query=call.query.double()), rows)
    assert exact.dtype == torch.float64
    torch.testing.assert_close(KERNELS["paged"](call, rows).double(), exact, rtol=2e-5, atol=2e-6)
