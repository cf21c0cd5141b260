"""How soon a looped block that blows up is told, that contractions are not, and what it costs."""

from __future__ import annotations

import math
import statistics
import time
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from checkengine.benchmarks.detectors import DetectorOptions
from checkengine.benchmarks.figure import figure
from checkengine.detectors.recurrence import LoopNorms, RecurrenceDetector, diverging
from checkengine.detectors.recurrence_hook import watch_recurrence

ROWS = 16
HEALTHY_LOOPS = 80
LOOPS = 100
MUCH_GROWTH = 6.0


def figures(options: DetectorOptions) -> list[dict[str, Any]]:
    runs = 10 if options.quick else 60
    return [
        *(delay_figure(radius, most, runs) for radius, most in ((1.05, 40), (1.2, 12))),
        *false_figures(100_000 if options.quick else 1_100_000),
        cost_figure(5 if options.quick else 20),
        hook_figure(5 if options.quick else 20),
    ]


def delay_figure(radius: float, most: int, runs: int) -> dict[str, Any]:
    """A loop with an even spectrum down from 0.95 in random directions has run `HEALTHY_LOOPS` times when its matrix
    grows to the radius; 95th percentile of all rows, with 1 % noise on the norms."""
    random = np.random.default_rng(0)
    delays = [delay for _ in range(runs) for delay in delays_of(random, radius)]
    name = f"recurrence.delay, radius {radius}"
    return figure(name, float(np.percentile(delays, 95)), f"loops, p95 of {len(delays)} rows", most)


def delays_of(random: np.random.Generator, radius: float, most: int = 200) -> list[int]:
    size = int(random.choice([8, 32, 128]))
    basis = np.linalg.qr(random.standard_normal((size, size)))[0]
    matrix = basis @ np.diag(np.linspace(0.95, 0.1, size)) @ basis.T
    state = random.standard_normal((size, ROWS))
    detector, delays = RecurrenceDetector(ROWS), dict.fromkeys(range(ROWS), most)
    for loop in range(HEALTHY_LOOPS + most):
        after = (matrix if loop < HEALTHY_LOOPS else matrix * (radius / 0.95)) @ state
        noise = 1 + 0.01 * random.standard_normal(ROWS)
        for found in detector.push(norm(after), (norm(after - state) * noise).astype(np.float32)):
            delays[found.row] = loop - HEALTHY_LOOPS + 1
        state = after
    return list(delays.values())


def false_figures(loops: int) -> list[dict[str, Any]]:
    """Spectral radius 0.5 to 0.995: Gaussian, symmetric, coupled (Jordan-like, by up to twice the gap to 1), rotations
    skewed up to twelvefold, tanh of each; with and without input, from states of scale 1e-3 to 1e3. Rows whose change
    grows more than sixfold before it decays are counted apart: such growth can look geometric while it lasts."""
    random = np.random.default_rng(1)
    told, counted = [0, 0], [0, 0]
    while sum(counted) * LOOPS < loops:
        norms = contractive(random)
        # Above the rounding of the state: a converged loop only rattles.
        change = np.maximum(norms.change, 1e-5 * norms.hidden)
        much = (change / np.minimum.accumulate(change, axis=0)).max(axis=0) > MUCH_GROWTH
        rows = {found.row for found in diverging(norms)}
        for kind in (0, 1):
            counted[kind] += int((much == kind).sum())
            told[kind] += sum(bool(much[row]) == bool(kind) for row in rows)
    unit = "rows told in {} contractive loops"
    return [
        figure(f"recurrence.false, growth up to {MUCH_GROWTH:g}x", told[0], unit.format(counted[0] * LOOPS), 0),
        figure(f"recurrence.false, growth over {MUCH_GROWTH:g}x", told[1], unit.format(counted[1] * LOOPS), 0),
    ]


