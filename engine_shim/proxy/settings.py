"""Settings of the proxy: the section `[proxy]` of checkengine.toml."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, SecretStr

from checkengine.engine_shim.proxy.routing.settings import RoutingSettings
from checkengine.guards.settings import Section


class ProxySettings(Section):
    """The sidecar proxy. Times are seconds."""

    host: str = Field("127.0.0.1", min_length=1)
    """An empty one would listen on every address."""
    port: int = Field(8100, ge=0, le=65535)
    """0 takes any free port."""
    admin_host: str = Field("127.0.0.1", min_length=1)
    admin_port: int | None = Field(8101, ge=0, le=65535)
    """Metrics, health and switches: on a port of their own, so that clients never reach them. None: none of these."""
    control_token: SecretStr | None = None
    """Bearer token of the switches; without one they answer to this machine only."""
    upstreams: tuple[str, ...] = ()
    """Addresses of OpenAI-compatible servers. A request never chooses another one."""
    upstream_token: SecretStr | None = None
    """Sent upstream as a bearer token in place of the client's own."""
    allow: tuple[str, ...] = ()
    """Paths that clients may ask for, for example "/v1/chat/completions" or "/v1/*"; empty allows every path."""
    annotate: Literal["off", "header", "body"] = "header"
    """Where findings are told to clients: `header` tells them of answers that are not streamed and leaves every body as
    it is; `body` adds a field `checkengine` too. A guard whose action is warn or stop always adds it."""
    finish_reason: str = Field("content_filter", min_length=1)
    """What a client reads where a guard stopped its answer. OpenAI's own values are stop, length, content_filter,
    tool_calls and function_call: clients may refuse others."""
    batch_chunks: int = Field(16, ge=1, le=1024)
    """Chunks of a stream that are handed to guards together: the most by which a stop comes late."""
    retries: int = Field(1, ge=0, le=8)
    """Other upstreams that are tried while nothing was sent to the client."""
    session_header: str = Field("x-session-id", pattern="^[A-Za-z0-9-]+$")
    """Header that names a conversation; without it `user` and the conversation's beginning do."""
    sessions: int = Field(10_000, ge=1)
    """Conversations remembered."""
    rescore_per_minute: float = Field(6.0, ge=0, le=600)
    """Flagged answers scored on another upstream, where one can (/tokenize and prompt_logprobs); 0: none."""
    connect_seconds: float = Field(5.0, gt=0)
    first_byte_seconds: float = Field(600.0, gt=0)
    """Until an upstream begins its answer."""
    stall_seconds: float = Field(120.0, gt=0)
    """Silence of an upstream in the middle of an answer."""
    client_seconds: float = Field(120.0, gt=0)
    """For which a client may read or send nothing while something waits for it."""
    drain_seconds: float = Field(30.0, ge=0)
    """How long running requests may go on after SIGTERM."""
    max_body_bytes: int = Field(64 * 2**20, ge=1024)
    """Larger request bodies are refused with 413."""
    max_header_bytes: int = Field(64 * 2**10, ge=1024)
    """Larger request heads are refused with 431."""
    max_answer_bytes: int = Field(32 * 2**20, ge=1024)
    """An answer that is not streamed and larger passes without guards, and so does a single event of a stream."""
    max_requests: int = Field(4096, ge=1)
    """Running at once; requests beyond are refused with 429."""
    routing: RoutingSettings = Field(default_factory=RoutingSettings)
    """Where there are several upstreams."""
