"""Whatever the engine does with batches, blocks and caches, it says what transformers says."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

from checkengine.engine_shim.engine.engine import Engine
from checkengine.engine_shim.engine.request import GenerationRequest, SamplingParameters
from checkengine.engine_shim.settings import EngineSettings

MARGIN = 1e-3


def run(engine: Engine, prompts: Sequence[list[int]], max_tokens: int, wave: int = 0) -> list[list[int]]:
    """Greedy outputs of all prompts; a new request joins at every step, so that they overlap at all stages."""
    outputs: dict[str, list[int]] = {f"{wave}-{i}": [] for i in range(len(prompts))}
    queue = list(zip(outputs, prompts, strict=True))
    while queue or engine.has_work:
        if queue:
            name, prompt = queue.pop(0)
            sampling = SamplingParameters(temperature=0, max_tokens=max_tokens)
            engine.submit(GenerationRequest(name, prompt, sampling))
        for output in engine.step():
            outputs[output.name] += output.tokens
    return list(outputs.values())


def generate(
    model: Any, prompts: Sequence[list[int]], max_tokens: int, batch: int = 1
) -> list[tuple[list[int], list[float]]]:
    """transformers' own greedy tokens and their top-2 margins; longer batches are padded on the left."""
    model.set_attn_implementation("eager")
    results = []
    for first in range(0, len(prompts), batch):
        rows = prompts[first : first + batch]
        width = max(map(len, rows))
        out = model.generate(
            torch.tensor([[0] * (width - len(row)) + row for row in rows]),
            attention_mask=torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in rows]),
            max_new_tokens=max_tokens,
            do_sample=False,
            output_logits=True,
            return_dict_in_generate=True,
            pad_token_id=0,
        )
        top = torch.stack(out.logits).topk(2).values
        margins = (top[..., 0] - top[..., 1]).T.tolist()
        tokens = [_until_stop(row, model) for row in out.sequences[:, width:].tolist()]
        results += list(zip(tokens, margins, strict=True))
    return results


def _until_stop(tokens: list[int], model: Any) -> list[int]:
    stop = model.generation_config.eos_token_id
    return tokens[: tokens.index(stop) + 1] if stop in tokens else tokens


def assert_equal(ours: list[list[int]], theirs: list[tuple[list[int], list[float]]]) -> None:
    """Equal tokens, or a first difference at a near tie; near ties are rare."""
    ties = 0
    for got, (wanted, margins) in zip(ours, theirs, strict=True):
        if got == wanted:
            continue
        first = next(i for i in range(len(wanted)) if i >= len(got) or got[i] != wanted[i])
        assert margins[first] < MARGIN, f"token {first}: {got[first : first + 3]} for {wanted[first : first + 3]}"
        ties += 1
    assert ties <= 1 + len(ours) // 10


def mixed_prompts(vocabulary: int, count: int, seed: int = 3) -> list[list[int]]:
    """Lengths 1 … 120, a third of them with a common beginning of two blocks."""
    random = np.random.default_rng(seed)
    common = random.integers(3, vocabulary, 40).tolist()
    own = [random.integers(3, vocabulary, int(random.integers(1, 80))).tolist() for _ in range(count)]
    return [common + tokens if i % 3 == 0 else tokens for i, tokens in enumerate(own)]


def test_every_family_says_what_transformers_says_under_chunks_prefix_hits_and_preemption(family_model: Any) -> None:
    """Ten requests on memory for about four."""
    prompts = mixed_prompts(160, 10)
    theirs = generate(family_model, prompts, 24)
    engine = Engine(family_model, None, EngineSettings(block_size=8, blocks=34, tokens_per_step=24, threads=1))
    first = run(engine, prompts, 24)
    second = run(engine, prompts, 24, wave=1)
    assert engine.stats.preemptions > 0
    assert engine.stats.prefix_hit_tokens > 0
    assert engine.stats.free_blocks == engine.stats.blocks
    assert_equal(first, theirs)
    assert_equal(second, theirs)


def test_the_reference_kernel_says_the_same(tiny_llama: Any) -> None:
    prompts = mixed_prompts(160, 6)
    settings = EngineSettings(block_size=8, blocks=60, tokens_per_step=24, threads=1, kernel="reference")
    assert_equal(run(Engine(tiny_llama, None, settings), prompts, 16), generate(tiny_llama, prompts, 16))


PROMPTS = (
    "What is the capital of France?",
    "Write a haiku about the sea.",
    "Explain photosynthesis to a child.",
    "List five fruits and one vegetable.",
    "Translate 'good morning' into Spanish.",
    "What is 17 times 23? Think step by step.",
    "Summarise the plot of Romeo and Juliet in three sentences.",
    "Give me a recipe for pancakes.",
)
SYSTEM = "You are a helpful assistant who answers briefly, in plain English, and never makes up facts. " * 2


@pytest.mark.slow
def test_the_demo_model_says_what_transformers_says_for_32_concurrent_chats(demo_model: tuple[Any, Any]) -> None:
    """Mixed lengths, half of them with a common system prompt, chunks of 96 tokens, memory that runs short."""
    model, tokenizer = demo_model
    prompts = []
    for i in range(32):
        chat = [{"role": "user", "content": PROMPTS[i % 8] + " And why?" * (i // 8)}]
        if i % 2:
            chat.insert(0, {"role": "system", "content": SYSTEM})
        prompts.append(tokenizer.apply_chat_template(chat, add_generation_prompt=True)["input_ids"])
    engine = Engine(model, tokenizer, EngineSettings(block_size=8, blocks=40, tokens_per_step=96, threads=1))
    ours = run(engine, prompts, 20)
    assert engine.stats.preemptions > 0
    assert engine.stats.prefix_hit_tokens > 0
    assert_equal(ours, generate(model, prompts, 20, batch=16))
