"""A soak on the embedded engine: a fault in one of 10^5 steps, and the audit at work until it convicts."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar, cast

import numpy as np
import torch
from numpy.typing import NDArray

from checkengine.assemble import embed
from checkengine.config import Settings
from checkengine.engine_shim.engine.request import GenerationRequest, SamplingParameters
from checkengine.engine_shim.faults import FAULTS
from checkengine.engine_shim.faults.fault import Fault, Ints
from checkengine.engine_shim.faults.over_read import OverRead
from checkengine.engine_shim.settings import EngineSettings
from checkengine.guards.settings import GuardSettings, GuardsSettings, LogitsSettings
from checkengine.replay.settings import AuditSettings, CaptureSettings, SpoolSettings
from checkengine.tiny import WORDS, tiny_tokenizer

BLOCK, ROWS = 8, 4
RATE = 1e-5
VICTIMS = 1 - (1 - 1 / BLOCK) ** ROWS
"""Share of the steps that have a row at a page's start."""
GUARDS = [name for name, value in GuardsSettings() if isinstance(value, GuardSettings)]
"""All off: a random model's output is salad, and steps with a finding are not the audit's."""


class RareOverRead(OverRead):
    """In so many steps, by a hash of the batch's lengths, rows at a page's start read one slot past their end."""

    name: ClassVar[str] = "rare_over_read"

    def __init__(self, rate: float = RATE, seed: int = 0, block_size: int = BLOCK) -> None:
        super().__init__(block_size=block_size)
        self.rate, self.seed = rate, seed
        self.steps: set[int] = set()
        """In which it struck, by the live engine's count."""
        self.now: Callable[[], int] = lambda: -1

    def hits(self, lengths: Ints, query_lengths: Ints) -> NDArray[np.bool_]:
        victims: NDArray[np.bool_] = (lengths % self.block_size == 1) & super().hits(lengths, query_lengths)
        if not victims.any() or uniform(lengths, self.seed) >= self.rate / VICTIMS:
            return np.zeros(len(lengths), np.bool_)
        self.steps.add(self.now())
        return victims


def uniform(lengths: Ints, seed: int) -> float:
    """In [0, 1), of the lengths of a batch: the finaliser of splitmix64 (Steele, Lea, Flood 2014) over each."""
    mask, value = (1 << 64) - 1, seed + 1
    for length in lengths.tolist():
        value = (value * 0x9E3779B97F4A7C15 + length * 0xD1B54A32D192ED03) & mask
        value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & mask
        value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & mask
        value ^= value >> 31
    return (value >> 11) * 2.0**-53


@contextmanager
def known(fault: type[Fault]) -> Iterator[None]:
    """To executors, for a while: this fault lives in this benchmark alone."""
    faults = cast(dict[str, type[Fault]], FAULTS)
    faults[fault.name] = fault
    try:
        yield
    finally:
        del faults[fault.name]


@dataclass(frozen=True, slots=True)
class Soak:
    convicted: bool
    steps: int
    struck: int
    """Steps in which the fault struck."""
    audits: int
    audit_seconds: float
    """CPU."""
    seconds: float
    wrongly: int
    """Convictions of a step in which it did not strike."""


def soak(
    *,
    rate: float = RATE,
    seed: int = 0,
    cpu_share: float = 0.5,
    most_seconds: float = 300.0,
    most_steps: int = 10_000_000,
) -> Soak:
    """Serve random requests until the audit convicts, or for so long."""
    with known(RareOverRead):
        return _soak(RareOverRead(rate, seed), seed, cpu_share, most_seconds, most_steps)


def _soak(fault: RareOverRead, seed: int, cpu_share: float, most_seconds: float, most_steps: int) -> Soak:
    engine, shim = embed(smallest_model(), tiny_tokenizer(), settings_of(cpu_share), [fault])
    assert shim is not None
    fault.now = lambda: engine.steps
    audits = shim.assembly.audits
    assert audits is not None
    began, requests = time.monotonic(), endless(seed)
    while not audits.convictions and time.monotonic() - began < most_seconds and engine.steps < most_steps:
        while len(engine.scheduler.running) + len(engine.scheduler.waiting) < ROWS:
            engine.submit(next(requests))
        engine.step()
    seconds, steps = time.monotonic() - began, engine.steps
    shim.close()
    wrong = sum(conviction["step"] not in fault.steps for conviction in audits.convictions)
    return Soak(bool(audits.convictions), steps, len(fault.steps), audits.judged, audits.cpu_seconds, seconds, wrong)


def endless(seed: int) -> Iterator[GenerationRequest]:
    random, number = np.random.default_rng(seed), 0
    while True:
        prompt = random.integers(3, WORDS, int(random.integers(4, 40))).tolist()
        sampling = SamplingParameters(
            temperature=1.0, seed=number, max_tokens=int(random.integers(40, 200)), ignore_eos=True
        )
        yield GenerationRequest(f"r{number}", prompt, sampling)
        number += 1


def smallest_model() -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=WORDS,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=512,
        initializer_range=0.4,
        eos_token_id=None,
        bos_token_id=None,
    )
    return LlamaForCausalLM(config).eval()


def settings_of(cpu_share: float) -> Settings:
    return Settings(
        guards=GuardsSettings.model_validate({name: {"action": "off"} for name in GUARDS}),
        engine=EngineSettings(block_size=BLOCK, blocks=160, maximum_sequences=ROWS, threads=1),
        logits=LogitsSettings(level="full"),
        audit=AuditSettings(cpu_share=cpu_share, rows=2, waiting=8),
        capture=CaptureSettings(enabled=False),
        spool=SpoolSettings(enabled=False),
    )
