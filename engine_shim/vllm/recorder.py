"""The black box's recording half: a worker calls it around every step, and it never raises.

Contract with a worker class (threads: `before_step` and `ran` on the thread that runs the model, `after_step` on
whichever learns the outcome, in the order of the steps):

    recorder.refilling(blocks)                             # before blocks are overwritten between two steps
    recorder.before_step(scheduler_output)                 # before execute_model
    try: super().execute_model(scheduler_output)
    finally: recorder.ran()
    record = recorder.after_step(output.req_ids, output.sampled_token_ids, fingerprints)   # once they are known
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from checkengine.engine_shim.vllm.generator import GeneratorRing
from checkengine.engine_shim.vllm.kv_cache import PackedCache
from checkengine.engine_shim.vllm.ledger import Ledger, Scheduled
from checkengine.engine_shim.vllm.packed_undo import PackedUndo
from checkengine.replay.record import StepRecord
from checkengine.replay.recorder import Recorder
from checkengine.replay.settings import RecorderSettings

logger = logging.getLogger("checkengine.vllm")

MOST_WAITING = 64
"""Steps whose outcome is not known yet; vLLM has two."""


class StepRecorder:
    """`cache`: None where the KV memory cannot be read; steps are recorded then without it."""

    def __init__(
        self,
        block_size: int,
        cache: PackedCache | None = None,
        settings: RecorderSettings | None = None,
        generator_state: Callable[[], torch.Tensor] = torch.random.get_rng_state,
    ) -> None:
        chosen = settings or RecorderSettings()
        self.off = ""
        """Why nothing is recorded any more; empty while it is."""
        self.dropped = 0
        """Steps that could not be recorded."""
        self.recorder = Recorder(chosen.steps, chosen.bytes, chosen.checkpoint_every)
        self.undo: PackedUndo | None = None
        if cache is not None and chosen.undo_steps:
            self.undo = PackedUndo(cache, chosen.undo_steps, chosen.undo_bytes)
        self.generators = GeneratorRing(chosen.steps)
        self.cache = cache
        self.memory = threading.Lock()
        """Held while a step runs, and while memory is copied."""
        self.books = threading.Lock()
        """Held while an outcome is recorded, and while a capture reads what was."""
        self.ledger = Ledger(block_size)
        self._generator_state = generator_state
        self._waiting: deque[Scheduled | None] = deque()
        """None for a step with requests that are not known."""
        self._strangers = False
        """Requests run that began before messages were missed."""
        self._running = False

    @property
    def last_recorded(self) -> int:
        """The newest step with an outcome; -1 where there is none."""
        return self.ledger.last_step - sum(step is not None for step in self._waiting)

    def refilling(self, blocks: Sequence[int]) -> None:
        """Whole blocks are about to be overwritten (a quarantine's), which counts as the end of the step before: the
        next one runs on what was put there."""
        if self.off or self.undo is None or not blocks:
            return
        size = self.ledger.block_size
        whole = np.array(blocks, np.int32)[:, None] * size + np.arange(size, dtype=np.int32)
        with self.memory:
            self.undo.save(max(0, self.ledger.last_step), whole.ravel().astype(np.int32))

    def missed(self) -> None:
        """Steps ran that nobody told. Recording goes on as soon as nobody runs who began before."""
        if self.off or self._strangers:
            return
        logger.warning("messages of vLLM were missed: steps are recorded again when all requests of now have ended")
        with self.books:
            self._waiting.clear()
            self.ledger.forget_everybody()
        self._strangers = True

    def before_step(self, message: Any) -> None:
        """`message`: vLLM's SchedulerOutput, before the worker acts on it."""
        if self.off:
            return
        self.memory.acquire()
        self._running = True
        try:
            self._before(message)
        except Exception as error:
            self._switch_off(error)

    def ran(self) -> None:
        """The model has run; memory is at rest until the next step."""
        if self._running:
            self._running = False
            self.memory.release()

    def after_step(
        self, rows: list[str], sampled: Sequence[Sequence[int]], fingerprints: NDArray[np.uint64] | None = None
    ) -> StepRecord | None:
        """The outcome of the oldest step that waits for one, all aligned with the worker's rows; an empty entry of
        `sampled` where a row yields no token. None where nothing could be recorded."""
        with self.books:
            return None if self.off or not self._waiting else self._after(rows, sampled, fingerprints)

    def _after(
        self, rows: list[str], sampled: Sequence[Sequence[int]], fingerprints: NDArray[np.uint64] | None
    ) -> StepRecord | None:
        scheduled = self._waiting.popleft()
        if scheduled is None:
            return None
        try:
            record = self.ledger.record(scheduled, rows, sampled)
            if fingerprints is not None and len(fingerprints) == len(record.samples):
                chosen = fingerprints if len(record.sampled) == len(fingerprints) else fingerprints[record.samples]
                record.fingerprints = chosen.astype(np.uint64, copy=False)
        except Exception as error:
            self._switch_off(error)
            return None
        self.recorder.begin(record)
        self.recorder.finish(record.step, record.fingerprints, record.sampled)
        return record

    def lost_step(self) -> None:
        """The oldest step that waits has no outcome: it failed."""
        if self._waiting:
            self._waiting.popleft()
            self.dropped += 1

    def _before(self, message: Any) -> None:
        if self._strangers and not self._are_gone(message):
            return
        try:
            scheduled = self.ledger.schedule(message)
        except KeyError:
            # One that waited, or was preempted, while messages were missed.
            self.missed()
            self._are_gone(message)
            return
        step = self.ledger.last_step if scheduled is not None else self.ledger.last_step + 1
        if self.undo is not None and changes_memory(message):
            self.undo.clear(step + 1)
        if scheduled is None:
            return
        if self.undo is not None:
            self.undo.save(step, scheduled.slots)
        if scheduled.random:
            self.generators.note(step, self._generator_state())
        self._waiting.append(scheduled)
        if len(self._waiting) > MOST_WAITING:
            raise RuntimeError("steps run, and nobody tells their outcome")

    def _are_gone(self, message: Any) -> bool:
        """Whether the message names nobody who began before messages were missed; memory is unknown until then."""
        self._strangers = bool(message.scheduled_cached_reqs.req_ids)
        if self.undo is not None:
            self.undo.clear(self.ledger.last_step + 1)
        if self._strangers and message.total_num_scheduled_tokens:
            self.dropped += 1
            self._waiting.append(None)
        return not self._strangers

    def _switch_off(self, error: Exception) -> None:
        """The books are wrong from here on: vLLM's messages tell changes only."""
        self.off = f"{type(error).__name__}: {error}"
        self.dropped += 1
        logger.warning("vLLM's steps are not recorded any more (serving goes on): %s", self.off)


def changes_memory(message: Any) -> bool:
    """Beside the slots of the step: blocks zeroed or copied."""
    return bool(getattr(message, "new_block_ids_to_zero", None) or getattr(message, "kv_cache_block_copies", None))
