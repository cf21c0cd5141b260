"""transformers' continuous batching under watch, on a tiny random model in its own `generate_batch`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import checkengine
from checkengine.engine_shim.transformers import UnwatchableError
from checkengine.tiny import tiny_model, tiny_tokenizer

PROMPTS = [[3, 4, 5, 6], [7, 8, 9], [10, 11, 12, 13, 14]]
TOKENS = 12


@pytest.fixture
def model() -> Any:
    made = tiny_model()
    made.generation_config.eos_token_id = 1
    made.generation_config.pad_token_id = 0
    made.generation_config.do_sample = False
    return made


@pytest.fixture
def watch(model: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.chdir(tmp_path)
    with checkengine.watch(model, tiny_tokenizer()) as made:
        yield made


def batch(model: Any, **more: Any) -> list[Any]:
    from transformers import ContinuousBatchingConfig

    settings = ContinuousBatchingConfig(page_size=16, num_blocks=32, max_batch_tokens=8, use_cuda_graph=False)
    answers = model.generate_batch(PROMPTS, continuous_batching_config=settings, max_new_tokens=TOKENS, **more)
    return list(answers.values())


class NanAt:
    """Poisons the logits of the row whose input token is this one, from its n-th time on."""

    def __init__(self, model: Any, token: int, after: int) -> None:
        self.left = after
        self.token = token
        self.hook = model.register_forward_hook(self, with_kwargs=True)

    def __call__(self, module: Any, inputs: Any, keywords: dict[str, Any], output: Any) -> None:
        if "logits_indices" not in keywords:
            return
        tokens = keywords["input_ids"][0, keywords["logits_indices"]].tolist()
        for row, token in enumerate(tokens):
            if token == self.token:
                self.left -= 1
                if self.left < 0:
                    output.logits[0, row] = torch.nan


def poison(model: Any, clean: list[Any], victim: int, place: int) -> None:
    """Before the watch's hook, which then sees what the sampler sees."""
    tokens = clean[victim].generated_tokens
    found = NanAt(model, tokens[place - 1], tokens[: place - 1].count(tokens[place - 1]))
    model._forward_hooks.move_to_end(found.hook.id, last=False)


def test_healthy_batches_are_left_alone(model: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    bare = [answer.generated_tokens for answer in batch(model)]
    with checkengine.watch(model, tiny_tokenizer()) as watch:
        assert [answer.generated_tokens for answer in batch(model)] == bare
        assert watch.findings() == []
    assert [answer.generated_tokens for answer in batch(model)] == bare
    assert "init_continuous_batching" not in vars(model)


def test_a_bad_row_ends_its_request_and_no_other_one(model: Any, watch: Any) -> None:
    clean = batch(model)
    unlike = {token for number in (1, 2) for token in clean[number].generated_tokens}
    place = next(
        place for place in range(1, TOKENS) if clean[0].generated_tokens[place - 1] not in unlike | set(PROMPTS[0])
    )
    poison(model, clean, 0, place)
    struck = batch(model)
    assert [finding.finding.kind for finding in watch.findings()][:1] == ["logits.nonfinite"]
    assert struck[0].generated_tokens == clean[0].generated_tokens[:place]
    assert struck[0].error is None
    assert [answer.generated_tokens for answer in struck[1:]] == [answer.generated_tokens for answer in clean[1:]]


def test_a_guard_that_breaks_costs_no_token(model: Any, watch: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    clean = [answer.generated_tokens for answer in batch(model)]

    def broken(record: Any) -> Any:
        raise RuntimeError("broken")

    monkeypatch.setattr(watch.shim, "step", broken)
    assert [answer.generated_tokens for answer in batch(model)] == clean


def test_a_batch_that_cannot_be_followed_is_refused_with_what_to_do(model: Any, watch: Any) -> None:
    from transformers import CompileConfig, ContinuousBatchingConfig

    settings = ContinuousBatchingConfig(varlen_compile_config=CompileConfig())
    with pytest.raises(UnwatchableError, match="switch them off in ContinuousBatchingConfig"):
        model.init_continuous_batching(continuous_batching_config=settings)


def test_sequences_are_forgotten_with_their_requests(model: Any, watch: Any) -> None:
    batch(model)
    assert watch.shim._live == {}