def contractive(random: np.random.Generator) -> LoopNorms:
    size, radius = int(random.choice([2, 4, 16, 64])), float(random.uniform(0.5, 0.995))
    matrix = [gaussian, symmetric, coupled, rotation][random.integers(4)](random, size, radius)
    offset = random.standard_normal((size, 1)) * random.integers(2)
    bent = bool(random.integers(2))
    state = random.standard_normal((size, ROWS)) * 10.0 ** random.integers(-3, 4)
    hidden, change = np.empty((LOOPS, ROWS), np.float32), np.empty((LOOPS, ROWS), np.float32)
    for loop in range(LOOPS):
        after = matrix @ (np.tanh(state) if bent else state) + offset
        hidden[loop], change[loop] = norm(after), norm(after - state)
        state = after
    return LoopNorms(hidden, change)


def gaussian(random: np.random.Generator, size: int, radius: float) -> NDArray[np.float64]:
    matrix = random.standard_normal((size, size))
    largest = float(np.abs(np.linalg.eigvals(matrix)).max())
    return matrix * (radius / largest)


def symmetric(random: np.random.Generator, size: int, radius: float) -> NDArray[np.float64]:
    matrix = random.standard_normal((size, size))
    matrix = matrix + matrix.T
    largest = float(np.abs(np.linalg.eigvalsh(matrix)).max())
    return matrix * (radius / largest)


def coupled(random: np.random.Generator, size: int, radius: float) -> NDArray[np.float64]:
    return np.eye(size) * radius + np.diag(np.full(size - 1, random.uniform(0, 2) * (1 - radius)), 1)


def rotation(random: np.random.Generator, size: int, radius: float) -> NDArray[np.float64]:
    turn, skew = random.uniform(0.02, 3), random.uniform(1, 12)
    matrix = np.eye(size) * (radius / 2)
    matrix[:2, :2] = radius * np.array(
        [[math.cos(turn), -math.sin(turn) * skew], [math.sin(turn) / skew, math.cos(turn)]]
    )
    return matrix


def norm(states: NDArray[np.float64]) -> NDArray[np.float32]:
    lengths: NDArray[np.float32] = np.linalg.norm(states, axis=0).astype(np.float32)
    return lengths


def cost_figure(repeats: int) -> dict[str, Any]:
    """A pass of 32 loops over 256 rows."""
    random = np.random.default_rng(2)
    change = np.cumprod(random.uniform(0.9, 1.05, (32, 256)), axis=0).astype(np.float32)
    norms, spent = LoopNorms(np.ones_like(change), change), []
    for _ in range(repeats):
        before = time.process_time_ns()
        diverging(norms)
        spent.append(time.process_time_ns() - before)
    return figure("recurrence.cost, 32 loops, 256 rows", statistics.median(spent) / 256, "ns a row", 10_000)


class _Block(torch.nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.up, self.down = torch.nn.Linear(size, 4 * size), torch.nn.Linear(4 * size, size)

    def forward(self, state: torch.Tensor) -> torch.Tensor:
        change: torch.Tensor = self.down(torch.relu(self.up(state)))
        return 0.5 * state + 0.1 * change


class _Looped(torch.nn.Module):
    def __init__(self, block: torch.nn.Module) -> None:
        super().__init__()
        self.block = block

    def forward(self, state: torch.Tensor) -> torch.Tensor:
        for _ in range(16):
            state = self.block(state)
        return state


def hook_figure(pairs: int) -> dict[str, Any]:
    """Of a small block: dimension 512, a feed-forward of 2048, 16 rows, one thread; on and off in turns."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    model, state = _Looped(_Block(512)), torch.randn(16, 512)
    ratios = []
    with torch.no_grad():
        model(state)
        for _ in range(pairs):
            bare = seconds(model, state)
            with watch_recurrence(model.block, lambda norms: None, within=model):
                ratios.append(seconds(model, state) / bare)
    torch.set_num_threads(threads)
    return figure("recurrence.hook", 100 * (statistics.median(ratios) - 1), "% of a looped pass", 5)


def seconds(model: torch.nn.Module, state: torch.Tensor) -> float:
    before = time.process_time()
    for _ in range(4):
        model(state)
    return time.process_time() - before
