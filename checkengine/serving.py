"""From a model's name to a server with guards, metrics and traces."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fastapi import FastAPI

from checkengine.assemble import EngineShim, embed
from checkengine.config import Settings, load_settings
from checkengine.engine_shim.engine.runtime import EngineRuntime
from checkengine.engine_shim.engine.server import Service, build_app
from checkengine.engine_shim.models import model_directory
from checkengine.engine_shim.settings import ServerSettings
from checkengine.guards.errors import UserError


@dataclass(slots=True)
class Served:
    """A server that has not begun to listen; `close` it in the end."""

    app: FastAPI
    runtime: EngineRuntime
    settings: ServerSettings
    model_name: str
    closers: list[Callable[[], None]] = field(default_factory=list)

    def close(self) -> None:
        for close in self.closers:
            close()


def assemble_server(
    model: str, *, config: Path | None = None, host: str | None = None, port: int | None = None
) -> Served:
    """Loads the model. Raises UserError for a model or a configuration that cannot be used."""
    settings = load_settings(config)
    directory = model_directory(model)
    loaded, tokenizer = _load(directory, settings)
    engine, shim = embed(loaded, tokenizer, settings)
    chosen = _server_settings(settings, host, port)
    return build_server(engine, shim, tokenizer, chosen, name=served_name(model, directory))


def build_server(
    engine: Any, shim: EngineShim | None, tokenizer: Any, settings: ServerSettings, *, name: str
) -> Served:
    runtime = EngineRuntime(engine)
    service = Service(runtime, tokenizer, name, engine.max_length, settings)
    served = Served(build_app(service), runtime, settings, name)
    if shim is not None:
        served.closers.append(shim.close)
    return served


def served_name(model: str, directory: Path) -> str:
    """What clients call the model: never a path of this machine."""
    return directory.resolve().name if (Path(model) / "config.json").is_file() else model


def _load(directory: Path, settings: Settings) -> tuple[Any, Any]:
    import torch

    from checkengine.engine_shim.engine.load import load_model

    try:
        return load_model(directory, getattr(torch, settings.engine.dtype))
    except (OSError, ValueError, KeyError) as error:
        raise UserError(f"cannot load the model in {directory}: {error}") from error


def _server_settings(settings: Settings, host: str | None, port: int | None) -> ServerSettings:
    given = {key: value for key, value in {"host": host, "port": port}.items() if value is not None}
    return settings.server.model_copy(update=given)
