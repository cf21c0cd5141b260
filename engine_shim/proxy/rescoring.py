"""Would a healthy sibling have written it? A flagged answer is scored on another upstream, off the client's path.

A thread asks the sibling for the tokens (`/tokenize`, as vLLM has it) and for their probabilities (`prompt_logprobs` or
`echo`). Limits: text that is cut into tokens anew may be cut otherwise than it was written, so that only a clear
verdict counts. Servers without these addresses cannot score, and after a few failures in a row nobody is asked more.
"""

from __future__ import annotations

import json
import logging
import queue
import threading
import time
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from checkengine.engine_shim.proxy.requests import Operation, RequestFacts
from checkengine.engine_shim.proxy.upstream import Upstream
from checkengine.guards.errors import UserError, one_line
from checkengine.replay.rescore import Rescored, Sampling, rescored
from checkengine.replay.rescore.over_http import HttpScorer

logger = logging.getLogger("checkengine.proxy")
WAITING = 8
"""Answers that wait to be scored; further ones are dropped, and counted."""
FAILURES = 5
"""In a row, after which nobody is asked any more."""
TIMEOUT_SECONDS = 30.0
MOST_TOKENS = 8192
"""Of prompt and output: a sibling computes them all."""


@dataclass(frozen=True, slots=True)
class Flagged:
    """One answer with a finding. It is held in memory until it is scored, and nowhere else."""

    sequence: str
    incident: str
    facts: RequestFacts
    text: str
    sibling: Upstream


Score = Callable[[Flagged], Rescored]


class Rescorer(Protocol):
    """What the proxy needs of one."""

    @property
    def is_open(self) -> bool: ...

    def offer(self, flagged: Flagged) -> bool: ...


class Rescoring:
    """`told` gets each verdict, on the thread; `per_minute` bounds how many are scored."""

    def __init__(
        self,
        score: Score,
        told: Callable[[Flagged, str], None],
        per_minute: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.scored = self.dropped = self.failed = 0
        self._score, self._told, self._clock = score, told, clock
        self._every = 60.0 / per_minute
        self._next = 0.0
        self._in_a_row = 0
        self._queue: queue.Queue[Flagged | None] = queue.Queue(WAITING)
        self._thread = threading.Thread(target=self._run, name="checkengine-rescore", daemon=True)
        self._thread.start()

    @property
    def is_open(self) -> bool:
        """False where too many failed: then no text need be kept."""
        return self._in_a_row < FAILURES

    def offer(self, flagged: Flagged) -> bool:
        """Returns at once; False where the rate or the queue is full."""
        now = self._clock()
        if now < self._next or not self.is_open:
            self.dropped += 1
            return False
        try:
            self._queue.put_nowait(flagged)
        except queue.Full:
            self.dropped += 1
            return False
        self._next = now + self._every
        return True

    def close(self, timeout: float = TIMEOUT_SECONDS) -> None:
        try:
            self._queue.put(None, timeout=timeout)
        except queue.Full:
            return
        self._thread.join(timeout)

    def _run(self) -> None:
        while (flagged := self._queue.get()) is not None:
            try:
                found = self._score(flagged)
                self._told(flagged, str(found.outcome))
            except Exception as error:
                self._note_failure(error)
            else:
                self.scored += 1
                self._in_a_row = 0

    def _note_failure(self, error: Exception) -> None:
        self.failed += 1
        self._in_a_row += 1
        # Only messages of ours are shown: another may hold content.
        reason = one_line(str(error)) if isinstance(error, UserError) else type(error).__name__
        level = logging.WARNING if self._in_a_row in (1, FAILURES) else logging.DEBUG
        logger.log(level, "an answer could not be scored on a sibling: %s", reason)


def score_on_sibling(token: str | None) -> Score:
    def score(flagged: Flagged) -> Rescored:
        facts = flagged.facts
        prompt = tokens_of(flagged.sibling, prompt_question(facts), token)
        output = tokens_of(flagged.sibling, {**output_question(facts), "prompt": flagged.text}, token)
        if len(prompt) + len(output) > MOST_TOKENS:
            raise UserError(f"more than {MOST_TOKENS} tokens")
        scorer = HttpScorer(flagged.sibling.url, facts.model, token=token, timeout=TIMEOUT_SECONDS)
        sampling = Sampling.of(facts.body)
        scores = scorer.score(prompt, output, sampling)
        return rescored(flagged.sequence, scores, sampling, scorer.vocabulary)

    return score


def prompt_question(facts: RequestFacts) -> dict[str, Any]:
    if facts.operation is Operation.CHAT:
        asked: dict[str, Any] = {"messages": list(facts.messages), "add_generation_prompt": True}
        return {"model": facts.model, **asked, **({"tools": list(facts.tools)} if facts.tools else {})}
    return {"model": facts.model, "prompt": facts.prompt}


def output_question(facts: RequestFacts) -> dict[str, Any]:
    return {"model": facts.model, "add_special_tokens": False}


def tokens_of(upstream: Upstream, question: Mapping[str, Any], token: str | None) -> list[int]:
    """Raises UserError where the server does not tell."""
    request = urllib.request.Request(
        upstream.url + "/tokenize", json.dumps(question).encode(), {"Content-Type": "application/json"}
    )
    if token:
        request.add_header("Authorization", f"Bearer {token}")
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS) as answer:
            found = json.load(answer)["tokens"]
        return [int(each) for each in found]
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise UserError(f"{upstream.name} does not tokenize ({type(error).__name__})") from None
