"""Bodies of the OpenAI-compatible endpoints. What is not known is refused, so that nothing is silently ignored."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationInfo, field_validator

from checkengine.detectors.language.codes import normal
from checkengine.engine_shim.engine.request import SamplingParameters
from checkengine.engine_shim.engine.server_errors import ApiError

StopString = Annotated[str, StringConstraints(min_length=1)]
MAX_STOPS = 16


class StreamOptions(BaseModel):
    model_config = ConfigDict(extra="forbid")

    include_usage: bool = False
    include_obfuscation: bool = False
    """Accepted and not done."""


class SamplingBody(BaseModel):
    """What both endpoints share. OpenAI's defaults; `top_k`, `min_p`, `repetition_penalty`, `ignore_eos`,
    `stop_token_ids` and `language` are extensions."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    model: str
    temperature: float | None = Field(None, ge=0, le=2)
    top_p: float | None = Field(None, gt=0, le=1)
    top_k: int | None = Field(None, ge=-1, lt=2**31)
    min_p: float | None = Field(None, ge=0, le=1)
    presence_penalty: float | None = Field(None, ge=-2, le=2)
    frequency_penalty: float | None = Field(None, ge=-2, le=2)
    repetition_penalty: float | None = Field(None, gt=0, le=10)
    seed: int | None = Field(None, ge=-(2**63), lt=2**63)
    max_tokens: int | None = Field(None, ge=1, lt=2**31)
    stop: StopString | list[StopString] | None = None
    stop_token_ids: list[Annotated[int, Field(ge=0, lt=2**31)]] | None = Field(None, max_length=64)
    ignore_eos: bool = False
    language: str | None = None
    n: int | None = Field(None, ge=1, le=128)
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    # Accepted without effect: they ask for nothing that this server could do differently.
    user: str | None = None
    metadata: dict[str, str] | None = None
    service_tier: str | None = None
    # Refused unless they ask for nothing
    logit_bias: dict[str, float] | None = None
    logprobs: bool | int | None = None

    @field_validator("stop")
    @classmethod
    def _few_stops(cls, value: str | list[str] | None) -> str | list[str] | None:
        if isinstance(value, list) and len(value) > MAX_STOPS:
            raise ValueError(f"at most {MAX_STOPS} stop strings")
        return value

    @field_validator("language")
    @classmethod
    def _known_language(cls, value: str | None) -> str | None:
        """The ISO 639-1 code, so that bundles and findings hold no free text."""
        if value is not None and (value := normal(value)) is None:
            raise ValueError("is no ISO 639-1 code, for example en or pt-BR; leave the parameter out")
        return value

    @field_validator("logit_bias", "logprobs", "top_logprobs", "echo", "suffix", "best_of", check_fields=False)
    @classmethod
    def _unsupported(cls, value: Any, info: ValidationInfo) -> Any:
        if value and not (info.field_name == "best_of" and value == 1):
            raise ValueError("this server does not support it; leave the parameter out")
        return value

    @property
    def choices(self) -> int:
        return self.n or 1

    @property
    def wants_usage(self) -> bool:
        return self.stream_options is not None and self.stream_options.include_usage

    def sampling(self, room: int, default_tokens: int) -> SamplingParameters:
        """Sampling parameters of the first choice; `room` is what the context leaves for output."""
        asked = self.output_limit
        wanted = {
            "temperature": self.temperature,
            "top_p": self.top_p,
            "top_k": max(0, self.top_k) if self.top_k is not None else None,
            "min_p": self.min_p,
            "presence_penalty": self.presence_penalty,
            "frequency_penalty": self.frequency_penalty,
            "repetition_penalty": self.repetition_penalty,
            "seed": self.seed % 2**63 if self.seed is not None else secrets.randbits(53),
            "max_tokens": asked if asked is not None else min(room, default_tokens),
            "stop": (self.stop,) if isinstance(self.stop, str) else self.stop,
            "stop_token_ids": self.stop_token_ids,
            "ignore_eos": self.ignore_eos,
        }
        return SamplingParameters.model_validate({name: value for name, value in wanted.items() if value is not None})

    @property
    def output_limit(self) -> int | None:
        return self.max_tokens


def choice_sampling(first: SamplingParameters, index: int) -> SamplingParameters:
    """Each choice draws with a seed of its own, so that n choices differ and yet repeat."""
    return first.model_copy(update={"seed": (first.seed + index) % 2**63})


class TextPart(BaseModel):
    model_config = ConfigDict(extra="ignore")

    type: Literal["text"]
    text: str


class CalledFunction(BaseModel):
    model_config = ConfigDict(extra="ignore")

    name: str
    arguments: str = "{}"
    """A string of JSON, as OpenAI sends it; what is no JSON goes to the model as it is."""


class ToolCall(BaseModel):
    model_config = ConfigDict(extra="ignore")

    id: str | None = None
    type: Literal["function"] = "function"
    function: CalledFunction


class ChatMessage(BaseModel):
    model_config = ConfigDict(extra="forbid")

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[TextPart] | None = None
    name: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None
    refusal: str | None = None

    @property
    def text(self) -> str:
        if isinstance(self.content, list):
            return "".join(part.text for part in self.content)
        return self.content or ""


class ToolFunction(BaseModel):
    model_config = ConfigDict(extra="allow")

    name: str = Field(min_length=1, max_length=128)
    description: str | None = None
    parameters: dict[str, Any] | None = None


class Tool(BaseModel):
    model_config = ConfigDict(extra="forbid")

    type: Literal["function"]
    function: ToolFunction


class ResponseFormat(BaseModel):
    model_config = ConfigDict(extra="forbid")

    type: Literal["text"]


class ChatBody(SamplingBody):
    """POST /v1/chat/completions."""

    messages: list[ChatMessage] = Field(min_length=1, max_length=4096)
    max_completion_tokens: int | None = Field(None, ge=1, lt=2**31)
    tools: list[Tool] | None = Field(None, max_length=128)
    tool_choice: Literal["none", "auto"] | None = None
    """`required` and a named tool are refused: nothing here constrains the output."""
    parallel_tool_calls: bool | None = None
    response_format: ResponseFormat | None = None
    top_logprobs: int | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    store: bool | None = None
    reasoning_effort: str | None = None

    @property
    def output_limit(self) -> int | None:
        return self.max_completion_tokens if self.max_completion_tokens is not None else self.max_tokens


class CompletionBody(SamplingBody):
    """POST /v1/completions."""

    prompt: str | list[str] | list[int] | list[list[int]]
    echo: bool | None = None
    suffix: str | None = None
    best_of: int | None = None

    @property
    def prompts(self) -> list[str | list[int]]:
        if isinstance(self.prompt, str):
            return [self.prompt]
        if not self.prompt:
            raise ApiError("prompt: give at least one prompt", param="prompt", code="invalid_value")
        if all(isinstance(part, int) for part in self.prompt):
            return [[part for part in self.prompt if isinstance(part, int)]]
        return [part for part in self.prompt if not isinstance(part, int)]


def trace_headers(headers: Mapping[str, str]) -> dict[str, str]:
    return {name: headers[name] for name in ("traceparent", "tracestate") if name in headers}
