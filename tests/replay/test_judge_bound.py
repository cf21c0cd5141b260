"""The error bound of an attention call: rounding never passes it, faults do."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from made_calls import made_call

from checkengine.replay.judge.arithmetic import arithmetic_of, certain
from checkengine.replay.judge.bound import bounded
from checkengine.replay.judge.intervals import clopper_pearson
from checkengine.replay.judge.summation import ORDERS
from checkengine.replay.localise.scale import fit_scale

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
SHAPES = (
    {},
    {"window": 12},
    {"softcap": 5.0},
    {"sinks": True},
    {"mean": 4.0},
    {"tokens": 7},
    {"sharp": 6.0, "length": 130},
    {"length": 1},
)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("order", ORDERS)
def test_no_order_of_summation_passes_the_bound_in_any_dtype(order: str, dtype: torch.dtype) -> None:
    for seed, shape in enumerate(SHAPES):
        call = made_call(seed, dtype=dtype, **shape)
        found = bounded(call)
        output = ORDERS[order](call)
        assert torch.isfinite(found.certain).all(), shape
        assert float(found.ratio(output).max()) <= 1, shape
        assert float(found.likely_ratio(output).max()) <= 1, shape


@pytest.mark.parametrize(
    ("dtype", "factor"), [(torch.float32, 1.001), (torch.float16, 1.1), (torch.bfloat16, 1.5)], ids=str
)
def test_a_wrong_scale_passes_the_bound_by_how_much_the_dtype_can_tell(dtype: torch.dtype, factor: float) -> None:
    call = made_call(3, dtype=dtype, length=60, sharp=4.0)
    for attend in ORDERS.values():
        output = attend(replace(call, scaling=call.scaling * factor))
        assert float(bounded(call).ratio(output).max()) > 1


def test_a_float32_kernel_is_convicted_of_a_scale_wrong_in_the_fourth_digit() -> None:
    call = made_call(4, length=200)
    output = ORDERS["chunks of 16"](replace(call, scaling=call.scaling * 1.0005))
    assert float(bounded(call).ratio(output).max()) > 1


def test_nan_where_the_reference_is_finite_passes_every_bound() -> None:
    call = made_call(5)
    output = ORDERS["textbook"](call)
    output[0, 1, 2] = torch.nan
    ratio = bounded(call).ratio(output)
    assert torch.isinf(ratio[0, 1, 2])
    assert float(ratio[0, 0].max()) <= 1


def test_a_model_whose_weights_were_quantised_gives_calls_within_the_bound() -> None:
    call = made_call(6, length=90)
    steps = 2.0**-3
    coarse = replace(
        call,
        query=(call.query / steps).round() * steps,
        keys=(call.keys / steps).round() * steps,
        values=(call.values / steps).round() * steps,
    )
    for attend in ORDERS.values():
        assert float(bounded(coarse).likely_ratio(attend(coarse)).max()) <= 1


def test_the_likely_bound_is_never_above_the_certain_one() -> None:
    for shape in SHAPES:
        found = bounded(made_call(7, **shape))
        assert (found.likely <= found.certain).all()


def test_of_a_long_call_the_last_token_is_always_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("checkengine.replay.judge.bound.MOST_SCORES", 4 * 45 * 3)
    found = bounded(made_call(8, tokens=20))
    assert found.tokens.tolist() == [0, 10, 19]
    assert found.exact.shape[0] == 3


def test_a_sum_of_too_many_terms_has_no_bound() -> None:
    half = arithmetic_of(torch.bfloat16)
    assert half.accumulate < half.store
    assert certain(10, half.accumulate) < 1e-5
    assert certain(300, 2.0**-8) == float("inf")


@pytest.mark.parametrize(("what", "factor"), [("scores", 1.5), ("scores", 0.125), ("values", 2.0)])
def test_a_wrong_factor_is_found_and_named(what: str, factor: float) -> None:
    call = made_call(9, length=40)
    if what == "scores":
        output = ORDERS["textbook"](replace(call, scaling=call.scaling * factor))
    else:
        output = ORDERS["textbook"](call) * factor
    fit = fit_scale(call, output)
    assert fit is not None
    assert (fit.what, fit.pages) == (what, ())
    assert fit.factor == pytest.approx(factor, rel=1e-5)


def test_a_factor_on_one_page_is_found_with_the_page() -> None:
    call = made_call(10, length=40)
    row = int((torch.from_numpy(call.blocks) == int(call.table[2])).nonzero())
    values, keys = call.values.clone(), call.keys.clone()
    values[row] *= 1.25
    keys[row] *= 1.25
    for changed, what in (
        (replace(call, values=values), "values"),
        (replace(call, keys=keys), "scores"),
        (replace(call, keys=keys, values=values), "scores and values"),
    ):
        fit = fit_scale(call, ORDERS["chunks of 16"](changed))
        assert fit is not None
        assert (fit.what, fit.pages) == (what, (2,))
        assert fit.factor == pytest.approx(1.25, rel=1e-4)


def test_an_output_of_no_factor_is_explained_by_none() -> None:
    call = made_call(11, length=40)
    assert fit_scale(call, ORDERS["textbook"](call).flip(1)) is None


@pytest.mark.parametrize(
    ("seen", "trials", "low", "high"), [(0, 20, 0.0, 0.1391), (20, 20, 0.8609, 1.0), (1, 10, 0.0025, 0.4450)]
)
def test_bounds_on_a_rate_are_clopper_and_pearsons(seen: int, trials: int, low: float, high: float) -> None:
    assert clopper_pearson(seen, trials) == (pytest.approx(low, abs=1e-4), pytest.approx(high, abs=1e-4))
