"""The embedded engine: continuous batching over paged memory, with the shim's seams."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from checkengine.engine_shim.adapter import Capabilities
from checkengine.engine_shim.engine import sampler
from checkengine.engine_shim.engine.block_pool import BlockPool
from checkengine.engine_shim.engine.kv_memory import KVMemory
from checkengine.engine_shim.engine.load import config_digest, stop_tokens
from checkengine.engine_shim.engine.null_shim import NullShim, Shim
from checkengine.engine_shim.engine.probe import prepare
from checkengine.engine_shim.engine.request import GenerationRequest, IncidentNote, Output
from checkengine.engine_shim.engine.runner import ModelRunner
from checkengine.engine_shim.engine.scheduler import ScheduledStep, Scheduler
from checkengine.engine_shim.engine.sequence import LiveSequence
from checkengine.engine_shim.engine.stops import TextStream
from checkengine.engine_shim.faults.fault import Fault
from checkengine.engine_shim.settings import EngineSettings
from checkengine.guards.action import Action, ActionKind
from checkengine.replay.memory import MemoryImage, UndoEntry

logger = logging.getLogger(__name__)
Ints = NDArray[np.int32]


class Undo(Protocol):
    def save(self, step: int, slots: Ints, tensors: Mapping[str, torch.Tensor]) -> None: ...

    def entries(self, since_step: int) -> Sequence[UndoEntry]: ...


@dataclass(frozen=True, slots=True)
class EngineStats:
    steps: int
    waiting: int
    running: int
    blocks: int
    free_blocks: int
    """Free and evictable."""
    quarantined_blocks: int
    prefix_hit_tokens: int
    preemptions: int


class Engine:
    """One thread drives it: submit, step, cancel. Implements EngineAdapter for the shim."""

    capabilities = Capabilities(stop=True, retry=True, quarantine=True, snapshot=True)

    def __init__(
        self,
        model: Any,
        tokenizer: Any | None,
        settings: EngineSettings | None = None,
        shim: Shim | None = None,
        undo: Undo | None = None,
        faults: Sequence[Fault] = (),
    ) -> None:
        self.settings = settings = settings or EngineSettings()
        torch.set_num_threads(settings.threads or min(2, os.cpu_count() or 1))
        self.model, self.tokenizer = model, tokenizer
        self.shim: Shim = shim or NullShim()
        self.undo = undo
        self.faults = tuple(faults)
        layout = prepare(model)
        blocks = settings.blocks or max(2, settings.kv_bytes // (layout.bytes_per_token() * settings.block_size))
        self.memory = KVMemory(layout, blocks, settings.block_size)
        self.memory.fill_garbage(kind=settings.memory, scale=settings.garbage_scale)
        self.runner = ModelRunner(model, self.memory, settings.kernel, self.faults)
        self.pool = BlockPool(blocks)
        self.max_length = _max_length(model, settings, blocks)
        self.scheduler = Scheduler(
            self.pool,
            block_size=settings.block_size,
            token_budget=settings.tokens_per_step,
            max_rows=settings.maximum_sequences,
            width=-(-self.max_length // settings.block_size),
            prefix_cache=settings.prefix_cache,
        )
        self.steps = 0
        self._stop_tokens = stop_tokens(model, tokenizer)
        self._live: dict[str, LiveSequence] = {}
        self._texts: dict[str, TextStream] = {}
        self._actions: dict[str, Action] = {}
        self._next_handle = 0
        sampler.warm_up()

    # Requests

    def submit(self, request: GenerationRequest) -> None:
        """Raises ValueError for a request that cannot run."""
        if request.name in self._live:
            raise ValueError(f"a request named {request.name!r} is running already")
        if not request.prompt_tokens:
            raise ValueError("the prompt is empty")
        if len(request.prompt_tokens) >= self.max_length:
            raise ValueError(
                f"the prompt has {len(request.prompt_tokens)} tokens; with room for one more, "
                f"{self.max_length - 1} is the most that this engine takes"
            )
        own = frozenset(request.sampling.stop_token_ids)
        stops = own if request.sampling.ignore_eos else own | self._stop_tokens
        sequence = LiveSequence(self._new_handle(), request, list(request.prompt_tokens), stops)
        self._live[request.name] = sequence
        self._texts[request.name] = TextStream(self._decode, request.sampling.stop)
        self.scheduler.add(sequence)

    def cancel(self, name: str) -> Output | None:
        """Ends a live request and frees its blocks; None where there is no such request."""
        sequence = self._live.get(name)
        return None if sequence is None else self._finish(sequence, "abort", (), "")

    @property
    def has_work(self) -> bool:
        return bool(self._live)

    @property
    def stats(self) -> EngineStats:
        return EngineStats(
            steps=self.steps,
            waiting=len(self.scheduler.waiting),
            running=len(self.scheduler.running),
            blocks=self.pool.blocks,
            free_blocks=self.pool.free + self.scheduler.cache.evictable,
            quarantined_blocks=len(self.pool.quarantined),
            prefix_hit_tokens=self.scheduler.cache.hit_tokens,
            preemptions=self.scheduler.preemptions,
        )

    # A step

    def step(self) -> list[Output]:
        """Computes one batch and returns what it added, or nothing where there is no work."""
        scheduled = self.scheduler.schedule(self.steps, self.settings.kernel)
        if scheduled is None:
            return []
        batch = scheduled.batch
        if self.undo is not None:
            self.undo.save(batch.step, batch.slots, self.memory.gather(batch.slots))
        with self.shim.step(batch.record()) as step:
            logits = self.runner.forward(batch)
            step.logits(logits)
            tokens = self._sample(scheduled, logits)
            for action in step.tokens(tokens):
                self.apply(action)
        self.steps += 1
        return self._commit(scheduled, tokens)

    def _sample(self, scheduled: ScheduledStep, logits: torch.Tensor) -> Ints:
        rows = logits.numpy()
        sampling = [sequence for sequence, samples in zip(scheduled.sequences, scheduled.batch.samples) if samples]
        tokens = np.empty(len(sampling), np.int32)
        for i, sequence in enumerate(sampling):
            request = sequence.request
            tokens[i] = (
                np.argmax(rows[i])
                if sampler.is_plain_greedy(request.sampling)
                else sampler.sample(
                    rows[i], request.sampling, request.prompt_tokens, sequence.output, len(sequence.tokens)
                )
            )
        return tokens

    def _commit(self, scheduled: ScheduledStep, tokens: Ints) -> list[Output]:
        outputs: list[Output] = []
        sampled = iter(tokens.tolist())
        for sequence, count, samples in zip(
            scheduled.sequences, scheduled.batch.query_lengths.tolist(), scheduled.batch.samples.tolist()
        ):
            action = self._actions.get(sequence.name)
            token = next(sampled) if samples else None
            self.scheduler.computed(sequence, count)
            if action is not None and action.kind in (ActionKind.STOP, ActionKind.RETRY):
                note = IncidentNote(action.finding, action.incident)
                outputs.append(self._finish(sequence, self.settings.guard_stop_reason, (), "", note))
            elif token is not None:
                outputs.append(self._extend(sequence, token))
        self._actions.clear()
        return outputs

    def _extend(self, sequence: LiveSequence, token: int) -> Output:
        sequence.tokens.append(token)
        stream = self._texts[sequence.name]
        if token in sequence.stop_tokens and all(fault.honours_stop(sequence.output) for fault in self.faults):
            return self._finish(sequence, "stop", (token,), "")
        text = stream.push(token)
        if stream.stopped:
            return self._finish(sequence, "stop", (token,), text)
        if sequence.output_length >= sequence.request.sampling.max_tokens or len(sequence.tokens) >= self.max_length:
            return self._finish(sequence, "length", (token,), text)
        return Output(sequence.name, (token,), text, cached_tokens=sequence.cached_tokens)

    def _finish(
        self,
        sequence: LiveSequence,
        reason: str,
        tokens: tuple[int, ...],
        text: str,
        note: IncidentNote | None = None,
    ) -> Output:
        self.scheduler.remove(sequence)
        del self._live[sequence.name]
        text += self._texts.pop(sequence.name).finish()
        return Output(sequence.name, tokens, text, reason, note, sequence.cached_tokens)

    # EngineAdapter

    def apply(self, action: Action) -> None:
        if action.sequence in self._live:
            self._actions[action.sequence] = action

    def environment(self) -> Mapping[str, Any]:
        return {"config_digest": config_digest(self.model)}

    def tokens(self, sequence: str) -> tuple[Sequence[int], Sequence[int]]:
        live = self._live[sequence]
        return live.request.prompt_tokens, live.output

    def snapshot(self, blocks: Ints) -> MemoryImage:
        return self.memory.image(blocks)

    def undo_entries(self, since_step: int) -> Sequence[UndoEntry]:
        return () if self.undo is None else self.undo.entries(since_step)

    def readable_blocks(self, sequences: Sequence[str]) -> Ints:
        """Their blocks, and the block before and after each."""
        own = {block for name in sequences if name in self._live for block in self._live[name].blocks}
        near = {block + shift for block in own for shift in (-1, 0, 1)}
        return np.array(sorted(block for block in near if 0 <= block < self.pool.blocks), np.int32)

    def _new_handle(self) -> int:
        self._next_handle += 1
        return self._next_handle - 1

    def _decode(self, tokens: Sequence[int]) -> str:
        if self.tokenizer is None:
            return ""
        text: str = self.tokenizer.decode(tokens, skip_special_tokens=True)
        return text


def _max_length(model: Any, settings: EngineSettings, blocks: int) -> int:
    limits = [
        blocks * settings.block_size,
        settings.maximum_length,
        model.config.get_text_config().max_position_embeddings,
    ]
    return min(limit for limit in limits if limit)
