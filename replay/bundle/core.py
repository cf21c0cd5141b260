"""The core files of a bundle: what can be told without content."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from checkengine.guards.finding import Finding
from checkengine.replay.bundle.privacy import DeploymentKey
from checkengine.replay.capture import Capture

REPLAY_TOML = """\
# How to replay; edit at will, a replay reads it and never writes it.
executor = {engine}
kernel = "recorded"
repeats = 2
fills = ["captured", "first", "second", "nan"]
"""


def step_json(capture: Capture, kernels: list[str], key: DeploymentKey) -> dict[str, Any]:
    window = capture.window
    return {
        "block_size": capture.memory.block_size,
        "first_step": window.records[0].step if len(window) else None,
        "last_step": window.records[-1].step if len(window) else None,
        "first_exact_step": capture.first_exact_step,
        "steps": len(window),
        "dropped": window.dropped,
        "kernels": kernels,
        "sequences": {
            str(handle): {
                "name": key.name(start.name),
                "prompt_tokens": len(start.prompt_tokens),
                "involved": handle in capture.involved,
            }
            for handle, start in window.starts.items()
        },
    }


def sampling_json(capture: Capture) -> dict[str, Any]:
    """Numbers only: stop strings and token ids are content."""
    return {
        str(handle): {
            name: value
            for name, value in start.sampling.items()
            if value is None or isinstance(value, bool | int | float)
        }
        for handle, start in capture.window.starts.items()
    }


def pages_json(capture: Capture) -> dict[str, Any]:
    image = capture.memory
    last: dict[int, Any] = {}
    for _, tables in capture.window.walk():
        last = dict(tables)
    owners: dict[int, list[int]] = {block: [] for block in image.blocks.tolist()}
    for handle in sorted(capture.involved & last.keys()):
        for block in last[handle].tolist():
            if block in owners:
                owners[block].append(handle)
    return {
        "block_size": image.block_size,
        "layers": {group: list(layers) for group, layers in image.layers.items()},
        "tensors": {
            name: {"dtype": str(tensor.dtype).removeprefix("torch."), "shape": list(tensor.shape)}
            for name, tensor in image.tensors.items()
        },
        "blocks": image.blocks.tolist(),
        "owners": {str(block): handles for block, handles in owners.items() if handles},
        "undo": [{"step": entry.step, "slots": len(entry.slots)} for entry in capture.undo],
    }


def expect_json(capture: Capture) -> dict[str, Any]:
    records = capture.window.records
    known = [record for record in records if len(record.sampled) or not record.samples.any()]
    printed = all(len(record.fingerprints) == len(record.sampled) for record in known)
    return {
        "compared": "fingerprints and tokens" if printed and known else "tokens",
        "steps_with_outcome": len(known),
        "involved_rows": int(sum(np.isin(record.sampling_handles, list(capture.involved)).sum() for record in records)),
    }


def weights_json(environment: Mapping[str, Any]) -> dict[str, Any]:
    names = ("weights", "weights_digest", "weights_sha256", "model", "model_name", "revision", "dtype")
    return {name: environment.get(name, "unknown") for name in names if name in environment} or {"weights": "unknown"}


def finding_json(finding: Finding, key: DeploymentKey) -> dict[str, Any]:
    return {
        "kind": finding.kind,
        "sequence": key.name(finding.sequence),
        "severity": int(finding.severity),
        "step": finding.step,
        "token": finding.token,
        "guard": finding.guard,
        "version": finding.version,
        "evidence": dict(finding.evidence),
    }


def sequences_json(capture: Capture) -> dict[str, Any]:
    """Content: what `sampling_json` and `step_json` leave out."""
    return {
        "sequences": {
            str(handle): {
                "name": start.name,
                "sampling": dict(start.sampling),
                "stop_tokens": start.stop_tokens,
                "ignores_stop": start.ignores_stop,
                "language": start.language,
            }
            for handle, start in capture.window.starts.items()
        },
        "findings": [finding.sequence for finding in capture.findings],
    }
