"""Tiny random models of several families, and the demo model where it is on the machine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

VOCABULARY = 160

_SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "initializer_range": 0.25,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}

FAMILIES: dict[str, Callable[[], Any]] = {
    "llama": lambda: transformers.LlamaConfig(**_SIZES),
    "qwen2": lambda: transformers.Qwen2Config(**_SIZES),
    "qwen3": lambda: transformers.Qwen3Config(**_SIZES, head_dim=16),
    "mistral": lambda: transformers.MistralConfig(**_SIZES, sliding_window=24),
    "gemma2": lambda: transformers.Gemma2Config(
        **_SIZES, head_dim=16, sliding_window=24, query_pre_attn_scalar=16, attn_logit_softcapping=20.0
    ),
    "gemma3": lambda: transformers.Gemma3TextConfig(**_SIZES, head_dim=16, sliding_window=24, query_pre_attn_scalar=16),
    "mixtral": lambda: transformers.MixtralConfig(**_SIZES, num_local_experts=4),
    "gpt_oss": lambda: transformers.GptOssConfig(
        **_SIZES,
        head_dim=16,
        num_local_experts=4,
        num_experts_per_tok=2,
        sliding_window=24,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
    ),
    "deepseek_v3": lambda: transformers.DeepseekV3Config(
        **{**_SIZES, "num_key_value_heads": 4},
        moe_intermediate_size=32,
        n_routed_experts=4,
        num_experts_per_tok=2,
        n_group=1,
        topk_group=1,
        kv_lora_rank=16,
        q_lora_rank=16,
        qk_rope_head_dim=8,
        qk_nope_head_dim=16,
        v_head_dim=12,
        first_k_dense_replace=1,
    ),
}

DEMO_MODEL = Path.home() / ".cache" / "checkengine" / "models" / "smollm2-135m"


def make_model(family: str, dtype: torch.dtype = torch.float32) -> Any:
    torch.manual_seed(7)
    return transformers.AutoModelForCausalLM.from_config(FAMILIES[family](), dtype=dtype).eval()


@cache
def _shared(family: str) -> Any:
    return make_model(family)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def tiny_llama() -> Any:
    """Shared between tests; weights are not changed."""
    return _shared("llama")


@pytest.fixture
def tiny_model() -> Callable[..., Any]:
    """Makes a model of a family."""
    return make_model


@pytest.fixture(params=sorted(FAMILIES))
def family_model(request: pytest.FixtureRequest) -> Any:
    return _shared(request.param)


@pytest.fixture(scope="session")
def demo_model() -> tuple[Any, Any]:
    """SmolLM2-135M-Instruct and its tokenizer."""
    if not (DEMO_MODEL / "model.safetensors").exists():
        pytest.skip("the demo model is not on this machine: checkengine models get smollm2-135m")
    from checkengine.engine_shim.engine.load import load_model

    return load_model(DEMO_MODEL)
