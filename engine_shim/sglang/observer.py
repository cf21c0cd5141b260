"""Guards in SGLang's scheduler process: logits in front of the grammar, tokens when they are committed.

SGLang calls `before_grammar` and `after_sample` around its sampler, copies what the latter returns to the host beside
its own results, and calls `consume` when tokens are committed, right before they are streamed.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from checkengine.detectors.logits.pending import DeviceRowStats
from checkengine.detectors.logits.rows import pending_row_stats, row_stats
from checkengine.detectors.logits.stats import Level, RowStats
from checkengine.engine_shim.adapter import Capabilities
from checkengine.engine_shim.parts import Part
from checkengine.engine_shim.possible import PossibleActions
from checkengine.engine_shim.shim import FULL_ROWS
from checkengine.guards.action import Action, ActionKind
from checkengine.guards.bus import EventBus
from checkengine.guards.events import ActionTaken, GuardDisabled
from checkengine.guards.pipeline import Pipeline
from checkengine.guards.policy import Policy
from checkengine.guards.step import SequenceStart, StepView
from checkengine.replay.refire import take

logger = logging.getLogger("sglang.checkengine")

NUMBERS = ("temperature", "top_k", "top_p", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty")
SWITCHES = ("logit_bias", "min_new_tokens", "json_schema", "regex", "ebnf", "structural_tag")


class LogitsObserver:
    """SGLang's SamplingObserver. No call raises: what fails is a step without statistics."""

    def __init__(self, guards: SchedulerGuards, level: Level | None = None) -> None:
        self._guards, self._level = guards, level
        self._measuring = Part("measuring logits in SGLang")

    def is_active(self, sampling_info: Any) -> bool:
        return not self._measuring.off

    def before_grammar(self, logits: torch.Tensor, sampling_info: Any) -> RowStats | DeviceRowStats | None:
        """Logits of shape (rows, vocabulary). None lets SGLang skip `after_sample`."""
        found: list[RowStats | DeviceRowStats] = []
        self._measuring.run(lambda: found.append(self._measure(logits)))
        return found[0] if found else None

    def after_sample(self, state: RowStats | DeviceRowStats, token_ids: torch.Tensor) -> DeviceReading:
        return DeviceReading(self._guards, state)

    def _measure(self, logits: torch.Tensor) -> RowStats | DeviceRowStats:
        level: Level = self._level or ("full" if len(logits) <= FULL_ROWS else "screen")
        return row_stats(logits, level) if logits.device.type == "cpu" else pending_row_stats(logits, level)


@dataclass(frozen=True, slots=True)
class DeviceReading:
    """SGLang's DeviceAuxiliaryOutput. Its copy to the host is under way already, on a stream of its own."""

    guards: SchedulerGuards
    stats: RowStats | DeviceRowStats

    def copy_to_host(self, copy_tensor: Callable[[torch.Tensor], torch.Tensor]) -> HostReading:
        return HostReading(self.guards, self.stats)


@dataclass(frozen=True, slots=True)
class HostReading:
    """SGLang's HostAuxiliaryOutput."""

    guards: SchedulerGuards
    stats: RowStats | DeviceRowStats

    def consume(self, batch: Any, commits: Sequence[Any]) -> None:
        """`commits` is aligned with `batch.reqs`; None where a request got no token (a prompt in chunks)."""
        self.guards.step(batch.reqs, commits, self.stats)


