"""Requests into the embedded engine and outputs from it."""

from __future__ import annotations

from dataclasses import dataclass, field

from pydantic import BaseModel, ConfigDict, Field

from checkengine.engine_shim.engine.phases import PhaseTimes


class SamplingParameters(BaseModel):
    """Temperature 0 is greedy. top_k 0, top_p 1, min_p 0 and penalties 0 (repetition 1) are off."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    temperature: float = Field(1.0, ge=0, le=2)
    top_k: int = Field(0, ge=0)
    top_p: float = Field(1.0, gt=0, le=1)
    min_p: float = Field(0.0, ge=0, le=1)
    presence_penalty: float = Field(0.0, ge=-2, le=2)
    frequency_penalty: float = Field(0.0, ge=-2, le=2)
    repetition_penalty: float = Field(1.0, gt=0)
    seed: int = Field(0, ge=0, lt=2**63)
    """The random draw depends on (seed, position) only, so that batching does not change it."""
    max_tokens: int = Field(256, ge=1)
    stop: tuple[str, ...] = Field((), max_length=16)
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False


@dataclass(slots=True)
class GenerationRequest:
    """`name` is the public request id and is unique among live requests."""

    name: str
    prompt_tokens: list[int]
    sampling: SamplingParameters = field(default_factory=lambda: SamplingParameters())
    language: str | None = None
    arrived: float = 0.0
    """Monotonic seconds."""


@dataclass(frozen=True, slots=True)
class IncidentNote:
    """What a client may know of an incident: no evidence."""

    kind: str
    incident: str


@dataclass(frozen=True, slots=True)
class Output:
    """What one step added to one request."""

    name: str
    tokens: tuple[int, ...]
    text: str
    """Text that became certain with these tokens (whole characters, nothing that may belong to a stop string)."""
    finish: str | None = None
    """None while it runs; else stop, length, abort, or the guard-stop reason of the configuration."""
    note: IncidentNote | None = None
    cached_tokens: int = 0
    """Prompt tokens found in the prefix cache."""
    phases: PhaseTimes | None = None
    """With the last output."""
