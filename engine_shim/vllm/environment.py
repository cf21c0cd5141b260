"""What is constant about a vLLM engine and decides its numbers, as JSON without a path or a host name."""

from __future__ import annotations

import hashlib
import os
import platform
import re
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from checkengine.replay.executor import CannotReplayError

ENGINE = "vllm"
SETTINGS: Mapping[str, tuple[str, str]] = {
    "dtype": ("model_config", "dtype"),
    "max_model_len": ("model_config", "max_model_len"),
    "quantization": ("model_config", "quantization"),
    "enforce_eager": ("model_config", "enforce_eager"),
    "seed": ("model_config", "seed"),
    "block_size": ("cache_config", "block_size"),
    "kv_cache_dtype": ("cache_config", "cache_dtype"),
    "max_num_seqs": ("scheduler_config", "max_num_seqs"),
    "max_num_batched_tokens": ("scheduler_config", "max_num_batched_tokens"),
    "load_format": ("load_config", "load_format"),
}
"""Engine arguments that make a worker, and where a configuration holds them."""
VARIABLES = ("VLLM_CPU_ATTN_SPLIT_KV", "VLLM_CPU_SGL_KERNEL", "VLLM_BATCH_INVARIANT", "VLLM_USE_FLASHINFER_SAMPLER")
LOAD_FORMATS = ("auto", "hf", "safetensors")
MOST = 1 << 31
NAME = r"[A-Za-z0-9_.\-]{1,64}"
DISTRIBUTIONS = ("vllm", "vllm-cpu", "torch", "numpy")


def environment_of(config: Any) -> dict[str, Any]:
    """Of a worker, in whose process this is called. `config`: VllmConfig."""
    return {
        **facts_of(config),
        "weights_digest": files_digest(str(config.model_config.model)),
        "threads": torch.get_num_threads(),
    }


def facts_of(config: Any) -> dict[str, Any]:
    """What any process of the engine can tell at once."""
    settings = {
        name: plain(getattr(getattr(config, part, None), field, None)) for name, (part, field) in SETTINGS.items()
    }
    path = str(config.model_config.model)
    return {
        "engine": ENGINE,
        "model": Path(path).name if Path(path).is_absolute() else path,
        "revision": config.model_config.revision,
        "dtype": settings["dtype"],
        "block_size": int(config.cache_config.block_size),
        "vocabulary": int(config.model_config.get_vocab_size()),
        "settings": settings,
        "all_rows": is_mixture(config),
        "parallel": {"tensor": int(config.parallel_config.tensor_parallel_size)},
        **ground(),
    }


def ground() -> dict[str, Any]:
    """What decides numbers beside the model and its settings."""
    return {
        "libraries": {name: found for name in DISTRIBUTIONS if (found := installed(name))},
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "machine": platform.machine(),
        "device": "cpu",
        "variables": {name: os.environ[name] for name in VARIABLES if name in os.environ},
    }


def installed(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def plain(value: Any) -> Any:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return str(value).removeprefix("torch.")


def is_mixture(config: Any) -> bool:
    """A mixture of experts: a row's numbers depend on its neighbours'."""
    text = getattr(config.model_config, "hf_text_config", None)
    names = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
    return any((getattr(text, name, None) or 0) > 1 for name in names)


def files_digest(model: str) -> str | None:
    """SHA-256 over the weight files' names and bytes: kernels repack weights in memory, so the files stand for them.
    None where the model is no folder here (loaded from elsewhere)."""
    folder = Path(model)
    files = sorted(folder.glob("*.safetensors")) if folder.is_dir() else []
    if not files:
        return None
    digest = hashlib.sha256()
    for file in files:
        digest.update(file.name.encode())
        with file.open("rb") as source:
            while chunk := source.read(1 << 22):
                digest.update(chunk)
    return digest.hexdigest()


def engine_arguments(environment: Mapping[str, Any], directory: str) -> dict[str, Any]:
    """Keyword arguments of `vllm.LLM` that make the same worker again, without the traffic it served."""
    settings = environment.get("settings")
    if not isinstance(settings, Mapping):
        raise CannotReplayError("the record names no engine settings: it was not made by checkengine's vLLM recorder")
    if environment.get("parallel", {}).get("tensor", 1) != 1:
        raise CannotReplayError(
            "records of tensor-parallel engines cannot be replayed yet: each rank holds a part only"
        )
    told = {name: settings[name] for name in SETTINGS if settings.get(name) is not None}
    if bad := sorted(name for name, value in told.items() if not is_plausible(value)):
        raise CannotReplayError(f"the record's engine settings {', '.join(bad)} are no settings of vLLM's")
    if told.get("load_format", "auto") not in LOAD_FORMATS:
        raise CannotReplayError(f"weights of load format {told['load_format']!r} are not loaded for a replay")
    longest, size = int(told.get("max_model_len", 1)), int(told.get("block_size") or 1)
    # vLLM wants room for one request of the greatest length; the replay's memory is its own.
    blocks = -(-longest // size) + 1
    return {**told, "model": directory, "num_gpu_blocks_override": blocks, "disable_log_stats": True}


def is_plausible(value: object) -> bool:
    """A record may come from a stranger: names and moderate numbers only."""
    if isinstance(value, bool):
        return True
    if isinstance(value, int):
        return 0 <= value <= MOST
    return isinstance(value, str) and re.fullmatch(NAME, value) is not None


def variables_of(environment: Mapping[str, Any]) -> dict[str, str]:
    """Those that a worker reads and that decide numbers; no others, whatever the record says."""
    told = environment.get("variables", {})
    given = {name: told.get(name) for name in VARIABLES} if isinstance(told, Mapping) else {}
    return {name: value for name, value in given.items() if isinstance(value, str) and re.fullmatch(NAME, value)}
