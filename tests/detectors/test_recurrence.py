"""Divergence of a looped block is told from norms; contraction is not, with its transient growth."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from checkengine.detectors.recurrence import (
    Divergence,
    LoopNorms,
    RecurrenceDetector,
    RecurrenceLimits,
    diverging,
)
from checkengine.detectors.recurrence_hook import watch_recurrence

Step = Callable[[np.ndarray], np.ndarray]


def trace(step: Step, state: np.ndarray, loops: int) -> LoopNorms:
    """`state` has shape (dimension, rows)."""
    hidden, change = [], []
    for _ in range(loops):
        after = step(state).astype(np.float32)
        hidden.append(np.linalg.norm(after, axis=0))
        change.append(np.linalg.norm(after - state, axis=0))
        state = after
    return LoopNorms(np.array(hidden, np.float32), np.array(change, np.float32))


def with_radius(matrix: np.ndarray, radius: float) -> np.ndarray:
    return matrix * (radius / np.abs(np.linalg.eigvals(matrix)).max())


@pytest.mark.parametrize(("radius", "most"), [(1.05, 40), (1.2, 12)])
@pytest.mark.parametrize("size", [4, 16, 64])
def test_a_radius_that_rises_above_one_is_told_soon_after(radius: float, most: int, size: int) -> None:
    """A converged loop whose matrix then grows: by then the state lies along its leading direction."""
    random = np.random.default_rng(size)
    basis = np.linalg.qr(random.standard_normal((size, size)))[0]
    contracting = basis @ np.diag(np.linspace(0.95, 0.1, size)) @ basis.T
    turned = 300

    loop = 0

    def step(state: np.ndarray) -> np.ndarray:
        nonlocal loop
        loop += 1
        return (contracting if loop <= turned else contracting * (radius / 0.95)) @ state

    found = diverging(trace(step, random.standard_normal((size, 8)).astype(np.float32), turned + most))
    assert len(found) == 8
    assert all(turned <= divergence.loop < turned + most for divergence in found)
    assert all(abs(divergence.radius - radius) < 0.04 for divergence in found)


@pytest.mark.parametrize(("radius", "most"), [(1.05, 40), (1.2, 12)])
def test_a_loop_that_diverges_from_the_start_is_told_within_so_many_loops_of_growth(radius: float, most: int) -> None:
    random = np.random.default_rng(0)
    turn = np.linalg.qr(random.standard_normal((32, 32)))[0]
    found = diverging(trace(lambda h: radius * turn @ h, random.standard_normal((32, 8)), most))
    assert len(found) == 8


def contracting(random: np.random.Generator, kind: str, size: int, radius: float) -> np.ndarray:
    noise = random.standard_normal((size, size))
    if kind == "gaussian":
        return with_radius(noise, radius)
    if kind == "symmetric":
        return with_radius(noise + noise.T, radius)
    if kind == "coupled":
        # Growth before decay, up to about fivefold.
        return np.eye(size) * radius + np.diag(np.full(size - 1, 0.4 * (1 - radius)), 1)
    skew = random.uniform(1, 4)
    turn = random.uniform(0.02, 3)
    matrix = np.eye(size) * radius / 2
    matrix[:2, :2] = radius * np.array(
        [[math.cos(turn), -math.sin(turn) * skew], [math.sin(turn) / skew, math.cos(turn)]]
    )
    return matrix


@pytest.mark.parametrize("kind", ["gaussian", "symmetric", "coupled", "rotation"])
def test_contractions_are_not_told_with_their_transient_growth(kind: str) -> None:
    random = np.random.default_rng(3)
    for _ in range(40):
        size, radius = int(random.choice([2, 4, 16, 48])), float(random.uniform(0.5, 0.995))
        matrix, offset = contracting(random, kind, size, radius), random.standard_normal((size, 1))
        start = random.standard_normal((size, 16)) * 10.0 ** random.integers(-3, 4)
        assert diverging(trace(lambda h, a=matrix, b=offset: a @ h + b, start, 150)) == []  # type: ignore[misc]


@pytest.mark.parametrize("order", [1, 2, 3])
def test_polynomial_growth_of_a_residual_stream_is_not_told(order: int) -> None:
    """What a pre-norm block does: each loop adds about as much as the last one."""
    change = (1.0 + np.arange(400, dtype=np.float32)[:, None] / 20) ** order
    assert diverging(LoopNorms(np.cumsum(change, axis=0).astype(np.float32), change)) == []


def test_rounding_around_a_fixed_point_is_not_told() -> None:
    random = np.random.default_rng(0)
    change = (10.0 ** random.uniform(-12, -6, (3000, 4))).astype(np.float32)
    assert diverging(LoopNorms(np.ones((3000, 4), np.float32), change)) == []


def test_a_state_that_is_not_finite_is_told_in_its_loop_once() -> None:
    hidden = np.ones((9, 2), np.float32)
    hidden[4:, 1] = np.inf
    (found,) = diverging(LoopNorms(hidden, np.full((9, 2), 0.1, np.float32)))
    assert (found.row, found.loop, found.loops) == (1, 4, 0)
    assert math.isnan(found.radius)


def test_a_first_change_that_is_not_known_is_no_low_to_grow_from() -> None:
    change = np.full((30, 1), 1.0, np.float32)
    change[0] = np.nan
    assert diverging(LoopNorms(np.ones((30, 1), np.float32), change)) == []


@settings(max_examples=60, deadline=None)
@given(
    logs=st.lists(st.floats(-6, 6), min_size=8, max_size=120),
    scale=st.floats(-8, 8),
    seed=st.integers(0, 1000),
)
def test_scale_and_neighbours_change_nothing_and_growth_below_the_limit_is_never_told(
    logs: list[float], scale: float, seed: int
) -> None:
    change = np.exp(np.array(logs, np.float64))
    hidden = np.full(len(change), 1.0)

    def told(factor: float, companions: int) -> list[tuple[int, int]]:
        others = np.random.default_rng(seed).random((len(change), companions)) + 1
        stacked = np.column_stack((change * factor, *(others.T * factor))).astype(np.float32)
        norms = LoopNorms(np.column_stack([hidden * factor] * (companions + 1)).astype(np.float32), stacked)
        return [(found.loop, found.loops) for found in diverging(norms) if found.row == 0]

    assert told(1.0, 0) == told(1.0, 3)
    assert len(told(1.0, 0)) == len(told(10.0**scale, 0)) <= 1
    lows = np.minimum.accumulate(change)
    if (change / lows).max() < RecurrenceLimits().growth * 0.999:
        assert told(1.0, 0) == []


class Gain(torch.nn.Module):
    """h -> radius * R h, R a rotation."""

    def __init__(self, radius: float, size: int = 16) -> None:
        super().__init__()
        self.turn = torch.linalg.qr(torch.randn(size, size, generator=torch.Generator().manual_seed(0)))[0] * radius

    def forward(self, state: torch.Tensor) -> torch.Tensor:
        return state @ self.turn


class Looped(torch.nn.Module):
    def __init__(self, block: torch.nn.Module, loops: int) -> None:
        super().__init__()
        self.block, self.loops = block, loops

    def forward(self, state: torch.Tensor) -> torch.Tensor:
        for _ in range(self.loops):
            state = self.block(state)
        return state


def test_the_hook_reads_the_norms_of_every_loop_of_a_pass() -> None:
    model = Looped(Gain(1.2), 12)
    readings: list[LoopNorms] = []
    start = torch.randn(2, 3, 16)
    with watch_recurrence(model.block, readings.append, within=model):
        model(start)
        model(start[:1])
    assert [reading.hidden.shape for reading in readings] == [(12, 6), (12, 3)]
    expected = start.reshape(6, 16).norm(dim=-1).numpy() * 1.2
    np.testing.assert_allclose(readings[0].hidden[0], expected, rtol=1e-5)
    np.testing.assert_allclose(readings[0].hidden[11] / readings[0].hidden[10], 1.2, rtol=1e-5)
    assert {found.row for found in diverging(readings[0])} == set(range(6))


def test_without_a_whole_model_a_pass_ends_where_the_input_is_another() -> None:
    block = Gain(1.0)
    readings: list[LoopNorms] = []
    with watch_recurrence(block, readings.append):
        for loops in (5, 3):
            state = torch.randn(4, 16)
            for _ in range(loops):
                state = block(state)
    assert [len(reading.hidden) for reading in readings] == [5, 3]


def test_a_module_that_runs_once_a_pass_is_no_recurrence_and_a_closed_watch_is_gone() -> None:
    readings: list[LoopNorms] = []
    model = Looped(Gain(1.0), 1)
    watch = watch_recurrence(model.block, readings.append, within=model)
    model(torch.randn(2, 16))
    watch.close()
    model.loops = 5
    model(torch.randn(2, 16))
    assert readings == []
    assert not model.block._forward_hooks
    assert not model._forward_pre_hooks


def test_a_pass_that_raises_leaves_nothing_to_the_next() -> None:
    model = Looped(Gain(1.0), 4)
    readings: list[LoopNorms] = []
    with watch_recurrence(model.block, readings.append, within=model):
        with pytest.raises(RuntimeError):
            model(torch.randn(2, 5))
        model(torch.randn(2, 16))
    assert [reading.hidden.shape for reading in readings] == [(4, 2)]


def test_the_hook_changes_no_output_and_no_gradient() -> None:
    model = Looped(Gain(1.01), 6)
    start = torch.randn(2, 16, requires_grad=True)
    bare = model(start)
    with watch_recurrence(model.block, lambda reading: None, within=model):
        watched = model(start)
    assert torch.equal(bare, watched)
    watched.sum().backward()
    assert start.grad is not None


def test_half_precision_states_have_their_own_rounding() -> None:
    model: Any = Looped(torch.nn.Identity(), 4)
    readings: list[LoopNorms] = []
    with watch_recurrence(model.block, readings.append, within=model):
        model(torch.randn(2, 16).bfloat16())
    assert readings[0].epsilon == 2.0**-7
    assert readings[0].change[1:].tolist() == [[0.0, 0.0]] * 3


def test_streaming_loop_by_loop_equals_the_whole_pass() -> None:
    random = np.random.default_rng(5)
    norms = trace(lambda h: 1.1 * h, random.standard_normal((8, 4)), 40)
    detector, streamed = RecurrenceDetector(4), list[Divergence]()
    for hidden, change in zip(norms.hidden, norms.change, strict=True):
        streamed += detector.push(hidden, change)
    assert streamed == diverging(norms)
