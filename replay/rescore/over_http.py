"""Score on a sibling over an OpenAI-compatible API: nothing but /v1/completions is needed.

Two dialects: vLLM's and SGLang's `prompt_logprobs`, and the older `echo` with `logprobs`. `auto` asks for the first and
takes the second where the server refuses it. A server lists the likeliest tokens only (often at most 20, echo at
most 5): what it does not list is bounded in the token's favour.
"""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from checkengine.guards.errors import one_line
from checkengine.replay.rescore.scoring import Sampling, ScoreError, TokenScore, score_of_listed

Dialect = Literal["auto", "prompt_logprobs", "echo"]
LISTED = {"prompt_logprobs": 20, "echo": 5}
TIMEOUT_SECONDS = 120.0
VOCABULARY = 128_000
"""Assumed where nobody tells: it stands in one ratio, by its logarithm."""
MOST_BYTES = 1 << 28


class HttpScorer:
    """`url`: the server's address, with or without /v1. Prompts are sent as token ids: no template, no tokenizer."""

    def __init__(
        self,
        url: str,
        model: str,
        *,
        dialect: Dialect = "auto",
        token: str | None = None,
        vocabulary: int = VOCABULARY,
        timeout: float = TIMEOUT_SECONDS,
    ) -> None:
        if not url.startswith(("http://", "https://")):
            raise ScoreError(f"{url}: give http:// or https:// and the server's address")
        self.address = url.rstrip("/").removesuffix("/v1") + "/v1/completions"
        self.model, self.dialect, self.vocabulary = model, dialect, vocabulary
        self._token, self._timeout = token, timeout

    def score(self, prompt: Sequence[int], output: Sequence[int], sampling: Sampling) -> list[TokenScore]:
        """See Scorer."""
        tokens = [*prompt, *output]
        if not prompt or not output:
            raise ScoreError("a prompt and an output of at least one token each are needed to score")
        read = self._prompt_logprobs if self.dialect != "echo" else self._echo
        try:
            found = read(tokens)
        except ScoreError:
            if self.dialect != "auto":
                raise
            found = self._echo(tokens)
            self.dialect = "echo"
        else:
            self.dialect = "echo" if self.dialect == "echo" else "prompt_logprobs"
        if len(found) != len(tokens):
            raise ScoreError(f"{self.address} scored {len(found)} of {len(tokens)} tokens")
        return [self._score(token, own, sampling) for token, own in zip(output, found[len(prompt) :], strict=True)]

    def _score(self, token: int, listed: tuple[float, int | None, list[float]], sampling: Sampling) -> TokenScore:
        logprob, rank, likeliest = listed
        return score_of_listed(token, logprob, rank, likeliest, sampling, self.vocabulary)

    def _prompt_logprobs(self, tokens: list[int]) -> list[tuple[float, int | None, list[float]]]:
        body = {"prompt": tokens, "max_tokens": 1, "temperature": 0, "prompt_logprobs": LISTED["prompt_logprobs"]}
        choice = self._ask(body)
        entries = choice.get("prompt_logprobs")
        if not isinstance(entries, list):
            raise ScoreError(f"{self.address} answers without prompt_logprobs")
        return [self._of_entry(entry, token) for entry, token in zip(entries, tokens, strict=False)]

    def _of_entry(self, entry: Any, token: int) -> tuple[float, int | None, list[float]]:
        if entry is None:  # The first token of a prompt has no probability.
            return 0.0, None, [0.0]
        try:
            own = entry[str(token)]
            listed = sorted((float(each["logprob"]) for each in entry.values()), reverse=True)
            # The token's own entry comes besides the likeliest: behind them it is no neighbour of theirs.
            rank = int(own["rank"]) if own.get("rank") else None
            logprob = float(own["logprob"])
            if rank is not None and rank > len(listed):
                listed.remove(logprob)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ScoreError(f"{self.address}: an entry of prompt_logprobs lacks {one_line(str(error))}") from None
        return logprob, rank, listed

    def _echo(self, tokens: list[int]) -> list[tuple[float, int | None, list[float]]]:
        body = {"prompt": tokens, "max_tokens": 0, "temperature": 0, "echo": True, "logprobs": LISTED["echo"]}
        found: Any = self._ask(body).get("logprobs")
        try:
            own, top = found["token_logprobs"], found["top_logprobs"]
            return [self._of_echo(logprob, likeliest) for logprob, likeliest in zip(own, top, strict=True)]
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ScoreError(
                f"{self.address} answers echo without token_logprobs and top_logprobs ({one_line(str(error))}): "
                "it serves neither prompt_logprobs nor echo; score with --model instead"
            ) from None

    @staticmethod
    def _of_echo(logprob: float | None, likeliest: Mapping[str, float] | None) -> tuple[float, int | None, list[float]]:
        if logprob is None or not likeliest:
            return 0.0, None, [0.0]
        listed = sorted((float(value) for value in likeliest.values()), reverse=True)
        above = sum(value > logprob for value in listed)
        return float(logprob), above + 1 if above < len(listed) else None, listed

    def _ask(self, body: dict[str, Any]) -> dict[str, Any]:
        """The answer's only choice. ScoreError for whatever keeps it from coming."""
        payload = json.dumps({"model": self.model, **body}).encode()
        request = urllib.request.Request(self.address, payload, {"Content-Type": "application/json"})
        if self._token:
            request.add_header("Authorization", f"Bearer {self._token}")
        try:
            with urllib.request.urlopen(request, timeout=self._timeout) as answer:
                found = json.loads(answer.read(MOST_BYTES))
            choice = found["choices"][0]
        except urllib.error.HTTPError as error:
            words = one_line(error.read(2000).decode("utf-8", "replace"))
            raise ScoreError(f"{self.address} answers {error.code}: {words}") from None
        except (OSError, ValueError, LookupError, TypeError) as error:
            raise ScoreError(f"{self.address} cannot be asked: {one_line(str(error))}") from None
        if not isinstance(choice, dict):
            raise ScoreError(f"{self.address} answers a choice that is no object")
        return choice
