"""A minimal reproducer as a bundle."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np

from checkengine.guards.finding import Finding
from checkengine.replay.bundle import BundleReader, PublicKey, remove, write_bundle
from checkengine.replay.bundle import layout as bundle_layout
from checkengine.replay.bundle.calls import CallOrigin, StoredCall, read_call, write_call
from checkengine.replay.bundle.core import finding_json
from checkengine.replay.bundle.files import read_inside
from checkengine.replay.bundle.privacy import deployment_key
from checkengine.replay.capture import Capture, new_identifier
from checkengine.replay.executor import CannotReplayError, Executor, ReplayError
from checkengine.replay.minimise.budget import Budget
from checkengine.replay.minimise.call_oracle import CallOracle, Case
from checkengine.replay.minimise.convict import CONVICTIONS, convict
from checkengine.replay.minimise.minimise import BUDGET, Minimised, minimise
from checkengine.replay.minimise.symptom import Symptom
from checkengine.replay.op_call import OpExecutor
from checkengine.replay.recorded import RecordedWindow, pack_tables

logger = logging.getLogger("checkengine.minimise")

TOLD = (
    "engine", "dtype", "threads", "libraries", "cpu_capability", "machine", "mkldnn", "blas", "device", "code_digest",
    "block_size", "kernel", "compute_capability", "cuda",
)  # fmt: skip
"""Of the environment, in a bundle that a stranger may have: what decides an op's numbers. No model, no settings."""


def content_free_reproducer(
    capture: Capture,
    executor: Executor,
    directory: Path | str,
    *,
    parent: Path | None = None,
    budget: int = BUDGET,
    whole_window: bool = True,
) -> Path | None:
    """What a first incident keeps when content capture is off: judge the capture in memory, shrink it, and write the
    least that still shows the fault with made-up values. None where no kernel is convicted or the fault does not show
    without the recorded content; the log says which. Runs the executor on memory of its own for some seconds: call it
    from a thread off the serving path.

    `parent`: a bundle of the same capture, to be named by its digest. `whole_window`: as in `convict`."""
    try:
        verdict = convict(capture, executor, whole_window=whole_window)
        if verdict.kind not in CONVICTIONS:
            logger.info("no reproducer of incident %s: %s", capture.incident, verdict.kind)
            return None
        found = minimise(capture, executor, verdict, budget=budget)
        return write_reproducer(found, capture, executor, directory, content_free=True, parent=parent)
    except ReplayError as error:
        logger.info("no content-free reproducer of incident %s: %s", capture.incident, error)
        return None


def write_reproducer(
    found: Minimised,
    capture: Capture,
    executor: Executor,
    directory: Path | str,
    *,
    content_free: bool = False,
    parent: Path | None = None,
    recipients: Sequence[PublicKey] = (),
    content_hours: float | None = None,
) -> Path:
    """Write what `minimise` found, read it back and see the fault again. CannotReplayError where it must be
    content-free and is not, or where it does not fire again; then nothing is left."""
    if content_free and not found.content_free:
        raise CannotReplayError(f"no content-free reproducer: {why_not_content_free(found)}")
    lineage = lineage_of(found, parent)
    if found.call is None:
        step = one_step_capture(found, capture)
        return write_bundle(
            step, directory, content="full", lineage=lineage, recipients=recipients, content_hours=content_hours
        )
    stored = StoredCall(found.call, found.symptom.to_json(), found.slot, found.values)
    path = write_call(
        stored, directory, origin_of(found, capture, lineage), recipients=recipients, content_hours=content_hours
    )
    if not fires_again(path, cast(OpExecutor, executor)):
        remove(path)
        raise CannotReplayError("the reproducer does not show the fault when it is read back: it depends on more")
    return path


def fires_again(path: Path, executor: OpExecutor) -> bool:
    """Does a written call bundle show the fault that it was written for?"""
    return shows(executor, read_call(BundleReader(path, "minimise")))


def shows(executor: OpExecutor, stored: StoredCall) -> bool:
    oracle = CallOracle(executor, Symptom.from_json(stored.symptom), Budget(BUDGET))
    return oracle.accept(Case(stored.call, stored.slot)) is not None


def why_not_content_free(found: Minimised) -> str:
    if found.call is None:
        return str(found.stopped)
    if found.stopped:
        return f"the recorded values were not replaced: {found.stopped}"
    return "the fault depends on the recorded values: it does not show with ones, one-hot values or noise"


def origin_of(found: Minimised, capture: Capture, lineage: Mapping[str, Any]) -> CallOrigin:
    environment = dict(capture.environment)
    findings = [finding_json(finding, deployment_key()) for finding in capture.findings]
    if found.content_free:
        environment = {name: value for name, value in environment.items() if name in TOLD}
        findings = [blank_finding(finding) for finding in capture.findings]
    return CallOrigin(environment, findings, lineage, capture.incident, capture.time)


def blank_finding(finding: Finding) -> dict[str, Any]:
    """Evidence, names and places in a text are left out: they are somebody's."""
    return {
        "kind": finding.kind,
        "sequence": "",
        "severity": int(finding.severity),
        "step": 0,
        "token": 0,
        "guard": finding.guard,
        "version": finding.version,
        "evidence": {},
    }


def lineage_of(found: Minimised, parent: Path | None) -> dict[str, Any]:
    told = found.to_dict()
    return {
        "parent": None if parent is None else {"manifest_sha256": digest_of(parent)},
        "made_by": "minimise",
        "passes": told["passes"],
        "replays": found.replays,
        "minimal": found.minimal,
        "stopped": found.stopped,
        "values": str(found.values),
    }


def digest_of(bundle: Path) -> str:
    data = read_inside(bundle, bundle_layout.MANIFEST, most=bundle_layout.MOST_JSON_BYTES)
    return hashlib.sha256(data).hexdigest()


def one_step_capture(found: Minimised, capture: Capture) -> Capture:
    """The capture cut to the one step and the rows that are left."""
    replay = found.step.step.replay
    number = replay.record.step
    record, tables = next((record, tables) for record, tables in capture.window.walk() if record.step == number)
    kept = replay.record.handles.tolist()
    window = RecordedWindow(
        [replace(replay.record, block_changes=record.block_changes[:0], begun=(), ended=(), tables=None)],
        pack_tables({handle: tables[handle] for handle in kept}),
        {handle: capture.window.starts[handle] for handle in kept},
        capture.window.dropped,
    )
    own = found.step.handle
    return replace(
        capture,
        window=window,
        memory=capture.memory_at(number + 1),
        involved=frozenset(capture.involved & set(kept)) if capture.environment.get("all_rows") else frozenset({own}),
        histories=histories_before(found, capture),
        undo=[entry for entry in capture.undo if entry.step == number],
        identifier=new_identifier(),
    )


def histories_before(found: Minimised, capture: Capture) -> dict[int, Any]:
    outputs = found.step.step.replay.outputs
    return {handle: np.array(tokens, np.int32) for handle, tokens in outputs.items() if handle in capture.involved}
