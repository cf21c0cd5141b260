"""vLLM's scheduler messages without vLLM: random traffic with its own account of what each step should record."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Parameters:
    """Stands for vLLM's SamplingParams."""

    temperature: float = 0.0
    top_p: float = 1.0
    ignore_eos: bool = False
    stop_token_ids: list[int] | None = None


@dataclass
class NewRequest:
    req_id: str
    prompt_token_ids: list[int] | None
    block_ids: tuple[list[int], ...]
    num_computed_tokens: int
    sampling_params: Parameters | None = field(default_factory=Parameters)
    mm_features: list[Any] = field(default_factory=list)
    pooling_params: Any = None
    lora_request: Any = None
    prompt_embeds: Any = None


@dataclass
class CachedRequests:
    req_ids: list[str] = field(default_factory=list)
    resumed_req_ids: set[str] = field(default_factory=set)
    new_token_ids: list[list[int]] = field(default_factory=list)
    all_token_ids: dict[str, list[int]] = field(default_factory=dict)
    new_block_ids: list[tuple[list[int], ...] | None] = field(default_factory=list)
    num_computed_tokens: list[int] = field(default_factory=list)
    num_output_tokens: list[int] = field(default_factory=list)


@dataclass
class Message:
    """Stands for vLLM's SchedulerOutput; field names are vLLM's."""

    scheduled_new_reqs: list[NewRequest] = field(default_factory=list)
    scheduled_cached_reqs: CachedRequests = field(default_factory=CachedRequests)
    num_scheduled_tokens: dict[str, int] = field(default_factory=dict)
    total_num_scheduled_tokens: int = 0
    finished_req_ids: set[str] = field(default_factory=set)
    preempted_req_ids: set[str] | None = None


@dataclass
class Sequence:
    name: str
    tokens: list[int]
    prompt: int
    ends_at: int
    blocks: list[int] = field(default_factory=list)
    computed: int = 0
    state: str = "waiting"
    """waiting, running, preempted."""
    known: bool = False
    """The worker has its data."""
    temperature: float = 0.0


@dataclass
class Expected:
    """What the step's record should hold, by request."""

    inputs: dict[str, tuple[int, list[int]]] = field(default_factory=dict)
    """First position and tokens."""
    slots: dict[str, list[int]] = field(default_factory=dict)
    tables: dict[str, list[int]] = field(default_factory=dict)


class Traffic:
    """Requests come, are cut into chunks, preempted, resumed, aborted; names are used again."""

    def __init__(self, seed: int, block_size: int = 4, blocks: int = 40, budget: int = 12, rows: int = 6) -> None:
        self.random = random.Random(seed)
        self.block_size, self.budget, self.rows = block_size, budget, rows
        self.free = list(range(1, blocks))
        self.sequences: dict[str, Sequence] = {}
        self.finished: set[str] = set()
        self.preempted: set[str] = set()
        self.arrived = 0
        self._sampling: list[str] = []

    def step(self) -> tuple[Message, Expected]:
        self._arrive()
        self._preempt()
        message, expected, left = Message(finished_req_ids=self.finished), Expected(), self.budget
        message.preempted_req_ids, self.preempted = self.preempted, set()
        self.finished, self._sampling = set(), []
        for sequence in [s for s in self.sequences.values() if s.state == "running"] + [
            s for s in self.sequences.values() if s.state != "running"
        ]:
            if len(message.num_scheduled_tokens) < self.rows and left:
                left -= self._schedule(sequence, left, message, expected)
        message.total_num_scheduled_tokens = sum(message.num_scheduled_tokens.values())
        return message, expected

    def outcome(self, message: Message) -> tuple[list[str], list[list[int]]]:
        """The worker's rows in an order of its own, and what each samples."""
        rows = list(message.num_scheduled_tokens)
        self.random.shuffle(rows)
        sampled: list[list[int]] = []
        for name in rows:
            token = [self.random.randrange(1000)] if name in self._sampling else []
            sampled.append(token)
            sequence = self.sequences[name]
            sequence.tokens += token
            if token and len(sequence.tokens) >= sequence.ends_at:
                self._finish(name)
        return rows, sampled

    def abort(self) -> None:
        if self.sequences:
            self._finish(self.random.choice(sorted(self.sequences)))

    def drain(self) -> None:
        """Everybody's request is aborted."""
        for name in sorted(self.sequences):
            self._finish(name)

    def _arrive(self) -> None:
        while len(self.sequences) < self.rows + 2 and self.random.random() < 0.6:
            name, prompt = f"request-{self.arrived}", self.random.randrange(1, 18)
            self.arrived += 1
            tokens = [self.random.randrange(1000) for _ in range(prompt)]
            self.sequences[name] = Sequence(name, tokens, prompt, prompt + self.random.randrange(1, 15))
            self.sequences[name].temperature = self.random.choice([0.0, 0.8])

    def _preempt(self) -> None:
        running = [sequence for sequence in self.sequences.values() if sequence.state == "running"]
        if len(running) > 2 and self.random.random() < 0.1:
            victim = self.random.choice(running)
            self.free += victim.blocks
            self.random.shuffle(self.free)
            victim.blocks, victim.computed, victim.state = [], 0, "preempted"
            self.preempted.add(victim.name)

    def _finish(self, name: str) -> None:
        sequence = self.sequences.pop(name)
        self.free += sequence.blocks
        if sequence.known:
            self.finished.add(name)

    def _schedule(self, sequence: Sequence, left: int, message: Message, expected: Expected) -> int:
        count = min(left, len(sequence.tokens) - sequence.computed)
        start, need = sequence.computed, -(-(sequence.computed + count) // self.block_size) - len(sequence.blocks)
        if need > len(self.free):
            return 0
        new = [self.free.pop(0) for _ in range(need)]
        sequence.blocks += new
        self._tell(sequence, new, message)
        message.num_scheduled_tokens[sequence.name] = count
        positions = range(start, start + count)
        size = self.block_size
        expected.inputs[sequence.name] = start, sequence.tokens[start : start + count]
        expected.slots[sequence.name] = [sequence.blocks[p // size] * size + p % size for p in positions]
        expected.tables[sequence.name] = list(sequence.blocks)
        sequence.computed += count
        sequence.state = "running"
        if sequence.computed == len(sequence.tokens):
            self._sampling.append(sequence.name)
        return count

    def _tell(self, sequence: Sequence, new: list[int], message: Message) -> None:
        if not sequence.known:
            sequence.known = True
            message.scheduled_new_reqs.append(
                NewRequest(
                    sequence.name,
                    sequence.tokens[: sequence.prompt],
                    (list(new),),
                    sequence.computed,
                    Parameters(sequence.temperature),
                )
            )
            return
        cached = message.scheduled_cached_reqs
        cached.req_ids.append(sequence.name)
        if sequence.state == "preempted":
            cached.resumed_req_ids.add(sequence.name)
        cached.new_block_ids.append((list(new),) if new else None)
        cached.num_computed_tokens.append(sequence.computed)
        cached.num_output_tokens.append(len(sequence.tokens) - sequence.prompt)
