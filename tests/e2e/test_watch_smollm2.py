"""checkengine.watch around the demo model's own generate()."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import checkengine
from checkengine.config import Settings
from checkengine.guards.settings import GuardsSettings

DEMO_MODEL = Path.home() / ".cache" / "checkengine" / "models" / "smollm2-135m"
TOKENS = 24
QUESTIONS = (
    "Name three rivers of Europe.",
    "Write a short note to a colleague who is moving to another city, and wish her well there.",
    "What is the sum of 17 and 25?",
)


@pytest.fixture(scope="module")
def demo() -> Iterator[tuple[Any, Any]]:
    if not (DEMO_MODEL / "model.safetensors").exists():
        pytest.skip("the demo model is not on this machine: checkengine models get smollm2-135m")
    from checkengine.engine_shim.engine.load import load_model

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    model, tokenizer = load_model(DEMO_MODEL)
    tokenizer.padding_side = "left"
    yield model, tokenizer
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def inputs(demo: tuple[Any, Any]) -> Any:
    _, tokenizer = demo
    chats = [[{"role": "user", "content": question}] for question in QUESTIONS]
    return tokenizer.apply_chat_template(
        chats, add_generation_prompt=True, padding=True, return_tensors="pt", return_dict=True
    )


@pytest.fixture(scope="module")
def clean(demo: tuple[Any, Any], inputs: Any) -> torch.Tensor:
    result: torch.Tensor = demo[0].generate(**inputs, do_sample=False, max_new_tokens=TOKENS)
    return result


def test_a_clean_batch_is_the_same_under_watch_and_without_a_finding(
    demo: tuple[Any, Any], inputs: Any, clean: torch.Tensor
) -> None:
    model, tokenizer = demo
    with checkengine.watch(model, tokenizer) as watch:
        assert torch.equal(model.generate(**inputs, do_sample=False, max_new_tokens=TOKENS), clean)
    assert watch.findings() == []


def test_nan_from_one_layer_stops_that_row_only(demo: tuple[Any, Any], inputs: Any, clean: torch.Tensor) -> None:
    model, tokenizer = demo
    width, steps = inputs["input_ids"].shape[1], iter(range(1000))

    def kernel_writes_nan(module: Any, arguments: Any, output: Any) -> None:
        if next(steps) == 6:
            output[0][1, -1, :64] = float("nan")

    hook = model.model.layers[12].self_attn.register_forward_hook(kernel_writes_nan)
    try:
        with checkengine.watch(model, tokenizer) as watch:
            guarded = model.generate(**inputs, do_sample=False, max_new_tokens=TOKENS)
    finally:
        hook.remove()
    assert torch.equal(guarded[[0, 2]], clean[[0, 2]])
    assert torch.equal(guarded[1, : width + 6], clean[1, : width + 6])
    assert set(guarded[1, width + 6 :].tolist()) == {tokenizer.pad_token_id}
    assert [(event.finding.kind, event.finding.token) for event in watch.findings()] == [("logits.nonfinite", 6)]


class WithoutItsLastWord:
    """The demo model's vocabulary has no padded rows in the head: here the last id is one."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tokenizer, name)

    def get_vocab(self) -> dict[str, int]:
        names: dict[str, int] = self._tokenizer.get_vocab()
        return {name: token for name, token in names.items() if token < len(names) - 1}


def test_a_loop_and_an_impossible_token_are_each_one_incident(demo: tuple[Any, Any], inputs: Any) -> None:
    model, tokenizer = demo
    phrase = tokenizer(" over and over again we go", add_special_tokens=False)["input_ids"]
    rows = model.get_output_embeddings().weight.shape[0]
    steps = iter(range(1000))

    def plant(module: Any, arguments: Any, output: Any) -> None:
        step = next(steps)
        output.logits[0, -1, phrase[step % len(phrase)]] = 1e4
        if step == 3:
            output.logits[2, -1, rows - 1] = 1e4

    hook = model.register_forward_hook(plant)
    stopping = Settings(guards=GuardsSettings.model_validate({"repetition": {"action": "stop"}}))
    try:
        with checkengine.watch(model, WithoutItsLastWord(tokenizer), stopping) as watch:
            guarded = model.generate(**inputs, do_sample=False, max_new_tokens=56)
    finally:
        hook.remove()
    kinds = {incident.kind: incident.sequence_sample for incident in watch.incidents()}
    assert kinds == {"repetition.loop": ["generate-0/0"], "token.impossible": ["generate-0/2"]}
    width = inputs["input_ids"].shape[1]
    assert guarded[0, width : width + len(phrase)].tolist() == phrase
    assert set(guarded[0, width + len(phrase) :].tolist()) == {tokenizer.pad_token_id}
