"""vLLM's scheduler with guards: workers observe, this decides. It stops single requests and quarantines their blocks.

Only vLLM's own interface is overridden (`schedule`, `update_from_output`, `finish_requests`); nothing is patched.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from typing import Any, Protocol

from checkengine.engine_shim.adapter import Capabilities
from checkengine.engine_shim.parts import Part
from checkengine.engine_shim.possible import PossibleActions
from checkengine.engine_shim.vllm.carried import ToWorkers, attach, orders_of, reading_of
from checkengine.engine_shim.vllm.quarantine import Quarantine, flat
from checkengine.engine_shim.vllm.request_ends import Followed, ended
from checkengine.engine_shim.vllm.stopping import Stop, end_in
from checkengine.engine_shim.vllm.switch_file import SIDECAR, SwitchFile
from checkengine.engine_shim.vllm.views import Produced, produced, sequence_start, step_view
from checkengine.guards.action import Action, ActionKind
from checkengine.guards.bus import EventBus
from checkengine.guards.errors import UserError, one_line
from checkengine.guards.events import ActionTaken, GuardDisabled, StepMeasured
from checkengine.guards.finding import Finding
from checkengine.guards.pipeline import Pipeline
from checkengine.guards.policy import Policy
from checkengine.guards.step import StepView

logger = logging.getLogger("vllm.checkengine")

CAPABILITIES = Capabilities(stop=True, quarantine=True)
MOST_SHOWN = 120
"""Letters of a request's name in a line of the log."""
MOST_MEASURED = 32
"""Steps whose measures wait to be told together: each telling wakes a thread that then wants the interpreter while the
next step runs."""


class SchedulerListener(Protocol):
    """Sees each guarded step in the engine core, and may order something from the workers with the next message."""

    def step_done(self, view: StepView, findings: list[Finding], actions: list[Action]) -> None: ...

    def orders(self) -> tuple[Any, ...]:
        """For the workers, with the next message (`ToWorkers.capture`)."""


