"""Settings of the embedded engine and its server: the sections `[engine]` and `[server]` of checkengine.toml."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, SecretStr

from checkengine.engine_shim.tier_settings import TierSettings
from checkengine.guards.settings import Section


class EngineSettings(Section):
    """The embedded engine."""

    block_size: int = Field(32, ge=1, le=1024)
    """Tokens in a KV block."""
    blocks: int | None = Field(None, ge=2)
    """KV blocks in all; without it as many as fit into kv_bytes."""
    kv_bytes: int = Field(768 * 2**20, ge=2**16)
    tokens_per_step: int = Field(256, ge=1)
    """Budget of one step, prefill chunks and decode together."""
    maximum_sequences: int = Field(32, ge=1)
    """Sequences in one step."""
    maximum_length: int | None = Field(None, ge=2)
    """Tokens of one sequence, prompt and output; without it what the model allows. Never more than the memory holds."""
    threads: int | None = Field(None, ge=1)
    """torch's threads; without it as many as are fastest, measured at the start on up to all cores or
    OMP_NUM_THREADS. Numbers differ in bits between counts: fix it to compare runs bit for bit."""
    kernel: Literal["paged", "reference"] = "paged"
    dtype: Literal["float32", "float64", "bfloat16"] = "float32"
    memory: Literal["recycled", "loud"] = "recycled"
    """What unowned slots hold: noise, as a pool of recycled memory does; or `loud`, a large finite pattern, for canary
    replicas."""
    garbage_scale: float = Field(5.0, ge=0)
    """Standard deviation of the noise in recycled memory."""
    prefix_cache: bool = True
    tiers: TierSettings = TierSettings()
    hold_back_tokens: int = Field(0, ge=0, le=64)
    """The newest tokens of a running sequence stay in the engine, so that a retry can still drop them."""


class ServerSettings(Section):
    """The OpenAI-compatible server."""

    host: str = Field("127.0.0.1", min_length=1)
    """An empty one would listen on every address."""
    port: int = Field(8000, ge=0, le=65535)
    """0 takes any free port."""
    finish_reason: str = Field("content_filter", min_length=1)
    """What a client reads where a guard stopped its sequence. OpenAI's own values are stop, length, content_filter,
    tool_calls and function_call: gateways may log or refuse others."""
    drain_seconds: float = Field(30.0, ge=0)
    """How long running requests may go on after SIGTERM."""
    max_body_bytes: int = Field(4 * 2**20, ge=1024)
    """Larger request bodies are refused with 413."""
    max_requests: int = Field(1024, ge=1)
    """Sequences running or waiting; requests beyond are refused with 429."""
    max_choices: int = Field(4, ge=1, le=128)
    """Largest `n` of one request."""
    control_token: SecretStr | None = None
    """Bearer token of the control endpoints; without one they answer to this machine only."""
