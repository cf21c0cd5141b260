"""Layers of the demo model, looped, under watch: a few loops are stable, a gain in the loop is not."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

import checkengine
from checkengine.detectors.recurrence import LoopNorms, diverging
from checkengine.detectors.recurrence_hook import watch_recurrence

DEMO_MODEL = Path.home() / ".cache" / "checkengine" / "models" / "smollm2-135m"
LOOPED = (10, 11, 12)
LOOPS = 16


@pytest.fixture(scope="module")
def demo() -> Iterator[tuple[Any, Any]]:
    if not (DEMO_MODEL / "model.safetensors").exists():
        pytest.skip("the demo model is not on this machine: checkengine models get smollm2-135m")
    from checkengine.engine_shim.engine.load import load_model

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield load_model(DEMO_MODEL)
    torch.set_num_threads(before)


@contextmanager
def looped(model: Any, layers: tuple[int, ...], loops: int) -> Iterator[Any]:
    """The layers in a row `loops` times, with their weights as they are; yields the last of them."""
    decoder, own = model.model, model.model.layers
    first, last = layers[0], layers[-1] + 1
    order = [*own[:first], *([*own[first:last]] * loops), *own[last:]]
    count = model.config.num_hidden_layers
    decoder.layers, model.config.num_hidden_layers = torch.nn.ModuleList(order), len(order)
    try:
        yield own[last - 1]
    finally:
        decoder.layers, model.config.num_hidden_layers = own, count


def prompt_of(tokenizer: Any) -> torch.Tensor:
    return tokenizer("The river rises in the mountains and flows north.", return_tensors="pt").input_ids


def read(model: Any, tokenizer: Any, layers: tuple[int, ...], loops: int) -> LoopNorms:
    readings: list[LoopNorms] = []
    with looped(model, layers, loops) as block, watch_recurrence(block, readings.append, within=model):
        tokens = prompt_of(tokenizer)
        with torch.no_grad():
            model(tokens, use_cache=False)
    (reading,) = readings
    assert reading.hidden.shape == (loops, tokens.shape[1])
    return reading


@pytest.mark.parametrize("layers", [(10, 11), LOOPED])
def test_layers_of_a_trained_model_looped_a_few_times_are_not_told(
    demo: tuple[Any, Any], layers: tuple[int, ...]
) -> None:
    for loops in (2, 4, 6):
        assert diverging(read(*demo, layers, loops)) == []


def test_layers_that_were_never_trained_to_loop_are_told_only_where_their_state_blows_up(
    demo: tuple[Any, Any],
) -> None:
    """Looped sixteen times, some positions grow by a quarter a loop for a while; most only drift."""
    reading = read(*demo, (10, 11), LOOPS)
    told = {found.row for found in diverging(reading)}
    growth = reading.hidden[-1] / reading.hidden[1]
    assert told
    assert min(growth[list(told)]) > 5
    assert len(told) < len(growth) / 2


@pytest.mark.parametrize(("gain", "most"), [(1.2, 12)])
def test_a_gain_in_the_loop_is_told_and_the_guard_names_the_sequence(
    demo: tuple[Any, Any], gain: float, most: int
) -> None:
    model, tokenizer = demo
    with looped(model, LOOPED, LOOPS) as block, checkengine.watch(model, tokenizer) as watch:
        amplify = block.register_forward_hook(lambda module, inputs, output: output * gain)
        try:
            with watch.shim.watch_loop(block, model):
                model.generate(prompt_of(tokenizer), do_sample=False, max_new_tokens=1, use_cache=False)
        finally:
            amplify.remove()
        (found,) = [event.finding for event in watch.findings() if event.finding.kind == "recurrence.divergence"]
    assert found.sequence == "generate-0/0"
    assert found.evidence["loop"] <= most + 2
    assert found.evidence["radius"] == pytest.approx(gain, abs=0.1)