class SchedulerGuards:
    """`stopped_reason` makes SGLang's finish reason of a text; `stops` is False where ranks could decide apart."""

    def __init__(
        self,
        pipeline: Pipeline,
        policy: Policy,
        bus: EventBus,
        stopped_reason: Callable[[str], Any],
        *,
        stops: bool = True,
    ) -> None:
        self.pipeline, self.policy, self.bus = pipeline, policy, bus
        self._stopped_reason = stopped_reason
        self._possible = PossibleActions(Capabilities(stop=stops))
        self._guarding = Part("the guards in SGLang", self._tell_off)
        self._live: dict[str, Any] = {}
        self._handles = 0
        self._step = -1

    def step(self, requests: Sequence[Any], commits: Sequence[Any], stats: RowStats | DeviceRowStats) -> None:
        """Never raises."""
        self._guarding.run(self._guard, requests, commits, stats)

    def _guard(self, requests: Sequence[Any], commits: Sequence[Any], stats: RowStats | DeviceRowStats) -> None:
        self._step += 1
        self._forget_finished()
        rows = [row for row, commit in enumerate(commits) if commit is not None and len(commit.token_ids)]
        if not rows:
            return
        chosen = [requests[row] for row in rows]
        for request in chosen:
            if request.rid not in self._live:
                self._begin(request)
        tokens = [tuple(commits[row].token_ids) for row in rows]
        view = self._view(chosen, tokens, aligned(stats, rows, len(requests)))
        findings = self.pipeline.observe(view)
        for action in self._possible.of(self.policy.decide(findings, time.time())) if findings else ():
            self._apply(action)

    def _view(self, requests: Sequence[Any], tokens: Sequence[tuple[int, ...]], stats: RowStats | None) -> StepView:
        """Tokens are in `output_ids` already when SGLang tells of them."""
        before = [len(request.output_ids) - len(own) for request, own in zip(requests, tokens, strict=True)]
        return StepView(
            step=self._step,
            time=time.monotonic(),
            sequences=tuple([request.rid for request in requests]),
            tokens=tuple(tokens),
            stats=stats,
            prompt_lengths=np.array([len(request.origin_input_ids) for request in requests], np.int32),
            output_lengths=np.array(before, np.int32),
        )

    def _apply(self, action: Action) -> None:
        request = self._live.get(action.sequence)
        if action.kind is ActionKind.STOP and request is not None:
            # Never `finished_reason` itself: SGLang would drop the request without an answer.
            request.to_finish = self._stopped_reason(f"checkengine:{action.finding}")
            request.skip_radix_cache_insert = True
            logger.warning("checkengine: request %s is stopped: %s", action.sequence, action.finding)
        if action.kind is not ActionKind.OBSERVE:
            self.bus.publish(ActionTaken(action, time.time()))

    def _begin(self, request: Any) -> None:
        self._handles += 1
        self._live[request.rid] = request
        self.pipeline.begin(sequence_start(self._handles, request))
        self.policy.begin(request.rid, time.time())

    def _forget_finished(self) -> None:
        for name in [name for name, request in self._live.items() if request.finished()]:
            del self._live[name]
            self.pipeline.forget(name)
            self.policy.forget(name)

    def _tell_off(self, name: str, reason: str) -> None:
        self.bus.publish(GuardDisabled(name, reason, time.time()))


def aligned(stats: RowStats | DeviceRowStats, rows: list[int], requests: int) -> RowStats | None:
    """Of the chosen rows; None where there is not one row of logits a request."""
    found = stats if isinstance(stats, RowStats) else stats.collect()
    if len(found) != requests:
        return None
    return found if len(rows) == requests else take(found, np.array(rows))


def sequence_start(handle: int, request: Any) -> SequenceStart:
    parameters = request.sampling_params
    given = {name: getattr(parameters, name) for name in NUMBERS if getattr(parameters, name, None) is not None}
    masked = {"allowed_token_ids": True} if any(getattr(parameters, name, None) for name in SWITCHES) else {}
    ends = {*(request.eos_token_ids or ()), *(getattr(parameters, "stop_token_ids", None) or ())}
    return SequenceStart(
        handle=handle,
        name=request.rid,
        prompt_tokens=tuple(request.origin_input_ids),
        sampling={**given, **masked},
        stop_tokens=tuple(sorted(ends)),
        ignores_stop=bool(getattr(parameters, "ignore_eos", False)),
    )
