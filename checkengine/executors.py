"""Which executor replays a capture: the recorded engine's own, or another one that can read it."""

from __future__ import annotations

from checkengine.replay.capture import Capture
from checkengine.replay.executor import NoSuchChoiceError


def for_executor(capture: Capture, name: str | None) -> Capture:
    """The capture as the executor of this name reads it. NoSuchChoiceError where none of that name can."""
    engine = str(capture.environment.get("engine", ""))
    if name is None or name == engine:
        return capture
    if (engine, name) == ("vllm", "embedded"):
        from checkengine.engine_shim.vllm.as_embedded import as_embedded

        return as_embedded(capture)
    able = f"{engine}, embedded" if engine == "vllm" else engine
    raise refused(engine, name, able)


def refused(engine: str, name: str, able: str) -> NoSuchChoiceError:
    return NoSuchChoiceError(
        f"--executor: a record of engine {engine!r} cannot be replayed by {name!r}, only by {able}"
    )
