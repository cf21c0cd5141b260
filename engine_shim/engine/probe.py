"""What a model's attention looks like, learnt by running it; refuses models that the engine would run wrong.

The engine keeps attention KV and nothing else. A layer with other state (linear attention, state space, convolution,
recurrence) would run without an error and silently wrong on packed chunks, so besides what a configuration says every
model has to prove itself on a short prompt.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from checkengine.engine_shim.engine.attention import IMPLEMENTATION, attending
from checkengine.engine_shim.engine.batch import PackedBatch
from checkengine.engine_shim.engine.kv_memory import KVLayout, KVMemory, layout_of
from checkengine.engine_shim.engine.runner import ModelRunner
from checkengine.engine_shim.engine.weights import lay_out_for_small_batches

KNOWN_LAYERS = {"full_attention", "sliding_attention", "attention"}
"""Layer types of transformers' configurations whose only state is attention KV and whose window comes with the call.
Chunked attention is not among them: it exists in the mask only."""

_TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4, torch.bfloat16: 0.1, torch.float16: 0.02}
"""Largest difference of logits that is rounding, relative to the largest logit."""

_BLOCK_SIZE = 4
_LONGEST_CHECK = 64


class UnsupportedModel(ValueError):
    """The engine cannot run this model; the message says which part of it and why."""


@dataclass(frozen=True, slots=True)
class SeenLayer:
    shape: tuple[int, int, int]
    """KV heads, key dim, value dim."""
    window: int | None
    causal: bool


class _Probe:
    """Notes every attention call; the output is of the right shape and means nothing."""

    def __init__(self) -> None:
        self.calls: list[tuple[int, SeenLayer]] = []

    def attend(
        self, module: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, options: dict[str, Any]
    ) -> torch.Tensor:
        shape = (key.shape[1], key.shape[2], value.shape[2])
        causal = bool(getattr(module, "is_causal", True))
        self.calls.append((module.layer_idx, SeenLayer(shape, options.get("sliding_window"), causal)))
        return query.new_zeros((query.shape[0], query.shape[1], value.shape[2]))


def prepare(model: Any) -> KVLayout:
    """Plugs our attention into the model and returns the layout of its KV memory; raises UnsupportedModel."""
    before = model.config._attn_implementation
    try:
        return _prepare(model)
    except UnsupportedModel:
        model.set_attn_implementation(before)
        raise


def _prepare(model: Any) -> KVLayout:
    _check_config(model)
    try:
        model.set_attn_implementation(IMPLEMENTATION)
        probe = _Probe()
        with torch.no_grad(), attending(probe):
            model(input_ids=torch.zeros((1, 2), dtype=torch.long), position_ids=torch.arange(2)[None], use_cache=False)
    except (ValueError, KeyError, AttributeError) as error:
        raise _refusal(model, f"its class does not take attention from outside ({error})") from error
    layers = _check_calls(model, probe.calls)
    lay_out_for_small_batches(model)
    layout = layout_of({layer: seen.shape for layer, seen in layers.items()}, model.dtype)
    _check_logits(model, layout, [seen.window for seen in layers.values() if seen.window])
    return layout


def _refusal(model: Any, reason: str) -> UnsupportedModel:
    return UnsupportedModel(
        f"{type(model).__name__} cannot run in the embedded engine: {reason}. Serve it with another engine and put "
        "checkengine's proxy in front, or use checkengine.watch"
    )


def _check_config(model: Any) -> None:
    config = model.config.get_text_config()
    if model.config.is_encoder_decoder:
        raise _refusal(model, "it has an encoder")
    foreign = sorted(set(getattr(config, "layer_types", None) or ()) - KNOWN_LAYERS)
    if foreign:
        raise _refusal(model, f"layers of type {', '.join(foreign)} keep state outside of attention KV or hide it")


def _check_calls(model: Any, calls: list[tuple[int, SeenLayer]]) -> dict[int, SeenLayer]:
    config = model.config.get_text_config()
    layers = dict(calls)
    if not calls:
        raise _refusal(model, "its class does not take attention from outside")
    if not len(calls) == len(layers) == config.num_hidden_layers:
        raise _refusal(
            model,
            f"{len(layers)} of its {config.num_hidden_layers} layers called attention, {len(calls)} times in all; "
            "the others keep state outside of attention KV",
        )
    if not all(seen.causal for seen in layers.values()):
        raise _refusal(model, "its attention is not causal")
    types = getattr(config, "layer_types", None) or ()
    blind = [i for i, kind in enumerate(types) if kind == "sliding_attention" and not layers[i].window]
    if blind:
        raise _refusal(model, f"layer {blind[0]} has a sliding window but does not tell its attention")
    return layers


def _check_logits(model: Any, layout: KVLayout, windows: list[int]) -> None:
    """In chunks on scattered blocks the logits must be those of one plain forward."""
    length = min([_LONGEST_CHECK, *(max(12, window + 5) for window in windows)]) if windows else 14
    vocabulary = model.get_input_embeddings().num_embeddings
    tokens = np.random.default_rng(0).integers(0, vocabulary, length).astype(np.int32)
    plain = _plain_logits(model, tokens)
    chunked = _chunked_logits(model, layout, tokens)
    difference = float((plain - chunked).abs().max() / plain.abs().max().clamp_min(1e-6))
    if not difference <= _TOLERANCE[model.dtype]:
        raise _refusal(
            model,
            f"run in chunks its logits differ from a plain forward by {difference:.1e} of the largest; "
            "some layer keeps state outside of attention KV",
        )


def _plain_logits(model: Any, tokens: np.ndarray[Any, Any]) -> torch.Tensor:
    """Logits of the last position, float64."""
    model.set_attn_implementation("eager")
    try:
        with torch.no_grad():
            output = model(input_ids=torch.from_numpy(tokens.astype(np.int64))[None], use_cache=False)
    finally:
        model.set_attn_implementation(IMPLEMENTATION)
    logits: torch.Tensor = output.logits[0, -1].double()
    return logits


def _chunked_logits(model: Any, layout: KVLayout, tokens: np.ndarray[Any, Any]) -> torch.Tensor:
    pages = -(-len(tokens) // _BLOCK_SIZE)
    memory = KVMemory(layout, pages + 2, _BLOCK_SIZE)
    memory.fill_garbage()
    runner = ModelRunner(model, memory)
    table = np.random.default_rng(1).permutation(pages + 1).astype(np.int32)[None]
    ends = sorted({5, 6, len(tokens) - 1, len(tokens)})
    for step, (start, end) in enumerate(zip([0, *ends], ends, strict=False)):
        logits = runner.forward(
            PackedBatch(
                step=step,
                handles=np.zeros(1, np.int32),
                query_lengths=np.array([end - start], np.int32),
                starts=np.array([start], np.int32),
                samples=np.ones(1, np.bool_),
                token_ids=tokens[start:end],
                tables=table,
                block_size=_BLOCK_SIZE,
            )
        )
    return logits[0].double()
