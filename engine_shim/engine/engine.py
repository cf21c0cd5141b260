"""The embedded engine: continuous batching over paged memory, with the shim's seams."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from checkengine.engine_shim.adapter import Capabilities
from checkengine.engine_shim.engine import kernel_paged, sampler
from checkengine.engine_shim.engine.block_pool import BlockPool
from checkengine.engine_shim.engine.environment import environment_of
from checkengine.engine_shim.engine.kv_memory import KVMemory
from checkengine.engine_shim.engine.load import decoder, stop_tokens
from checkengine.engine_shim.engine.null_shim import GuardedStep, NullShim, Shim
from checkengine.engine_shim.engine.outlet import Outlet
from checkengine.engine_shim.engine.phases import Stopwatch
from checkengine.engine_shim.engine.probe import prepare
from checkengine.engine_shim.engine.request import GenerationRequest, IncidentNote, Output
from checkengine.engine_shim.engine.runner import ModelRunner
from checkengine.engine_shim.engine.sampler import SamplingRow, masked_tokens, sample, sample_rows
from checkengine.engine_shim.engine.scheduler import ScheduledStep, Scheduler
from checkengine.engine_shim.engine.sequence import LiveSequence
from checkengine.engine_shim.engine.stops import TextStream
from checkengine.engine_shim.engine.threads import decode_step, fastest_threads, usable_cores
from checkengine.engine_shim.engine.tier_seam import tiers_of
from checkengine.engine_shim.faults import describe_fault
from checkengine.engine_shim.faults.fault import Fault
from checkengine.engine_shim.settings import EngineSettings
from checkengine.guards.action import Action, ActionKind
from checkengine.replay.memory import MemoryImage, UndoEntry

Ints = NDArray[np.int32]

QUARANTINE_STEPS = 256
"""Quarantined blocks are refilled and free again at every step that this divides, and earlier where memory is short."""


class Undo(Protocol):
    def save_from(self, step: int, slots: Ints, memory: Mapping[str, torch.Tensor]) -> None: ...

    def entries(self, since_step: int, blocks: Ints | None = None, block_size: int = 1) -> Sequence[UndoEntry]: ...

    def clear(self, next_step: int) -> None: ...


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
        self.model, self.tokenizer = model, tokenizer
        self.shim: Shim = shim or NullShim()
        self.undo = undo
        self.faults = tuple(faults)
        self.memory = _memory_for(model, settings)
        # The last block is never handed out: an over-read past the last owned block stays inside the memory.
        self.pool = BlockPool(self.memory.blocks - 1)
        self.steps = 0
        self.tiers = tiers_of(self)
        self.runner = ModelRunner(model, self.memory, settings.kernel, self.faults)
        self.max_length = _max_length(model, settings, self.pool.blocks)
        self.scheduler = Scheduler(
            self.pool,
            block_size=settings.block_size,
            token_budget=settings.tokens_per_step,
            max_rows=settings.maximum_sequences,
            width=-(-self.max_length // settings.block_size),
            prefix_cache=settings.prefix_cache,
            on_pressure=self.release_quarantine,
            tiers=self.tiers,
        )
        self.guard_stop_reason = "content_filter"
        """Finish reason of a sequence that a guard stopped."""
        self._stop_tokens = stop_tokens(model, tokenizer)
        self._decode = decoder(tokenizer)
        self._live: dict[str, LiveSequence] = {}
        self._outlets: dict[str, Outlet] = {}
        self._actions: dict[str, Action] = {}
        self._next_handle = 0
        self._environment: dict[str, Any] | None = None
        kernel_paged.warm_up()
        sampler.warm_up()
        self.threads = settings.threads or fastest_threads(
            decode_step(model, self.memory.layout, settings.block_size), usable_cores()
        )
        torch.set_num_threads(self.threads)

    # Requests

    def submit(self, request: GenerationRequest) -> None:
        """Raises ValueError for a request that cannot run."""
        self._check(request)
        own = frozenset(request.sampling.stop_token_ids)
        stops = own if request.sampling.ignore_eos else own | self._stop_tokens
        sequence = LiveSequence(self._new_handle(), request, list(request.prompt_tokens), stops)
        self._live[request.name] = sequence
        self._outlets[request.name] = Outlet(
            lambda: TextStream(self._decode, request.sampling.stop), self.settings.hold_back_tokens
        )
        self.scheduler.add(sequence)

    def cancel(self, name: str) -> Output | None:
        """Ends a live request and frees its blocks; None where there is no such request."""
        sequence = self._live.get(name)
        return None if sequence is None else self._finish(sequence, "abort")

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

    def _check(self, request: GenerationRequest) -> None:
        tokens = request.prompt_tokens
        if request.name in self._live:
            raise ValueError(f"a request named {request.name!r} is running already")
        if not tokens:
            raise ValueError("the prompt is empty")
        if len(tokens) >= self.max_length:
            raise ValueError(
                f"the prompt has {len(tokens)} tokens; with room for one more, "
                f"{self.max_length - 1} is the most that this engine takes"
            )
        vocabulary = self.model.get_input_embeddings().num_embeddings
        if not 0 <= min(tokens) <= max(tokens) < vocabulary:
            raise ValueError(f"the prompt holds a token id outside 0 … {vocabulary - 1}")

    # A step

    def step(self) -> list[Output]:
        """Computes one batch and returns what it added, or nothing where there is no work."""
        if self.steps % QUARANTINE_STEPS == 0:
            self.release_quarantine()
        scheduled = self.scheduler.schedule(self.steps, self.settings.kernel)
        if scheduled is None:
            return []
        batch = scheduled.batch
        for fault in self.faults:
            fault.strikes(batch, self.memory)
        if self.undo is not None:
            self.undo.save_from(batch.step, batch.slots, self.memory.tensors)
        guarding = Stopwatch()
        with GuardedStep(self.shim, batch.record()) as step:
            logits = self.runner.forward(batch)
            with guarding:
                step.logits(logits)
            tokens = sample_rows(logits, self._sampling_rows(scheduled, logits), self.faults)
            with guarding:
                actions = step.tokens(tokens)
            for action in actions:
                self.apply(action)
        self.steps += 1
        return self._commit(scheduled, tokens, guarding.seconds)

    def _sampling_rows(self, scheduled: ScheduledStep, logits: torch.Tensor) -> list[SamplingRow]:
        rows: list[SamplingRow] = []
        for sequence, samples in zip(scheduled.sequences, scheduled.batch.samples, strict=True):
            if samples:
                request, output = sequence.request, sequence.output
                masked: tuple[int, ...] = ()
                if self.faults:
                    scores, position = logits[len(rows)], len(sequence.tokens)
                    masked = masked_tokens(self.faults, scores, position, output, sequence.stop_tokens)
                rows.append(SamplingRow(request.sampling, request.prompt_tokens, output, masked))
        return rows

    def _commit(self, scheduled: ScheduledStep, tokens: Ints, guard_seconds: float) -> list[Output]:
        outputs: list[Output | None] = []
        sampled = iter(tokens.tolist())
        counts, samples = scheduled.batch.query_lengths.tolist(), scheduled.batch.samples.tolist()
        for sequence, count, samples_now in zip(scheduled.sequences, counts, samples, strict=True):
            token = next(sampled) if samples_now else None
            self.scheduler.computed(sequence, count)
            sequence.phases.stepped(guard_seconds)
            action = self._actions.get(sequence.name)
            if action is not None:
                outputs.append(self._obey(sequence, action))
            elif token is not None:
                outputs.append(self._extend(sequence, token))
        self._actions.clear()
        return [output for output in outputs if output is not None]

    def _extend(self, sequence: LiveSequence, token: int) -> Output | None:
        sequence.tokens.append(token)
        outlet = self._outlets[sequence.name]
        ends = token in sequence.stop_tokens
        with sequence.phases.detokenise:
            outlet.push(token, silent=ends)
        if ends or outlet.stopped:
            return self._finish(sequence, "stop")
        if sequence.output_length >= sequence.request.sampling.max_tokens or len(sequence.tokens) >= self.max_length:
            return self._finish(sequence, "length")
        tokens, text = outlet.take()
        return Output(sequence.name, tokens, text, cached_tokens=sequence.cached_tokens) if tokens else None

    def _finish(self, sequence: LiveSequence, reason: str, note: IncidentNote | None = None) -> Output:
        self.scheduler.remove(sequence)
        del self._live[sequence.name]
        with sequence.phases.detokenise:
            tokens, text = self._outlets.pop(sequence.name).finish()
        return Output(sequence.name, tokens, text, reason, note, sequence.cached_tokens, sequence.phases.times())

    # Actions

    def apply(self, action: Action) -> None:
        """Quarantine acts at once, stop and retry when the step commits. Others are not the engine's business."""
        sequence = self._live.get(action.sequence)
        if sequence is None:
            return
        if action.kind is ActionKind.QUARANTINE:
            self.scheduler.poison(sequence)
        elif action.kind in (ActionKind.STOP, ActionKind.RETRY):
            self._actions[action.sequence] = action

    def _obey(self, sequence: LiveSequence, action: Action) -> Output | None:
        """In place of the token just sampled, which nobody sees."""
        outlet = self._outlets[sequence.name]
        keep = min(max(action.keep_tokens, outlet.handed), sequence.output_length)
        unseen = outlet.handed <= action.keep_tokens
        if action.kind is ActionKind.RETRY and unseen:
            self._retry(sequence, keep)
            return None
        outlet.rewind(sequence.output[:keep])
        return self._finish(sequence, self.guard_stop_reason, IncidentNote(action.finding, action.incident))

    def _retry(self, sequence: LiveSequence, keep: int) -> None:
        """From the last good token on clean memory, as a new sequence of the same name."""
        self.scheduler.poison(sequence)
        self.scheduler.remove(sequence)
        again = LiveSequence(
            self._new_handle(),
            sequence.request,
            sequence.tokens[: sequence.prompt_length + keep],
            sequence.stop_tokens,
            phases=sequence.phases,
        )
        self._outlets[sequence.name].rewind(again.output)
        self._live[sequence.name] = again
        self.scheduler.add(again, first=True)

    def sequence_of(self, block: int) -> str:
        """Name of a live sequence that holds the block; empty where none does."""
        handles = self.pool.owner(block).handles
        return next((live.name for live in self._live.values() if live.handle in handles), "")

    def close(self) -> None:
        """Ends the tiers' threads, and hands what is in host memory to the disk."""
        if self.tiers is not None:
            self.tiers.close()

    def release_quarantine(self) -> bool:
        """Refills quarantined blocks and makes them free; False where there are none."""
        blocks = self.pool.quarantined
        if not blocks:
            return False
        if self.undo is not None:
            size = self.settings.block_size
            slots = np.add.outer(np.array(blocks, np.int32) * size, np.arange(size, dtype=np.int32)).ravel()
            slots = slots.astype(np.int32)
            # A replay that starts at the coming step sees memory as refilled.
            self.undo.save_from(max(0, self.steps - 1), slots, self.memory.tensors)
        self.memory.fill_garbage(blocks, kind=self.settings.memory, scale=self.settings.garbage_scale, seed=self.steps)
        self.pool.pardon(blocks)
        return True

    # EngineAdapter

    def quarantined_fraction(self) -> float:
        """Share of the KV blocks that is in quarantine: the policy's limit counts on it."""
        return len(self.pool.quarantined) / self.pool.blocks

    def environment(self) -> Mapping[str, Any]:
        if self._environment is None:
            self._environment = environment_of(self.model)
        return self._environment | {
            "kernel": self.settings.kernel,
            "block_size": self.settings.block_size,
            "memory": self.settings.memory,
            "layout": {group.name: list(group.layers) for group in self.memory.layout.groups},
            "all_rows": mixes_rows(self.model),
            "faults": [describe_fault(fault) for fault in self.faults if fault.in_code],
        }

    def tokens(self, sequence: str) -> tuple[Sequence[int], Sequence[int]]:
        live = self._live[sequence]
        return live.request.prompt_tokens, live.output

    def redraw(self, sequence: str, logits: torch.Tensor) -> int:
        """The sequence's coming token from raw logits of shape (vocabulary,), by a sampler without planted faults."""
        live = self._live[sequence]
        return sample(logits.numpy(), live.request.sampling, live.request.prompt_tokens, live.output, len(live.tokens))

    def snapshot(self, blocks: Ints) -> MemoryImage:
        return self.memory.image(blocks)

    def undo_entries(self, since_step: int, blocks: Ints | None = None) -> Sequence[UndoEntry]:
        return () if self.undo is None else self.undo.entries(since_step, blocks, self.settings.block_size)

    def _new_handle(self) -> int:
        self._next_handle += 1
        return self._next_handle - 1


def mixes_rows(model: Any) -> bool:
    """True for mixture-of-experts models: which rows share an expert changes the shape of its products."""
    config = model.config.get_text_config()
    names = ("num_experts", "num_local_experts", "n_routed_experts")
    return any((getattr(config, name, 0) or 0) > 1 for name in names)


def _memory_for(model: Any, settings: EngineSettings) -> KVMemory:
    layout = prepare(model)
    blocks = settings.blocks or max(2, settings.kv_bytes // (layout.bytes_per_token() * settings.block_size))
    memory = KVMemory(layout, blocks + 1, settings.block_size)
    memory.fill_garbage(kind=settings.memory, scale=settings.garbage_scale)
    return memory


def _max_length(model: Any, settings: EngineSettings, blocks: int) -> int:
    limits: list[int | None] = [
        blocks * settings.block_size,
        settings.maximum_length,
        model.config.get_text_config().max_position_embeddings,
    ]
    return min(limit for limit in limits if limit)
