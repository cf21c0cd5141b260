"""What explains a wrong output: factors of pages, a grid, reads, another row's numbers; and what does not."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from made_calls import free_block, made_call, one_past, reading, with_table

from checkengine.replay.judge.summation import textbook
from checkengine.replay.localise.company import depends_on_others, exchanged
from checkengine.replay.localise.explained import accounts_for, over, slides
from checkengine.replay.localise.grid import fit_grid
from checkengine.replay.localise.page_scale import scaled_pages
from checkengine.replay.localise.reads import find_reads
from checkengine.replay.localise.scale import fit_scale
from checkengine.replay.op_call import OpCall, in_company

ALL = (0, 1, 2, 3)


def with_factors(call: OpCall, what: str, factors: dict[int, float]) -> torch.Tensor:
    of_page = torch.ones(-(-call.length // call.block_size), dtype=torch.float64)
    for page, factor in factors.items():
        of_page[page] = factor
    scaled = scaled_pages(call, what, of_page)
    keys, values = scaled.keys.to(call.keys.dtype), scaled.values.to(call.values.dtype)
    return textbook(replace(call, keys=keys, values=values))


@pytest.mark.parametrize("factor", [0.5, 0.94, 0.998, 1.002, 1.06, 1.5])
@pytest.mark.parametrize("what", ["scores", "values"])
def test_one_pages_factor_is_found_however_near_to_one(what: str, factor: float) -> None:
    call = made_call(1, length=45)
    fit = fit_scale(call, with_factors(call, what, {3: factor}))
    assert fit is not None
    assert (fit.what, fit.pages) == (what, (3,))
    assert fit.factor == pytest.approx(factor, rel=1e-3)


@pytest.mark.parametrize("what", ["scores", "values"])
def test_every_other_page_with_one_factor_is_a_scale_of_those_pages(what: str) -> None:
    call = made_call(2, length=45, sharp=0.5)
    fit = fit_scale(call, with_factors(call, what, {1: 1.25, 3: 1.25, 5: 1.25}))
    assert fit is not None
    assert (fit.what, fit.pages, fit.each) == (what, (1, 3, 5), False)
    assert fit.factor == pytest.approx(1.25, rel=1e-3)


def test_pages_with_factors_of_their_own_are_told_each() -> None:
    call = made_call(3, length=45)
    fit = fit_scale(call, with_factors(call, "values", {0: 0.8, 2: 1.3}))
    assert fit is not None
    assert (fit.pages, fit.each) == ((0, 2), True)
    assert "a factor for each" in fit.words()


@pytest.mark.parametrize("seed", range(3))
def test_no_factors_explain_another_heads_keys_or_noise(seed: int) -> None:
    call = made_call(4 + seed, length=45)
    assert fit_scale(call, textbook(replace(call, keys=call.keys.flip(2)))) is None
    noise = torch.randn(textbook(call).shape, generator=torch.Generator().manual_seed(seed))
    assert fit_scale(call, textbook(call) + 1e-2 * noise) is None


@pytest.mark.parametrize("step", [0.004, 0.0315, 0.1])
def test_numbers_rounded_to_a_coarse_grid_show_its_step(step: float) -> None:
    call = made_call(5, length=45, mean=0.3)
    grid = fit_grid(call, (textbook(call) / step).round() * step, ALL)
    assert grid is not None
    # Where every number is even the grid looks coarser; it never looks finer than it is.
    assert (grid.step / step) == pytest.approx(round(grid.step / step), rel=1e-3)


def test_right_numbers_noise_and_bfloat16_lie_on_no_grid() -> None:
    call = made_call(6, length=45)
    right = textbook(call)
    assert fit_grid(call, right, ALL) is None
    assert fit_grid(call, right + 0.01 * torch.randn(right.shape), ALL) is None
    half = made_call(6, length=45, dtype=torch.bfloat16)
    assert fit_grid(half, textbook(half), ALL) is None


def test_wrong_reads_account_for_the_output_that_they_gave_and_for_no_other() -> None:
    call = made_call(7, length=41)
    elsewhere = reading(lambda c: with_table(c, 2, free_block(call)))
    reads = find_reads(elsewhere, call)
    assert reads is not None
    assert accounts_for(call, reads, elsewhere(call)) is True
    assert accounts_for(call, reads, textbook(call)) is False
    one_head = replace(reads, heads=(1,))
    assert accounts_for(call, one_head, elsewhere(call)) is None


@pytest.mark.parametrize("window", [3, 9, 16])
def test_an_edge_that_a_kernel_makes_up_moves_with_the_rows_end(window: int) -> None:
    call = made_call(8, length=41)
    narrow = reading(lambda c: replace(c, window=window))
    reads = find_reads(narrow, call)
    assert reads is not None
    assert slides(narrow, call, reads)


@pytest.mark.parametrize("page", [0, 2])
def test_the_end_of_a_page_stays_where_it_is(page: int) -> None:
    call = made_call(9, length=41)

    def leaves_out(c: OpCall) -> torch.Tensor:
        at = np.arange(c.length)
        keep = c.slots_at(at[at != page * 8 + 7])
        return textbook(over(c, keep))

    reads = find_reads(leaves_out, call)
    assert reads is not None
    assert len(reads.missing) == 1
    assert not slides(leaves_out, call, reads)


def batch(seed: int = 10, rows: int = 3) -> list[OpCall]:
    """Rows over one memory, each with pages of its own."""
    calls = [made_call(seed + row, length=20 + 5 * row) for row in range(rows)]
    blocks = sum(len(call.table) for call in calls) + 2
    random = torch.Generator().manual_seed(seed)
    keys, values = (torch.randn(blocks, 8, 2, 16, generator=random) for _ in range(2))
    first, shared = 0, []
    for call in calls:
        table = np.arange(first, first + len(call.table), dtype=np.int32)
        first += len(table)
        numbers = np.arange(blocks, dtype=np.int32)
        shared.append(replace(call, keys=keys, values=values, blocks=numbers, table=table))
    return shared


def test_another_rows_number_in_this_ones_place_is_found_on_both_sides() -> None:
    calls = batch()
    outputs = [textbook(call) for call in calls]
    swapped = [outputs[0], outputs[2], outputs[1]]
    rows = list(zip(calls, swapped, strict=True))
    assert "head 0 holds what head 0 of row 2" in (exchanged(1, rows) or "")
    assert exchanged(0, rows) is None
    lost = [outputs[0], outputs[1].clone(), outputs[2].clone()]
    lost[2][:, 0], lost[1][:, 3] = outputs[1][:, 3], 0.0
    rows = list(zip(calls, lost, strict=True))
    assert "what head 3 should hold stands in head 0 of row 2" in (exchanged(1, rows) or "")


def test_company_alone_is_no_proof_that_rows_are_mixed_up() -> None:
    calls = batch()
    doubled = [textbook(call) * (1.5 if index == 1 else 1.0) for index, call in enumerate(calls)]
    assert exchanged(1, list(zip(calls, doubled, strict=True))) is None


def test_bits_that_depend_on_what_others_ask_or_hold_are_told_apart_from_those_that_depend_on_their_number() -> None:
    call = in_company(batch(), 1)

    def of_number(c: OpCall) -> torch.Tensor:
        return textbook(c) * (1 + len(c.beside))

    def of_queries(c: OpCall) -> torch.Tensor:
        return textbook(c) + sum(float(row.query.sum()) for row in c.beside)

    def of_memory(c: OpCall) -> torch.Tensor:
        return textbook(c) + float(c.keys[c.beside[0].table.tolist()].sum())

    assert depends_on_others(of_number, call) is None
    assert "ask" in (depends_on_others(of_queries, call) or "")
    assert "hold" in (depends_on_others(of_memory, call) or "")


def test_one_slot_past_the_end_accounts_for_itself() -> None:
    call = made_call(12, length=45)
    reads = find_reads(reading(one_past), call)
    assert reads is not None
    assert accounts_for(call, reads, textbook(one_past(call))) is True
