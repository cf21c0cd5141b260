"""The shim in transformers' continuous batching (`generate_batch`, `init_continuous_batching`).

Raw logits come from a forward hook; tokens where the batch processor fetches them, in front of its own bookkeeping. Its
names have no underscore but are not documented either: what is missing is told when the watch begins (`refuse_other`).
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from checkengine.engine_shim.shim import Shim
from checkengine.engine_shim.transformers import Numbers, UnwatchableError, sampling_of
from checkengine.guards.action import ActionKind
from checkengine.guards.step import SequenceStart
from checkengine.replay.record import StepRecord

logger = logging.getLogger("checkengine.watch")

Ints = NDArray[np.int32]
NO_TOKEN = -1
FORWARDS = 4
"""That may wait for their tokens; asynchronous batching has two under way."""


class WatchedBatching:
    """Follows one manager's batches. What fails in here ends the watching, and never the batch."""

    def __init__(self, shim: Shim, numbers: Numbers, sampling: dict[str, object]) -> None:
        self._shim, self._numbers, self._sampling = shim, numbers, sampling
        self._raw: deque[torch.Tensor] = deque(maxlen=FORWARDS)
        self._handles: dict[str, int] = {}
        self._names: dict[str, str] = {}
        self._broken = False

    def forward_done(self, keywords: dict[str, Any], logits: torch.Tensor) -> None:
        """From the forward hook, logits of shape (1, positions, vocabulary)."""
        if "logits_indices" in keywords:
            chosen = logits[0] if "logits_to_keep" in keywords else logits[0][keywords["logits_indices"]]
            self._raw.append(chosen)

    def attach(self, processor: Any) -> None:
        """In front of a new batch processor's fetching of tokens."""
        outputs = processor.inputs_and_outputs
        fetch: Callable[[], Any] = outputs.prepare_batch_update

        def prepare_batch_update() -> Any:
            requests, tokens, logprobs = fetch()
            raw = self._raw.popleft() if self._raw else None
            if not self._broken and raw is not None:
                try:
                    self._look(requests, tokens, raw)
                except Exception:
                    self._broken = True
                    logger.exception("watching continuous batching failed; it goes on without guards")
            return requests, tokens, logprobs

        outputs.prepare_batch_update = prepare_batch_update

    def end(self) -> None:
        with self._numbers.lock:
            self._shim.end(self._handles.values())
        self._handles.clear()

    def _look(self, requests: list[Any], tokens: list[int], raw: torch.Tensor) -> None:
        rows = [each for each in requests if each.has_new_token]
        places = [place for place, each in enumerate(rows) if each.state.status.name in ("PREFILLING", "DECODING")]
        if not places:
            return
        chosen = [rows[place] for place in places]
        with self._numbers.lock:
            with self._shim.step(self._record([each.state for each in chosen])) as step:
                step.logits(raw[: len(rows)] if len(places) == len(rows) else raw[places])
                actions = step.tokens(np.array([tokens[place] for place in places], np.int32))
            for action in actions:
                if action.kind is ActionKind.STOP:
                    self._stop(action.sequence, action.keep_tokens, chosen, places, tokens)
            self._forget(chosen, places, tokens)

    def _record(self, states: list[Any]) -> StepRecord:
        begun = tuple(self._begin(state) for state in states if state.request_id not in self._handles)
        known = [len(prompt_of(state)) + outputs_of(state) for state in states]
        last = [(state.generated_tokens or state.initial_tokens)[-1] for state in states]
        return StepRecord(
            step=self._numbers.step(),
            time_ns=time.time_ns(),
            handles=np.array([self._handles[state.request_id] for state in states], np.int32),
            query_lengths=np.ones(len(states), np.int32),
            starts=np.array(known, np.int32) - 1,
            samples=np.ones(len(states), np.bool_),
            token_ids=np.array(last, np.int32),
            begun=begun,
            kernel="generate_batch",
        )

    def _begin(self, state: Any) -> SequenceStart:
        (handle,) = self._numbers.handles(1)
        self._handles[state.request_id] = handle
        ends = tuple(sorted(state._eos_token_ids))
        return SequenceStart(handle, state.request_id, tuple(prompt_of(state)), self._sampling, ends)

    def _stop(self, name: str, keep: int, rows: list[Any], places: list[int], tokens: list[int]) -> None:
        """The request is full as of now: its token of this step is left out, and tokens from the first bad one on."""
        for future, place in zip(rows, places, strict=True):
            if future.state.request_id == name:
                state = future.state
                if not state.streaming:
                    kept = max(0, keep - (outputs_of(state) - state.generated_len()))
                    del state.generated_tokens[kept:], state.logprobs[kept:]
                state._new_tokens_limit = state.generated_len()
                tokens[place] = NO_TOKEN
                # Its last blocks would enter the prefix cache.
                future.complete_blocks = dict.fromkeys(future.complete_blocks, 0)

    def _forget(self, rows: list[Any], places: list[int], tokens: list[int]) -> None:
        for future, place in zip(rows, places, strict=True):
            state = future.state
            full = state.generated_len() + 1 >= state._new_tokens_limit
            if full or tokens[place] in state._eos_token_ids:
                self._shim.end([self._handles.pop(state.request_id)])


def prompt_of(state: Any) -> list[int]:
    """A request that lost its place comes back with what it had generated behind its prompt."""
    tokens: list[int] = state.initial_tokens
    return tokens[: state._true_initial_tokens] if state._true_initial_tokens else tokens


def outputs_of(state: Any) -> int:
    return len(state.initial_tokens) - len(prompt_of(state)) + int(state.generated_len())


def batch_sampling(config: Any) -> dict[str, object]:
    """As `generate()` would; per-request parameters are not told apart, so nothing is called plainly greedy."""
    return {**sampling_of(config), "allowed_token_ids": True}


def refuse_other(manager: Any) -> None:
    """Raises UnwatchableError where a batch cannot be followed."""
    settings = manager.continuous_batching_config
    compiled = settings.varlen_compile_config is not None or settings.decode_compile_config is not None
    if compiled or any(getattr(settings, "cuda_graph_booleans", (False,))):
        raise UnwatchableError(
            "checkengine.watch cannot follow compiled continuous batching or its CUDA graphs: switch them off in "
            "ContinuousBatchingConfig, or close the watch"
        )
    if not hasattr(manager, "_create_batch_processor"):
        raise UnwatchableError("this version of transformers makes its batches in another way: close the watch")