class SchedulerGuards:
    """What a guarded scheduler keeps. No call of it raises."""

    def __init__(
        self,
        pipeline: Pipeline,
        policy: Policy,
        bus: EventBus,
        quarantine: Quarantine,
        listeners: Iterable[SchedulerListener] = (),
        closers: Iterable[Any] = (),
        began: Callable[[Any], None] = lambda request: None,
        switches: SwitchFile | None = None,
    ) -> None:
        """`closers` are closed with the engine core, in this order; `began` hears of each request, vLLM's own object,
        when it has produced its first token."""
        self.closers = list(closers)
        self._began = began
        self._switches = switches
        self._switching = Part("run-time switches of vLLM", lasting=True)
        self.pipeline, self.policy, self.bus, self.quarantine = pipeline, policy, bus, quarantine
        self.listeners = list(listeners)
        self.enabled = True
        self.wanted: bool | None = None
        """What another thread wants `enabled` to be, from the next step on."""
        self._arm_workers = False
        self.cpu_seconds = 0.0
        """CPU time of the scheduler's thread in here, since the start."""
        self._possible = PossibleActions(CAPABILITIES)
        self._guarding = Part("the guards in vLLM", self._tell_off)
        self._following = Part("following vLLM's requests", lasting=True)
        self._applying = Part("stopping requests in vLLM", self._tell_off)
        self._ordering = Part("messages to vLLM's workers", self._tell_off)
        self._listening: dict[int, Part] = {}
        self._messages = -1
        self._handles = 0
        self._live: dict[str, Followed] = {}
        """Requests that guards follow."""
        self._stops: dict[str, Stop] = {}
        self._blocks: dict[str, set[int]] = {}
        self._rows: tuple[Any, ...] = ()
        """Requests of this step."""
        self._spent = 0
        self._steps_measured: list[StepMeasured] = []

    def scheduled(self, scheduler_output: Any) -> None:
        """Before the message leaves: what workers must do first goes with it."""
        started = time.thread_time_ns()
        if self._switches is not None:
            self._switching.run(self._look_at_switches, self._switches)
        if self.wanted is not None:
            self._switch_sidecar(self.wanted)
            self.wanted = None
        self._ordering.run(self._order, scheduler_output)
        self._spent += time.thread_time_ns() - started

    def decide(self, scheduler: Any, scheduler_output: Any, model_runner_output: Any) -> None:
        """Before the scheduler takes the tokens."""
        self._stops, self._blocks, self._rows = {}, {}, ()
        if not self.enabled:
            return
        started, wall = time.thread_time_ns(), time.perf_counter()
        self._guarding.run(self._guard, scheduler, scheduler_output, model_runner_output)
        self._spent += time.thread_time_ns() - started
        self._measured(scheduler_output, wall)

    def applied(self, scheduler: Any, outputs: Any) -> Any:
        """After the scheduler took the tokens, before they are sent."""
        started = time.thread_time_ns()
        if self._stops:
            self._applying.run(self._apply, scheduler, outputs)
        self._following.run(self._forget_finished)
        if not self._live or len(self._steps_measured) >= MOST_MEASURED:
            self._tell_measures()
        self._spent += time.thread_time_ns() - started
        return outputs

    def gone(self, requests: Iterable[str]) -> None:
        """Aborted, or ended in another way than by a token."""
        for name in requests:
            self._following.run(self._over, name)
        if not self._live:
            self._tell_measures()

    def close(self) -> None:
        self._tell_measures()
        for closer in self.closers:
            self._following.run(closer.close)
        self.closers = []

    def _guard(self, scheduler: Any, scheduler_output: Any, model_runner_output: Any) -> None:
        made = produced(scheduler.requests, scheduler_output, model_runner_output)
        if not made.requests:
            return
        self._rows = made.requests
        for request in made.requests:
            if request.request_id not in self._live:
                self._begin(request)
        view = step_view(orders_of(scheduler_output).step, made, reading_of(model_runner_output))
        findings = self.pipeline.observe(view)
        actions = self._possible.of(self.policy.decide(findings, time.time())) if findings else []
        for action in actions:
            self._prepare(scheduler, made, view, action)
        for listener in self.listeners:
            part = self._listening.setdefault(id(listener), Part(f"listener {type(listener).__name__}", self._tell_off))
            part.run(listener.step_done, view, findings, actions)

    def _prepare(self, scheduler: Any, made: Produced, view: StepView, action: Action) -> None:
        """Blocks are looked up now: the scheduler frees those of a request that ends by itself in this step."""
        if action.sequence not in view.sequences:
            return
        if action.kind is ActionKind.QUARANTINE:
            groups = scheduler.kv_cache_manager.get_block_ids(action.sequence)
            self._blocks[action.sequence] = {block for block in flat(groups) if block}
        elif action.kind is ActionKind.STOP:
            before = int(view.output_lengths[view.sequences.index(action.sequence)])
            keep = max(0, action.keep_tokens - before)
            self._stops[action.sequence] = Stop(action.sequence, action.finding, keep)
        if action.kind is not ActionKind.OBSERVE:
            self.bus.publish(ActionTaken(action, time.time()))

    def _apply(self, scheduler: Any, outputs: Any) -> None:
        from vllm.v1.engine import FinishReason
        from vllm.v1.request import RequestStatus

        ended = end_in(outputs, self._stops, FinishReason.STOP)
        for name in ended:
            request = scheduler.requests.get(name)
            if request is not None:
                request.resumable = False
                request.stop_reason = self._stops[name].reason
            logger.warning("checkengine: request %s is stopped: %s", shown(name), self._stops[name].kind)
        scheduler.finish_requests(ended, RequestStatus.FINISHED_STOPPED)
        # Last, because taking the step's tokens has put full blocks into the prefix cache.
        for name, blocks in self._blocks.items():
            scheduler.kv_cache_manager.evict_blocks(blocks)
            self.quarantine.add(blocks)
            logger.warning("checkengine: %d KV blocks of request %s are in quarantine", len(blocks), shown(name))

    def _order(self, scheduler_output: Any) -> None:
        self._messages += 1
        refill = self.quarantine.handed_on(scheduler_output)
        capture = tuple([order for listener in self.listeners for order in listener.orders()])
        attach(scheduler_output, ToWorkers(self._messages, refill, capture, not self.enabled, self._arm_workers))
        self._arm_workers = False

    def _look_at_switches(self, switches: SwitchFile) -> None:
        try:
            changed = switches.changed() or {}
        except UserError as error:
            logger.error("checkengine: switches are left as they are: %s", error)
            return
        for name, switch in changed.items():
            if name == SIDECAR:
                self._switch_sidecar(switch != "disable")
            elif name not in self.pipeline.states():
                logger.error("checkengine: %s switches %r, and there is no guard of that name", switches.path, name)
            elif switch == "disable":
                self.pipeline.disable(name)
            else:
                self.pipeline.rearm(name)
                self.policy.release(name)

    def _switch_sidecar(self, on: bool) -> None:
        """On, what failed and went off tries again too, here and in the workers."""
        if on:
            self._arm_workers = True
            for part in self._parts():
                part.arm()
        if on == self.enabled:
            return
        self.enabled = on
        # Switched on again, guards begin anew with those that still run.
        for name in list(self._live):
            self._forget(name)
        logger.warning("checkengine: the sidecar is %s", "on" if on else "off")

    def failed_parts(self) -> list[str]:
        """Off after failures in a row, until the sidecar is switched on."""
        return [part.name for part in self._parts() if part.off]

    def _parts(self) -> list[Part]:
        return [self._guarding, self._following, self._applying, self._ordering, *self._listening.values()]

    def _begin(self, request: Any) -> None:
        self._handles += 1
        start = sequence_start(self._handles, request)
        now = time.monotonic()
        self._live[start.name] = Followed(request, start.arrived or now, now)
        self.pipeline.begin(start)
        self.policy.begin(start.name, time.time())
        self._following.run(self._began, request)

    def _forget_finished(self) -> None:
        """A request ends in a step that produced tokens of it, or is `gone`."""
        for request in self._rows:
            if request.is_finished():
                self._over(request.request_id)

    def _over(self, name: str) -> None:
        followed = self._live.get(name)
        self._forget(name)
        if followed is not None:
            self.bus.publish(ended(followed))

    def _forget(self, name: str) -> None:
        if self._live.pop(name, None) is not None:
            self.pipeline.forget(name)
            self.policy.forget(name)

    def _measured(self, scheduler_output: Any, wall: float) -> None:
        spent, self._spent = self._spent * 1e-9, 0
        self.cpu_seconds += spent
        tokens = scheduler_output.total_num_scheduled_tokens
        rows = len(scheduler_output.num_scheduled_tokens)
        self._steps_measured.append(
            StepMeasured(orders_of(scheduler_output).step, rows, tokens, time.perf_counter() - wall, spent, time.time())
        )

    def _tell_measures(self) -> None:
        for measured in self._steps_measured:
            self.bus.publish(measured)
        self._steps_measured = []

    def _tell_off(self, name: str, reason: str) -> None:
        self.bus.publish(GuardDisabled(name, reason, time.time()))


