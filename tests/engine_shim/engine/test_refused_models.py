"""Models with state outside attention KV are refused at load, by name and reason."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers

from checkengine.engine_shim.engine.engine import Engine
from checkengine.engine_shim.engine.probe import UnsupportedModel, prepare

SIZES: dict[str, Any] = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}

STATEFUL: dict[str, tuple[Callable[[], Any], str]] = {
    "qwen3_next": (
        lambda: transformers.Qwen3NextConfig(
            **SIZES, head_dim=8, moe_intermediate_size=16, num_experts=4, shared_expert_intermediate_size=16,
            linear_num_key_heads=2, linear_num_value_heads=2, linear_key_head_dim=8, linear_value_head_dim=8,
        ),
        "linear_attention",
    ),
    "mamba": (lambda: transformers.MambaConfig(vocab_size=64, hidden_size=32, num_hidden_layers=2), "linear_attention"),
    "lfm2": (
        lambda: transformers.Lfm2Config(**SIZES, layer_types=["conv", "full_attention"] * 2), "conv",
    ),
    "llama4 chunks": (
        lambda: transformers.Llama4TextConfig(**SIZES, head_dim=8, num_local_experts=2, attention_chunk_size=8),
        "chunked_attention",
    ),
    "bloom": (
        lambda: transformers.BloomConfig(vocab_size=64, hidden_size=32, n_layer=2, n_head=4),
        "does not take attention from outside",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(STATEFUL))
def test_a_model_with_other_state_is_refused_with_its_reason(name: str) -> None:
    config, reason = STATEFUL[name]
    model = transformers.AutoModelForCausalLM.from_config(config()).eval()
    with pytest.raises(UnsupportedModel, match=reason) as refusal:
        Engine(model, None)
    assert type(model).__name__ in str(refusal.value)


class TokenShift(torch.nn.Module):
    """Mixes each token with the one before, as recurrent layers do; no configuration tells of it."""

    def __init__(self, inner: torch.nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        mixed: torch.Tensor = self.inner(hidden + 0.5 * torch.roll(hidden, 1, dims=1))
        return mixed


def test_hidden_state_between_tokens_is_found_by_the_models_own_logits(tiny_model: Callable[..., Any]) -> None:
    model = tiny_model("llama")
    model.model.layers[1].mlp = TokenShift(model.model.layers[1].mlp)
    with pytest.raises(UnsupportedModel, match="logits differ"):
        prepare(model)


def test_a_layer_without_attention_is_found_by_counting(tiny_model: Callable[..., Any]) -> None:
    model = tiny_model("llama")
    model.model.layers[1].self_attn.forward = lambda hidden_states, **_: (hidden_states, None)
    with pytest.raises(UnsupportedModel, match="2 of its 3 layers"):
        prepare(model)


def test_a_refused_model_keeps_its_attention(tiny_model: Callable[..., Any]) -> None:
    model = tiny_model("llama")
    before = model.config._attn_implementation
    model.model.layers[1].mlp = TokenShift(model.model.layers[1].mlp)
    with pytest.raises(UnsupportedModel):
        prepare(model)
    assert model.config._attn_implementation == before


def test_an_engines_model_run_outside_of_it_says_what_to_do(tiny_model: Callable[..., Any]) -> None:
    model = tiny_model("llama")
    prepare(model)
    with pytest.raises(RuntimeError, match="set_attn_implementation"):
        model(torch.tensor([[1, 2]]))
