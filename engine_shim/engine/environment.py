"""What is constant about an engine and decides its numbers."""

from __future__ import annotations

import hashlib
import json
import platform
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from checkengine.engine_shim.engine.code_digest import code_digest


def environment_of(model: Any) -> dict[str, Any]:
    """As JSON: model by name and digests, libraries, threads and instruction set. No path and no host name."""
    return {
        "engine": "embedded",
        "model": model_name(model),
        "config_digest": config_digest(model),
        "weights_digest": weights_digest(model),
        "dtype": str(model.dtype).removeprefix("torch."),
        "threads": torch.get_num_threads(),
        **ground(),
    }


def ground() -> dict[str, Any]:
    """What decides numbers beside the model, threads and faults: libraries, machine and the engine's own code."""
    return {
        "libraries": {name: version(name) for name in ("torch", "transformers", "numba", "numpy")},
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "machine": platform.machine(),
        "mkldnn": bool(torch.backends.mkldnn.enabled),
        "blas": _blas(),
        "device": "cpu",
        "code_digest": code_digest(),
    }


def model_name(model: Any) -> str:
    """The name on the hub, or the last part of the folder."""
    name = str(model.name_or_path)
    return Path(name).name if Path(name).is_absolute() else name


def config_digest(model: Any) -> str:
    """SHA-256 of the model's configuration without the paths in it."""
    config = {key: value for key, value in model.config.to_dict().items() if not key.startswith("_")}
    return hashlib.sha256(json.dumps(config, sort_keys=True, default=str).encode()).hexdigest()


def weights_digest(model: Any) -> str:
    """SHA-256 over names, shapes and bytes of all parameters and buffers, as they are in memory now."""
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(f"{name}{tuple(tensor.shape)}{tensor.dtype}".encode())
        digest.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy())
    return digest.hexdigest()


def _blas() -> str:
    lines = torch.__config__.show().splitlines()
    return next((line.strip(" -") for line in lines if "BLAS_INFO" in line or "Math Kernel" in line), "unknown")
