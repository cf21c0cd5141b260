"""Is every layer's attention given what the model says: right positions, right keys and values in the right slots?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from checkengine.replay.judge.calls import rows_of
from checkengine.replay.judge.fault_class import FaultClass
from checkengine.replay.judge.trial import Bench
from checkengine.replay.judge.verdict import TestResult
from checkengine.replay.op_call import InputExecutor, LayerInputs, OpCall, takes_calls
from checkengine.replay.record import Ints
from checkengine.replay.window import WindowStep

MOST_STEPS = 8
ROTATED = 1e-3
"""A rotation leaves the length of each pair as it was, up to this, and turns some pair by more."""


@dataclass(slots=True)
class WrongInput:
    step: WindowStep
    row: int
    layer: int
    what: str
    """ "query", "key" or "value"."""
    token: int
    heads: tuple[int, ...]
    fault_class: FaultClass
    words: str
    slot: int | None
    """Where the wrong key or value stands."""


@dataclass(slots=True)
class InputsOutcome:
    steps: int
    layers: int = 0
    wrong: WrongInput | None = None

    def result(self) -> TestResult:
        numbers = {"steps": self.steps, "layers": self.layers}
        if self.wrong is None:
            detail = f"queries, keys and values of {self.steps} steps are what each layer's hidden state gives"
            return TestResult("inputs", True, detail, numbers)
        found = self.wrong
        detail = f"layer {found.layer}, step {found.step.number}: {found.what} is not what the hidden state gives"
        return TestResult("inputs", False, f"{detail}: {found.words}", numbers)


def try_inputs(bench: Bench) -> InputsOutcome | None:
    """None where the executor cannot recompute inputs."""
    executor = bench.executor
    if not takes_calls(executor) or not isinstance(executor, InputExecutor):
        return None
    chosen = {step.number for step in chosen_steps(bench.window.steps)}
    outcome = InputsOutcome(len(chosen))
    for step, playback in bench.chosen(chosen):
        for row in rows_of(step):
            expected = executor.inputs(step.replay, playback.memory, row=row)
            calls = executor.calls(step.replay, playback.memory, rows=[row])
            outcome.layers += len(expected)
            for right, (call, _) in zip(expected, calls, strict=True):
                if (wrong := compare(step, row, call, right)) is not None:
                    outcome.wrong = wrong
                    return outcome
    return outcome


def chosen_steps(steps: Sequence[WindowStep]) -> list[WindowStep]:
    """Prefill chunks first, where positions and slots are decided for many tokens; then the ends of the window."""
    present = [step for step in steps if step.involved.any()]
    chunks = [step for step in present if step.replay.record.query_lengths[step.involved].max() > 1][: MOST_STEPS // 2]
    numbers = {step.number for step in chunks}
    others = [step for step in present if step.number not in numbers]
    most = MOST_STEPS - len(chunks)
    if len(others) > most:
        others = [others[place] for place in np.unique(np.linspace(0, len(others) - 1, most).round().astype(int))]
    return sorted([*chunks, *others], key=lambda step: step.number)


def compare(step: WindowStep, row: int, call: OpCall, right: LayerInputs) -> WrongInput | None:
    slots = own_slots(call)
    rows = torch.from_numpy(np.searchsorted(call.blocks, slots // call.block_size).astype(np.int64))
    offsets = torch.from_numpy((slots % call.block_size).astype(np.int64))
    pairs = {
        "query": (call.query, right.query),
        "key": (call.keys[rows, offsets], right.keys),
        "value": (call.values[rows, offsets], right.values),
    }
    for what, (found, wanted) in pairs.items():
        wanted = wanted.to(found.dtype)
        different = ~((found == wanted) | (found.isnan() & wanted.isnan()))
        if different.any():
            token = int(different.flatten(1).any(1).nonzero()[0])
            heads = tuple(different.any(-1).any(0).nonzero().flatten().tolist())
            kind, words = kind_of(what, found[token], wanted[token])
            slot = None if what == "query" else int(slots[token])
            return WrongInput(step, row, call.layer, what, token, heads, kind, words, slot)
    return None


def own_slots(call: OpCall) -> Ints:
    """Of the call's own tokens."""
    positions = np.arange(call.length - len(call.query), call.length)
    return (call.table[positions // call.block_size] * call.block_size + positions % call.block_size).astype(np.int32)


def kind_of(what: str, found: torch.Tensor, wanted: torch.Tensor) -> tuple[FaultClass, str]:
    """Of one token's heads, shape (heads, dim)."""
    found, wanted = found.double(), wanted.double()
    if what != "value" and is_rotation(found, wanted):
        return FaultClass.POSITION, "it is rotated as for another position"
    factor = float((found * wanted).sum() / wanted.square().sum().clamp_min(1e-300))
    if abs(factor - 1) > ROTATED and bool(torch.allclose(found, factor * wanted, rtol=1e-2, atol=1e-6)):
        return FaultClass.SCALE, f"it is {factor:.6g} times what it should be"
    return FaultClass.WRITE, "other numbers stand there" if what != "query" else "other numbers were given"


def is_rotation(found: torch.Tensor, wanted: torch.Tensor) -> bool:
    """Do pairs of dimensions keep their length? Pairs are halves of the head, or neighbours; some dimensions may not be
    rotated at all."""
    half = found.shape[-1] // 2
    splits = (
        lambda x: torch.stack((x[..., :half], x[..., half : 2 * half]), -1),
        lambda x: x[..., : 2 * half].reshape(*x.shape[:-1], half, 2),
    )
    for split in splits:
        before, after = split(wanted).norm(dim=-1), split(found).norm(dim=-1)
        if bool(torch.allclose(before, after, rtol=ROTATED, atol=ROTATED * float(before.max()))):
            return True
    return False
