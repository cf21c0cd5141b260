"""Records as columns: a window in a few arrays, without content and with."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from checkengine.guards.step import SequenceStart
from checkengine.replay.bundle.privacy import DeploymentKey
from checkengine.replay.capture import Capture
from checkengine.replay.record import BlockTables, StepRecord
from checkengine.replay.recorded import RecordedWindow

Columns = Mapping[str, NDArray[Any]]

PER_STEP = ("handles", "token_ids", "block_changes", "begun", "ended", "sampled", "fingerprints")
"""Columns of several entries a step; `<name>_counts` says how many."""


def join(parts: Iterable[Sequence[int] | NDArray[Any]], dtype: type[np.generic]) -> NDArray[Any]:
    arrays = [np.asarray(part, dtype) for part in parts]
    return np.concatenate(arrays) if arrays else np.empty(0, dtype)


def counts(parts: Iterable[Sequence[object] | NDArray[Any]]) -> NDArray[np.int64]:
    return np.array([len(part) for part in parts], np.int64)


def ring_columns(capture: Capture, kernels: Sequence[str], key: DeploymentKey) -> dict[str, NDArray[Any]]:
    """Shapes, lengths, block tables, and fingerprints as keyed hashes."""
    records, starts = capture.window.records, capture.window.starts
    return {
        "step": np.array([r.step for r in records], np.int64),
        "time_ns": np.array([r.time_ns for r in records], np.int64),
        "kernel": np.array([kernels.index(r.kernel) for r in records], np.int64),
        "handles": join((r.handles for r in records), np.int32),
        "handles_counts": counts(r.handles for r in records),
        "query_lengths": join((r.query_lengths for r in records), np.int32),
        "starts": join((r.starts for r in records), np.int32),
        "samples": join((r.samples for r in records), np.uint8),
        "token_ids_counts": counts(r.token_ids for r in records),
        "sampled_counts": counts(r.sampled for r in records),
        "fingerprints_counts": counts(r.fingerprints for r in records),
        "fingerprints_keyed": key.fingerprints(join((r.fingerprints for r in records), np.uint64)),
        "block_changes": join((r.block_changes.reshape(-1) for r in records), np.int32),
        "block_changes_counts": counts(r.block_changes for r in records),
        "begun": join(([s.handle for s in r.begun] for r in records), np.int32),
        "begun_counts": counts(r.begun for r in records),
        "ended": join((r.ended for r in records), np.int32),
        "ended_counts": counts(r.ended for r in records),
        "base_handles": capture.window.base.handles,
        "base_counts": capture.window.base.counts,
        "base_blocks": capture.window.base.blocks,
        "sequences": np.array(list(starts), np.int32),
        "prompt_counts": counts(s.prompt_tokens for s in starts.values()),
        "histories": np.array(list(capture.histories), np.int32),
        "histories_counts": counts(capture.histories.values()),
        "involved": np.array(sorted(capture.involved), np.int32),
    }


def token_columns(capture: Capture) -> dict[str, NDArray[Any]]:
    """The content that belongs to `ring_columns`."""
    records = capture.window.records
    return {
        "token_ids": join((r.token_ids for r in records), np.int32),
        "sampled": join((r.sampled for r in records), np.int32),
        "fingerprints": join((r.fingerprints for r in records), np.uint64),
        "prompts": join((s.prompt_tokens for s in capture.window.starts.values()), np.int32),
        "histories": join(capture.histories.values(), np.int32),
    }


class Cutter:
    """Cuts columns into steps again. ValueError where they do not fit together."""

    def __init__(self, ring: Columns, tokens: Columns) -> None:
        self.ring = ring
        self.tokens = tokens

    def cut(self, values: NDArray[Any], lengths: NDArray[Any], width: int = 1) -> list[NDArray[Any]]:
        if values.ndim != 1 or lengths.ndim != 1 or ((lengths < 0) | (lengths > len(values))).any():
            raise ValueError("a column is not as long as its counts say")
        if int(lengths.sum()) * width != len(values):
            raise ValueError("a column is not as long as its counts say")
        ends = np.cumsum(lengths) * width
        return [values[end - length * width : end] for end, length in zip(ends, lengths, strict=True)]

    def per_step(self, name: str, columns: Columns, counted: str | None = None, width: int = 1) -> list[NDArray[Any]]:
        return self.cut(columns[name], self.ring[f"{counted or name}_counts"], width)

    def records(self, starts: Mapping[int, SequenceStart], kernels: Sequence[str]) -> list[StepRecord]:
        rows = zip(
            self.ring["step"].tolist(),
            self.ring["time_ns"].tolist(),
            self.ring["kernel"].tolist(),
            self.per_step("handles", self.ring),
            self.per_step("query_lengths", self.ring, "handles"),
            self.per_step("starts", self.ring, "handles"),
            self.per_step("samples", self.ring, "handles"),
            self.per_step("token_ids", self.tokens),
            self.per_step("block_changes", self.ring, width=3),
            self.per_step("begun", self.ring),
            self.per_step("ended", self.ring),
            self.per_step("fingerprints", self.tokens),
            self.per_step("sampled", self.tokens),
            strict=True,
        )
        return [
            StepRecord(
                step=step,
                time_ns=time_ns,
                handles=handles,
                query_lengths=query_lengths,
                starts=cached,
                samples=samples.astype(np.bool_),
                token_ids=token_ids,
                block_changes=changes.reshape(-1, 3),
                begun=tuple(starts[handle] for handle in begun.tolist()),
                ended=tuple(ended.tolist()),
                kernel=kernels[kernel],
                fingerprints=fingerprints,
                sampled=sampled,
            )
            for (
                step, time_ns, kernel, handles, query_lengths, cached, samples,
                token_ids, changes, begun, ended, fingerprints, sampled,
            ) in rows
        ]  # fmt: skip

    def window(self, starts: dict[int, SequenceStart], kernels: Sequence[str], dropped: int) -> RecordedWindow:
        base = BlockTables(self.ring["base_handles"], self.ring["base_counts"], self.ring["base_blocks"])
        self.cut(base.blocks, base.counts)
        return RecordedWindow(self.records(starts, kernels), base, starts, dropped)

    def prompts(self) -> dict[int, NDArray[np.int32]]:
        handles = self.ring["sequences"].tolist()
        return dict(zip(handles, self.cut(self.tokens["prompts"], self.ring["prompt_counts"]), strict=True))

    def histories(self) -> dict[int, NDArray[np.int32]]:
        handles = self.ring["histories"].tolist()
        return dict(zip(handles, self.cut(self.tokens["histories"], self.ring["histories_counts"]), strict=True))
