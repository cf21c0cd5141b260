"""Tiny random models: for the self-test, benchmarks and tests, where a real one would add minutes and no proof."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

WORDS = 160
"""Tokens of the vocabulary."""
WINDOW = 12
"""Tokens of the sliding window, in the families that have one."""

_SIZES: Mapping[str, Any] = {
    "vocab_size": WORDS,
    "hidden_size": 48,
    "intermediate_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "initializer_range": 0.4,
    "eos_token_id": None,
    "bos_token_id": None,
}


def tiny_model(family: str = "llama", *, seed: int = 0, dtype: str = "float32", layers: int = 3) -> Any:
    """Four query heads on two KV heads, in evaluation mode. `family`: llama, mistral (sliding windows),
    gemma2 (soft caps and sliding windows) or gpt_oss (attention sinks, a mixture of experts)."""
    import torch
    from transformers import AutoModelForCausalLM

    torch.manual_seed(seed)
    return AutoModelForCausalLM.from_config(_configurations(layers)[family](), dtype=getattr(torch, dtype)).eval()


def _configurations(layers: int) -> dict[str, Callable[[], Any]]:
    import transformers

    sizes = {**_SIZES, "num_hidden_layers": layers}
    return {
        "llama": lambda: transformers.LlamaConfig(**sizes),
        "mistral": lambda: transformers.MistralConfig(**sizes, sliding_window=WINDOW),
        "gemma2": lambda: transformers.Gemma2Config(
            **sizes, head_dim=12, sliding_window=WINDOW, query_pre_attn_scalar=12, attn_logit_softcapping=5.0
        ),
        "gpt_oss": lambda: transformers.GptOssConfig(
            **sizes,
            head_dim=12,
            num_local_experts=4,
            num_experts_per_tok=2,
            sliding_window=WINDOW,
            rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
        ),
    }


def tiny_tokenizer() -> Any:
    """A word for every id of the tiny model."""
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    words = models.WordLevel({f"w{token}": token for token in range(WORDS)}, unk_token="w0")
    return PreTrainedTokenizerFast(tokenizer_object=Tokenizer(words))