class GuardedScheduler:
    """Put in front of a vLLM scheduler class: `class Mine(GuardedScheduler, AsyncScheduler)`."""

    guards: SchedulerGuards | None = None

    def make_guards(self) -> SchedulerGuards:
        raise NotImplementedError("the face says how guards are made")

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        self.guards = made_or_none(self.make_guards)

    def schedule(self, *arguments: Any, **keywords: Any) -> Any:
        message = super().schedule(*arguments, **keywords)  # type: ignore[misc]
        if self.guards is not None:
            self.guards.scheduled(message)
        return message

    def update_from_output(self, scheduler_output: Any, model_runner_output: Any) -> Any:
        if self.guards is None:
            return super().update_from_output(scheduler_output, model_runner_output)  # type: ignore[misc]
        self.guards.decide(self, scheduler_output, model_runner_output)
        outputs = super().update_from_output(scheduler_output, model_runner_output)  # type: ignore[misc]
        return self.guards.applied(self, outputs)

    def finish_requests(self, request_ids: Any, finished_status: Any) -> Any:
        finished = super().finish_requests(request_ids, finished_status)  # type: ignore[misc]
        if self.guards is not None:
            self.guards.gone([getattr(request, "request_id", "") for request in finished or ()])
        return finished

    def shutdown(self) -> Any:
        if self.guards is not None:
            self.guards.close()
        return super().shutdown()  # type: ignore[misc]


def shown(name: str) -> str:
    """Of a request, for a log: a client may have chosen it."""
    return one_line(name[:MOST_SHOWN]) + "…" * (len(name) > MOST_SHOWN)


def made_or_none(make: Callable[[], SchedulerGuards]) -> SchedulerGuards | None:
    try:
        return make()
    except Exception:
        logger.exception("checkengine: no guards, the engine serves without them")
        return None
