"""The shim: between the engine's logits and its sampler, and between its sampler and its commit."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from checkengine.detectors import row_stats
from checkengine.detectors.logits.stats import Level, RowStats
from checkengine.detectors.recurrence import LoopNorms
from checkengine.detectors.recurrence_hook import RecurrenceWatch, watch_recurrence
from checkengine.engine_shim.adapter import EngineAdapter
from checkengine.engine_shim.given import as_token_ids, length_of, version_of
from checkengine.engine_shim.loop_tally import LoopTally, of_rows
from checkengine.engine_shim.measuring import measured
from checkengine.engine_shim.parts import Part
from checkengine.engine_shim.possible import PossibleActions
from checkengine.guards.action import Action, ActionKind
from checkengine.guards.bus import EventBus
from checkengine.guards.events import ActionTaken, GuardDisabled
from checkengine.guards.finding import Finding
from checkengine.guards.pipeline import Pipeline
from checkengine.guards.policy import Policy
from checkengine.guards.step import SequenceStart, StepView
from checkengine.replay.record import StepRecord
from checkengine.replay.recorder import Recorder, unknown_start

logger = logging.getLogger("checkengine.shim")

FULL_ROWS = 4
"""Level `auto` measures in full up to this many rows and screens above: the budget is 1 % of a step."""

LISTENER_SECONDS = 1.0
"""A listener that holds a step up for longer has failed: it belongs on a thread of its own."""

NO_FINGERPRINTS: NDArray[np.uint64] = np.empty(0, np.uint64)


class StepListener(Protocol):
    """Sees a step after its guards, before its tokens are committed: captures and audits."""

    def step_done(self, record: StepRecord, findings: list[Finding], actions: list[Action]) -> None: ...


@dataclass(slots=True)
class ShimParts:
    """What a shim is made of; the face assembles it."""

    pipeline: Pipeline
    policy: Policy
    bus: EventBus
    recorder: Recorder | None = None
    listeners: list[StepListener] = field(default_factory=list)
    level: Level | None = None
    """None chooses by the number of rows (`auto`)."""


@dataclass(frozen=True, slots=True)
class RowNames:
    """Sequences of a batch's sampling rows, in order, and their prompts' lengths."""

    key: bytes = b""
    """Their handles."""
    names: tuple[str, ...] = ()
    prompts: NDArray[np.int32] = field(default_factory=lambda: np.empty(0, np.int32))


class Shim:
    """One thread drives the steps. Nothing that fails in here reaches the engine (design rule 6)."""

    def __init__(self, adapter: EngineAdapter, parts: ShimParts) -> None:
        self.adapter = adapter
        self.parts = parts
        self.cpu_seconds = 0.0
        """CPU time that this thread spent in guards and recorder since the start."""
        self._enabled = True
        self._stale = False
        """Guards missed tokens of live sequences: they begin anew with them before the next step."""
        self._live: dict[int, SequenceStart] = {}
        self._handles: dict[str, int] = {}
        """By name, the live handle: a retried sequence begins under its old name."""
        self._rows = RowNames()
        self._loops: list[LoopNorms] = []
        self._tally = LoopTally()
        self._possible = PossibleActions(adapter.capabilities)
        self._measuring = self._part("measuring logits")
        self._recording = self._part("the recorder")
        # Of its own: a part that succeeds once a step never fails three times in a row.
        self._finishing = self._part("the recorder's outcomes")
        self._guarding = self._part("the guards")
        self._following = Part("following sequences", lasting=True)
        self._telling = self._part("the event bus")
        self._listening: dict[int, Part] = {}

    @property
    def enabled(self) -> bool:
        """False leaves the engine alone from the next step on: the switch for the whole sidecar."""
        return self._enabled

    @enabled.setter
    def enabled(self, value: bool) -> None:
        self._stale = self._stale or (value and not self._enabled)
        self._enabled = value

    def step(self, record: StepRecord) -> StepScope:
        """Context of one step; call `logits` and `tokens` inside it, in this order."""
        return StepScope(self, record)

    def end(self, handles: Iterable[int]) -> None:
        """Sequences are over and no further step will tell it, as `StepRecord.ended` does."""
        for handle in handles:
            self._following.run(self._forget, handle)

    def watch_loop(self, module: torch.nn.Module, within: torch.nn.Module) -> RecurrenceWatch:
        """Feed the recurrence guard: `module` is called several times in one forward pass of `within`, on a state of
        shape (rows, tokens, dimension) or (1, packed tokens, dimension). Close what is returned to end it."""
        return watch_recurrence(module, self._loops.append, within=within)

    def arm(self) -> None:
        """Switch everything on again that failed or was switched off as a whole. Any thread may call it."""
        for part in self._all_parts():
            part.arm()
        self._enabled = self._stale = True

    def failed_parts(self) -> list[str]:
        return [part.name for part in self._all_parts() if part.off]

    def level_for(self, rows: int) -> Level:
        return self.parts.level or ("full" if rows <= FULL_ROWS else "screen")

    def _all_parts(self) -> list[Part]:
        own = [
            self._measuring,
            self._recording,
            self._finishing,
            self._guarding,
            self._following,
            self._telling,
        ]
        return own + list(self._listening.values())

    def _part(self, name: str) -> Part:
        return Part(name, self._tell_off)

    def _tell_off(self, name: str, reason: str) -> None:
        if name != "the event bus":
            self.parts.bus.publish(GuardDisabled(name, reason, time.time()))

    def _part_of(self, listener: StepListener) -> Part:
        part = self._listening.get(id(listener))
        if part is None:
            part = self._listening[id(listener)] = self._part(f"listener {type(listener).__name__}")
        return part

    def _follow(self, record: StepRecord) -> None:
        """Sequences come and go whether or not the guards are switched on."""
        for handle in record.ended:
            self._following.run(self._forget, handle)
        for start in record.begun:
            self._following.run(self._begin, start)

    def _rows_of(self, handles: NDArray[np.int32]) -> RowNames:
        """Mostly the rows of the step before: a batch that decodes keeps its rows."""
        key = handles.tobytes()
        if key != self._rows.key:
            starts = [self._live.get(handle) or self._start_of(handle) for handle in handles.tolist()]
            prompts = np.array([len(start.prompt_tokens) for start in starts], np.int32)
            self._rows = RowNames(key, tuple([start.name for start in starts]), prompts)
        return self._rows

    def _take_loops(self, record: StepRecord, rows: int) -> LoopNorms | None:
        """The last pass's, of the last token of each row that samples; None where its shape says nothing of rows."""
        if not self._loops:
            return None
        norms = self._loops[-1]
        self._loops.clear()
        return of_rows(norms, record, rows)

    def _begin(self, start: SequenceStart) -> None:
        self._live[start.handle] = start
        self._handles[start.name] = start.handle
        self._following.run(self.parts.pipeline.begin, start)
        self._following.run(self.parts.policy.begin, start.name, time.time())

    def _forget(self, handle: int) -> None:
        start = self._live.pop(handle, None)
        self._rows = RowNames()
        if start is not None and self._handles.get(start.name) == handle:
            del self._handles[start.name]
            self._following.run(self.parts.pipeline.forget, start.name)
            self._following.run(self.parts.policy.forget, start.name)
            if (loops := self._tally.end(start.name)) is not None:
                self.parts.bus.publish(loops)

    def _start_of(self, handle: int) -> SequenceStart:
        """Of a sequence that began before there was a shim, no more than its handle is known."""
        start = self._live.get(handle)
        if start is None:
            start = unknown_start(handle)
            self._begin(start)
        return start

    def _refresh(self) -> None:
        self._stale = False
        for name in self._handles:
            self.parts.pipeline.restart(name)


