"""What is kept of a request for a week: numbers of its rows and a chain over their fingerprints, no content.

The chain tells whether two runs of a request had the same logits, bit for bit, in every row. It leaves the process
keyed with the deployment key, so that nobody outside can test a guess.
"""

from __future__ import annotations

import math
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from checkengine.engine_shim.spool import MOST_NAME, SpoolWriter
from checkengine.guards.action import Action
from checkengine.guards.events import Event, SequenceEnded
from checkengine.guards.finding import Finding
from checkengine.replay.bundle.privacy import DeploymentKey, deployment_key
from checkengine.replay.record import StepRecord

PRIME, MASK = 0x100000001B3, (1 << 64) - 1
"""FNV-1a over 64-bit words."""
MOST_ENDED = 4096
MOST_GUARDS = 32


@dataclass(slots=True)
class Note:
    """Of one sequence, while it runs."""

    name: str
    chain: int = 0xCBF29CE484222325
    rows: int = 0
    entropy_sum: float = 0.0
    entropy_max: float = 0.0
    margin_min: float = math.inf
    guards: dict[str, float] = field(default_factory=dict)

    def scores(self) -> dict[str, float]:
        told = {name: round(value, 4) for name, value in self.guards.items()}
        if self.rows:
            told |= {"entropy mean": round(self.entropy_sum / self.rows, 4), "entropy max": round(self.entropy_max, 4)}
        if math.isfinite(self.margin_min):
            told["margin min"] = round(self.margin_min, 4)
        return told


class RequestNotes:
    """A step listener; the step's thread writes, whoever ends a sequence takes its note."""

    def __init__(self) -> None:
        self._live: dict[int, Note] = {}
        self._ended: OrderedDict[str, Note] = OrderedDict()
        self._lock = threading.Lock()

    def step_done(self, record: StepRecord, findings: Iterable[Finding], actions: Iterable[Action]) -> None:
        with self._lock:
            for handle in record.ended:
                self._end(handle)
            for start in record.begun:
                self._live[start.handle] = Note(start.name)
            self._rows(record)
            for finding in findings:
                self._finding(finding)

    def take(self, name: str) -> Note | None:
        """And forget it."""
        with self._lock:
            if (ended := self._ended.pop(name, None)) is not None:
                return ended
            handle = next((handle for handle, note in self._live.items() if note.name == name), None)
            return self._live.pop(handle) if handle is not None else None

    def _rows(self, record: StepRecord) -> None:
        handles, prints = record.sampling_handles.tolist(), record.fingerprints.tolist()
        stats = record.stats
        entropies = stats.entropy.tolist() if stats is not None and stats.entropy is not None else ()
        margins = stats.margin.tolist() if stats is not None and stats.margin is not None else ()
        for place, handle in enumerate(handles):
            note = self._live.get(handle)
            if note is None:
                continue
            if place < len(prints):
                note.chain = ((note.chain ^ prints[place]) * PRIME) & MASK
            if place < len(entropies) and math.isfinite(entropy := entropies[place]):
                note.rows, note.entropy_sum = note.rows + 1, note.entropy_sum + entropy
                note.entropy_max = max(note.entropy_max, entropy)
            if place < len(margins) and margins[place] < note.margin_min:
                note.margin_min = margins[place]

    def _finding(self, finding: Finding) -> None:
        note = next((note for note in self._live.values() if note.name == finding.sequence), None)
        if note is None or (finding.guard not in note.guards and len(note.guards) >= MOST_GUARDS):
            return
        numbers = [float(value) for value in finding.evidence.values() if not isinstance(value, bool)]
        score = max((value for value in numbers if math.isfinite(value)), default=1.0)
        note.guards[finding.guard] = max(note.guards.get(finding.guard, -math.inf), score)

    def _end(self, handle: int) -> None:
        note = self._live.pop(handle, None)
        if note is not None:
            self._ended[note.name] = note
            while len(self._ended) > MOST_ENDED:
                self._ended.popitem(last=False)


class RequestRecords:
    """A listener of the event bus: one record for each sequence that ends."""

    def __init__(
        self,
        spool: SpoolWriter,
        notes: RequestNotes,
        *,
        model: str = "",
        configuration: str = "",
        trace_of: Callable[[str], str] = lambda sequence: "",
        key: DeploymentKey | None = None,
        request_of: Callable[[str], str] = lambda sequence: sequence.rpartition("-")[0] or sequence,
    ) -> None:
        """`request_of` makes of a sequence's name the id that its client was answered with."""
        self._request_of = request_of
        self._spool, self._notes, self._trace_of = spool, notes, trace_of
        self._model, self._configuration = model, configuration
        self._key = key or deployment_key()

    def handle(self, event: Event) -> None:
        if isinstance(event, SequenceEnded):
            self._spool.append("request", event.time, event.sequence, self.data(event))

    def data(self, event: SequenceEnded) -> dict[str, Any]:
        note = self._notes.take(event.sequence)
        request = self._request_of(event.sequence)[:MOST_NAME]
        chain = self._key.digest("fingerprint chain", f"{note.chain:016x}") if note is not None else ""
        return {
            "request": request,
            "response": request,
            "trace_id": self._trace_of(event.sequence),
            "model": self._model,
            "configuration": self._configuration,
            "finish_reason": event.reason,
            "prompt_tokens": event.prompt_tokens,
            "output_tokens": event.output_tokens,
            "cached_tokens": event.cached_tokens or 0,
            "ttft_seconds": event.ttft_seconds if event.output_tokens else None,
            "total_seconds": event.total_seconds,
            "scores": note.scores() if note is not None else {},
            "fingerprint": chain,
        }
