"""Sends one request to an OpenAI-compatible server, streams the answer and keeps the times of its pieces."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Literal

import aiohttp

from checkengine.guards.errors import UserError, one_line

Endpoint = Literal["chat", "completions"]
PATHS: dict[Endpoint, str] = {"chat": "/v1/chat/completions", "completions": "/v1/completions"}
OUTPUTS = ("content", "reasoning_content", "reasoning", "tool_calls")
LONGEST_LINE = 1 << 22
"""Bytes; aiohttp refuses lines of its default of 128 KiB."""


@dataclass(slots=True)
class Sample:
    """What became of one request. Times are seconds from the start of the run."""

    intended: float
    """When it was meant to be sent: what every latency counts from."""
    sent: float
    pieces: list[float] = field(default_factory=list)
    """When each piece of output came."""
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    output_tokens: int | None = None
    error: str | None = None

    @property
    def ttft(self) -> float | None:
        return self.pieces[0] - self.intended if self.pieces else None

    @property
    def gaps(self) -> list[float]:
        return [later - earlier for earlier, later in pairwise(self.pieces)]

    @property
    def tbt(self) -> float | None:
        """Mean seconds between tokens; None for fewer than two. By the server's count of tokens where it gives one: a
        piece may hold several."""
        tokens = max(len(self.pieces), self.output_tokens or 0)
        return (self.pieces[-1] - self.pieces[0]) / (tokens - 1) if len(self.pieces) > 1 else None


class LoadClient:
    """`url`: the server's address, with or without /v1. `extra` goes into every body."""

    def __init__(
        self,
        session: aiohttp.ClientSession,
        url: str,
        model: str,
        *,
        endpoint: Endpoint = "chat",
        token: str | None = None,
        timeout: float = 600.0,
        extra: Mapping[str, Any] | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._session, self.model, self._endpoint = session, model, endpoint
        self.address = address_of(url)
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._timeout, self._extra, self._clock = timeout, dict(extra or {}), clock

    async def send(self, prompt: str, tokens: int, start: float, intended: float) -> Sample:
        """`start`: the clock at second 0 of the run. Never raises but for cancellation: a failure is in the sample."""
        sample = Sample(intended, self._clock() - start)
        try:
            await asyncio.wait_for(self._stream(prompt, tokens, sample, start), self._timeout)
        except TimeoutError:
            sample.error = f"no end within {self._timeout:g} s"
        except (aiohttp.ClientError, OSError, ValueError) as error:
            sample.error = f"{type(error).__name__}: {one_line(str(error))[:200]}"
        if sample.error is None and not sample.pieces:
            sample.error = "an answer without output"
        return sample

    async def _stream(self, prompt: str, tokens: int, sample: Sample, start: float) -> None:
        url = self.address + PATHS[self._endpoint]
        async with self._session.post(url, json=self._body(prompt, tokens), headers=self._headers) as answer:
            if answer.status != 200:
                sample.error = f"{answer.status}: {one_line((await answer.text())[:200])}"
                return
            async for line in answer.content:
                if line.startswith(b"data:"):
                    self._read(line[5:].strip(), sample, self._clock() - start)

    def _read(self, data: bytes, sample: Sample, now: float) -> None:
        if data == b"[DONE]":
            return
        chunk = json.loads(data)
        if chunk.get("error"):
            sample.error = one_line(str(chunk["error"]))[:200]
        if any(_has_output(choice) for choice in chunk.get("choices") or ()):
            sample.pieces.append(now)
        usage = chunk.get("usage") or {}
        sample.prompt_tokens = usage.get("prompt_tokens", sample.prompt_tokens)
        sample.output_tokens = usage.get("completion_tokens", sample.output_tokens)
        sample.cached_tokens = (usage.get("prompt_tokens_details") or {}).get("cached_tokens", sample.cached_tokens)

    def _body(self, prompt: str, tokens: int) -> dict[str, Any]:
        asked: dict[str, Any] = {"prompt": prompt}
        if self._endpoint == "chat":
            asked = {"messages": [{"role": "user", "content": prompt}]}
        body = {"model": self.model, **asked, "max_tokens": tokens, "temperature": 0, "stream": True}
        return body | {"stream_options": {"include_usage": True}} | self._extra


def address_of(url: str) -> str:
    if not url.startswith(("http://", "https://")):
        raise UserError(f"--url {url}: give http:// or https:// and the server's address")
    return url.rstrip("/").removesuffix("/v1")


async def listed_models(session: aiohttp.ClientSession, url: str, token: str | None) -> list[str]:
    """UserError where nobody answers."""
    address = address_of(url) + "/v1/models"
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    try:
        async with session.get(address, headers=headers) as answer:
            if answer.status in (401, 403):
                raise UserError(f"{address} answers {answer.status}: give --token or CHECKENGINE_API_KEY")
            found = await answer.json(content_type=None)
            return [str(each["id"]) for each in found["data"]]
    except (aiohttp.ClientError, OSError, TimeoutError) as error:
        raise UserError(f"no server answers at {address}: {one_line(str(error) or type(error).__name__)}") from None
    except (ValueError, LookupError, TypeError):
        raise UserError(f"{address} lists no models: is this an OpenAI-compatible server?") from None


def _has_output(choice: Mapping[str, Any]) -> bool:
    delta = choice.get("delta") or {}
    return bool(choice.get("text")) or any(delta.get(name) for name in OUTPUTS)