class StepScope:
    """One step under watch."""

    __slots__ = (
        "_actions",
        "_cpu",
        "_enabled",
        "_final",
        "_findings",
        "_hidden",
        "_record",
        "_scores",
        "_shim",
        "_started",
        "_stats",
        "_version",
    )

    def __init__(self, shim: Shim, record: StepRecord) -> None:
        self._shim = shim
        self._record = record
        self._enabled = shim.enabled
        """As of the step's begin: a switch in its midst would leave half a record."""
        self._stats: RowStats | None = None
        self._scores: torch.Tensor | None = None
        self._version = 0
        self._final = False
        self._hidden: torch.Tensor | None = None
        self._findings: list[Finding] = []
        self._actions: list[Action] = []
        self._cpu = 0
        self._started = 0.0

    @property
    def stats(self) -> RowStats | None:
        """Of the logits given last, row-aligned with them; None where they were not measured."""
        return self._stats

    def __enter__(self) -> StepScope:
        self._started = time.perf_counter()
        before = time.thread_time_ns()
        shim, record = self._shim, self._record
        shim._following.run(shim._follow, record)
        if shim.parts.recorder is not None:
            shim._recording.run(self._begin_record, shim.parts.recorder)
        self._cpu += time.thread_time_ns() - before
        return self

    def logits(self, logits: torch.Tensor) -> None:
        """Raw logits of the sampling rows, shape (rows, vocabulary), before masks and penalties; returns at once.

        The sampler guard reads them once more in `tokens`; logits that torch has changed in place since are left out.
        """
        if not self._enabled or not length_of(logits):
            return
        before = time.thread_time_ns()
        self._shim._measuring.run(self._measure, logits)
        self._cpu += time.thread_time_ns() - before

    def sampled_from(self, scores: torch.Tensor) -> None:
        """What the sampler gets instead of the raw logits: penalties, biases and masks in them, before temperature and
        truncation; shape as `logits`, row-aligned with it. Between `logits` and `tokens`; not needed."""
        self._scores, self._version, self._final = scores, version_of(scores), True

    def hidden(self, hidden: torch.Tensor) -> None:
        """Residual stream of the sampling rows in front of the final norm, (rows, hidden size) in CPU memory: the
        magnitude guard then sees flipped bits that the norm hides. Before `tokens`; not needed."""
        self._hidden = hidden

    def tokens(self, tokens: NDArray[np.int32]) -> list[Action]:
        """Tokens sampled for the sampling rows, shape (rows,); returns what is to be done before they are committed."""
        if not self._enabled:
            return []
        before = time.thread_time_ns()
        shim = self._shim
        if length_of(tokens) and not shim._guarding.run(self._guard, tokens):
            shim._stale = True
        if shim.parts.recorder is not None:
            shim._finishing.run(self._finish, shim.parts.recorder, tokens)
        for listener in shim.parts.listeners:
            shim._part_of(listener).run(self._tell, listener)
        self._cpu += time.thread_time_ns() - before
        return self._actions

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._shim.cpu_seconds += self._cpu * 1e-9
        self._scores = self._hidden = None
        if self._enabled:
            self._shim._telling.run(self._publish)

    def _begin_record(self, recorder: Recorder) -> None:
        if self._enabled:
            recorder.begin(self._record)
        else:
            recorder.skip(self._record)

    def _measure(self, logits: torch.Tensor) -> None:
        rows = int(np.count_nonzero(self._record.samples))
        if len(logits) != rows:
            raise ValueError(f"{len(logits)} rows of logits for {rows} rows that sample in step {self._record.step}")
        self._stats = row_stats(logits, self._shim.level_for(rows))
        self._scores, self._version, self._final = logits, version_of(logits), False

    def _guard(self, tokens: NDArray[np.int32]) -> None:
        tokens = as_token_ids(tokens)
        shim = self._shim
        parts = shim.parts
        if shim._stale:
            shim._refresh()
        self._findings = parts.pipeline.observe(self._view(tokens))
        if self._findings:
            self._actions = shim._possible.of(parts.policy.decide(self._findings, time.time()))
            for action in self._actions:
                if action.kind is ActionKind.RETRY:
                    parts.pipeline.restart(action.sequence)

    def _view(self, tokens: NDArray[np.int32]) -> StepView:
        record = self._record
        handles, known = record.handles, record.starts + record.query_lengths
        if len(tokens) != len(handles):
            handles, known = handles[record.samples], known[record.samples]
            if len(tokens) != len(handles):
                raise ValueError(f"{len(tokens)} tokens for {len(handles)} rows that sample in step {record.step}")
        rows = self._shim._rows_of(handles)
        loops = self._shim._take_loops(record, len(handles))
        if loops is not None:
            self._shim._tally.take(rows.names, loops)
        scores = self._unchanged_scores(len(handles))
        return StepView(
            step=record.step,
            time=self._started,
            sequences=rows.names,
            tokens=tuple([(token,) for token in tokens.tolist()]),
            stats=self._stats,
            prompt_lengths=rows.prompts,
            output_lengths=known - rows.prompts,
            hidden=self._rows_in_cpu_memory(self._hidden, len(handles)),
            scores=scores,
            scores_final=self._final,
            redraw=None if scores is None or self._final else self._redraw(rows.names, scores),
            loops=loops,
        )

    def _unchanged_scores(self, rows: int) -> torch.Tensor | None:
        """In CPU memory only: reading a device would wait for it (design rule 5)."""
        scores = self._rows_in_cpu_memory(self._scores, rows)
        return scores if scores is not None and version_of(scores) == self._version else None

    @staticmethod
    def _rows_in_cpu_memory(matrix: torch.Tensor | None, rows: int) -> torch.Tensor | None:
        fits = matrix is not None and matrix.device.type == "cpu" and matrix.ndim == 2 and len(matrix) == rows
        return matrix if fits else None

    def _redraw(self, names: tuple[str, ...], scores: torch.Tensor) -> Callable[[int], int] | None:
        redraw = getattr(self._shim.adapter, "redraw", None)
        return None if redraw is None else lambda row: redraw(names[row], scores[row])

    def _finish(self, recorder: Recorder, tokens: NDArray[np.int32]) -> None:
        record, stats = self._record, self._stats
        record.fingerprints = NO_FINGERPRINTS if stats is None or stats.fingerprint is None else stats.fingerprint
        record.sampled, record.stats = as_token_ids(tokens), stats
        recorder.finish(record.step, record.fingerprints, record.sampled)

    def _tell(self, listener: StepListener) -> None:
        before = time.perf_counter()
        if (take := getattr(listener, "take_logits", None)) is not None:  # raw ones, of the rows that sample
            take(None if self._final else self._unchanged_scores(int(np.count_nonzero(self._record.samples))))
        listener.step_done(self._record, self._findings, self._actions)
        seconds = time.perf_counter() - before
        if seconds > LISTENER_SECONDS:
            raise TimeoutError(f"it held step {self._record.step} up for {seconds:.1f} s")

    def _publish(self) -> None:
        record, bus, now = self._record, self._shim.parts.bus, time.time()
        for action in self._actions:
            if action.kind is not ActionKind.OBSERVE:
                bus.publish(ActionTaken(action, now))
        seconds = time.perf_counter() - self._started
        bus.publish(measured(record, seconds, self._cpu * 1e-9, now))
