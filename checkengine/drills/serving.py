"""Serve the demo's requests once, and keep what each of them got."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from checkengine.config import Settings
from checkengine.detectors import Vocabulary
from checkengine.drills.requests import Chat, to_request
from checkengine.engine_shim.engine.null_shim import NullShim
from checkengine.engine_shim.engine.request import GenerationRequest, IncidentNote, SamplingParameters
from checkengine.engine_shim.faults import Fault
from checkengine.guards.action import Action
from checkengine.guards.events import AuditJudged, Event, FindingRaised
from checkengine.replay.record import StepRecord
from checkengine.replay.recorded import RecordedWindow

Progress = Callable[[int, int], None]
"""(requests finished, requests)."""


@dataclass(slots=True)
class Served:
    """One request's outcome."""

    tokens: list[int] = field(default_factory=list)
    steps: list[int] = field(default_factory=list)
    """The step that produced each token."""
    text: str = ""
    finish: str | None = None
    note: IncidentNote | None = None
    ended_step: int = 0

    def index_at(self, step: int) -> int:
        """Output index of the token sampled in `step`, emitted or not."""
        return sum(1 for produced in self.steps if produced < step)


@dataclass(slots=True)
class Run:
    served: dict[str, Served]
    seconds: float = 0.0
    guard_cpu_seconds: float = 0.0
    findings: list[FindingRaised] = field(default_factory=list)
    audits: list[AuditJudged] = field(default_factory=list)
    bundles: dict[str, str] = field(default_factory=dict)
    """Path by incident, the first incident first."""
    window: RecordedWindow | None = None

    @property
    def tokens(self) -> int:
        return sum(len(served.tokens) for served in self.served.values())

    @property
    def tokens_per_second(self) -> float:
        return self.tokens / self.seconds

    def fingerprints(self, name: str) -> list[int]:
        """Of the logits behind each output token of a request, from the recorder; empty where it ran bare."""
        found: list[int] = []
        records = self.window.records if self.window is not None else []
        handles = self.window.handles_of(name) if self.window is not None else []
        for record in records:
            if len(record.fingerprints):
                chosen = np.isin(record.sampling_handles, handles)
                found += record.fingerprints[chosen].tolist()
        return found


def serve(engine: Any, tokenizer: Any, chats: Sequence[Chat], progress: Progress | None = None) -> Run:
    """All chats at once on an idle engine, until each has its answer. Seconds are of the engine's steps."""
    run = Run({chat.name: Served() for chat in chats})
    for chat in chats:
        engine.submit(to_request(chat, tokenizer))
    began = time.perf_counter()
    while engine.has_work:
        step = engine.steps
        note_outputs(run, step, engine.step())
        if progress:
            progress(sum(1 for served in run.served.values() if served.finish), len(chats))
    run.seconds = time.perf_counter() - began
    return run


def note_outputs(run: Run, step: int, outputs: Iterable[Any]) -> None:
    for output in outputs:
        served = run.served[output.name]
        served.tokens += output.tokens
        served.steps += [step] * len(output.tokens)
        served.text += output.text
        if output.finish:
            served.finish, served.note, served.ended_step = output.finish, output.note, step


class Bench:
    """Model and tokenizer, loaded once; an engine of its own for every run, so that runs start alike."""

    def __init__(self, model: Any, tokenizer: Any, settings: Settings) -> None:
        self.model, self.tokenizer, self.settings = model, tokenizer, settings
        self.vocabulary = Vocabulary.from_tokenizer(tokenizer, model.get_output_embeddings().weight.shape[0])

    def run(
        self,
        chats: Sequence[Chat],
        *,
        faults: Sequence[Fault] = (),
        watched: bool,
        warm: Sequence[Chat] = (),
        progress: Progress | None = None,
    ) -> Run:
        """`warm` chats run first, unwatched and undisturbed: their pages are what later ones find in memory."""
        from checkengine.assemble import embed

        engine, shim = embed(
            self.model, self.tokenizer, self.settings, faults, watched=watched, vocabulary=self.vocabulary
        )
        if warm:
            leave_behind(engine, self.tokenizer, warm)
        heard: list[Event] = []
        if shim is not None:
            shim.assembly.bus.subscribe_sync(heard.append, name="drill")
        run = serve(engine, self.tokenizer, chats, progress)
        if shim is not None:
            run.guard_cpu_seconds = shim.cpu_seconds
            shim.close()
            collect(run, heard, shim)
        # Engine and shim know each other; the next run needs their memory now, not at some later collection.
        engine.shim = NullShim()
        return run

    def margin(self, tokens: list[int]) -> float:
        """Largest minus second largest raw logit for the token that follows, on an undisturbed engine."""
        from checkengine.assemble import embed

        engine, _ = embed(self.model, self.tokenizer, self.settings, watched=False)
        engine.shim = seen = LastLogits()
        engine.submit(GenerationRequest("margin", tokens, SamplingParameters(temperature=0, max_tokens=1)))
        while engine.has_work:
            engine.step()
        first, second = torch.topk(seen.row, 2).values.tolist()
        return float(first - second)


def leave_behind(engine: Any, tokenizer: Any, chats: Sequence[Chat]) -> None:
    """Serve chats without faults and shim, then spread the pages that they filled over all others: what a pool
    looks like that has been in service for a while."""
    shim, faults = engine.shim, engine.faults
    engine.shim, engine.faults, engine.runner.faults = NullShim(), (), ()
    before = {name: tensor[:, 0, -1, 0, 0].clone() for name, tensor in engine.memory.tensors.items()}
    serve(engine, tokenizer, chats)
    for name, tensor in engine.memory.tensors.items():
        written = tensor[:, 0, -1, 0, 0] != before[name]
        pages = torch.nonzero(written).ravel()
        for index, page in enumerate(torch.nonzero(~written).ravel().tolist()):
            tensor[page] = tensor[pages[index % len(pages)]]
    engine.shim, engine.faults, engine.runner.faults = shim, faults, faults


class LastLogits:
    """Stands where the shim stands and keeps the last row of raw logits."""

    row: torch.Tensor

    def step(self, record: StepRecord) -> AbstractContextManager[LastLogits]:
        return nullcontext(self)

    def logits(self, logits: torch.Tensor) -> None:
        if len(logits):
            self.row = logits[-1].clone()

    def tokens(self, tokens: NDArray[np.int32]) -> Sequence[Action]:
        return ()


def collect(run: Run, heard: Sequence[Event], shim: Any) -> None:
    run.findings = [event for event in heard if isinstance(event, FindingRaised)]
    run.audits = [event for event in heard if isinstance(event, AuditJudged)]
    directory = shim.assembly.settings.capture.directory
    if shim.assembly.recorder is not None:
        run.window = shim.assembly.recorder.window()
    for incident in shim.assembly.book.incidents(time.time()):
        for bundle in incident.bundles[:1]:
            run.bundles[incident.id] = str(directory / bundle)
