"""The coordinator of an expert-parallel engine: steps, and what it does when a rank is lost, slow or wrong.

A step counts only when every rank has done it: what is void on one rank is void on all, and is run again. So a lost
rank costs its requests nothing but time: they are computed again elsewhere from their tokens so far.
"""

from __future__ import annotations

import queue
import tempfile
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import safetensors.torch

from checkengine.engine_shim.ranks.moe import MoeShape, initial_state
from checkengine.engine_shim.ranks.policy import Membership, Plan, plan_for_loss
from checkengine.engine_shim.ranks.process import Inbox, RankProcess
from checkengine.engine_shim.ranks.slowness import Slowness
from checkengine.engine_shim.ranks.trouble import Trouble
from checkengine.engine_shim.ranks.witnesses import odd_ones


@dataclass(frozen=True, slots=True)
class FleetSettings:
    ranks: int = 4
    spares: int = 0
    shape: MoeShape = field(default_factory=MoeShape)
    seed: int = 0
    silent_seconds: float = 1.5
    """Without a heartbeat for so long a rank counts as lost."""
    collective_seconds: float = 0.75
    """A collective that takes longer has failed."""
    answer_seconds: float = 1.25
    """A rank that has not answered so long after another one said that the step failed counts as lost, beating or not:
    longer than a collective, which it may be waiting in."""
    flaps: int = 3
    """Broken payloads from one rank until it is drained."""
    check_every: int = 0
    """Steps between two cross-checks of every expert used; 0 is never."""


@dataclass(slots=True)
class Request:
    prompt: list[int]
    tokens: list[int]
    rank: int
    output: int
    checked: int
    """Tokens that the last clean cross-check vouches for."""
    margins: list[float] = field(default_factory=list)

    @property
    def done(self) -> bool:
        return len(self.tokens) >= len(self.prompt) + self.output


@dataclass(frozen=True, slots=True)
class Event:
    """What happened and when (monotonic seconds): lost, recovered, payload, slow, wrong."""

    kind: str
    rank: int
    at: float
    step: int
    plan: Plan | None = None
    seconds: float = 0.0
    """From noticing to the first step that counts again, of `recovered`."""


class Fleet:
    """Not safe from several threads. `close` it."""

    def __init__(self, settings: FleetSettings, troubles: Mapping[int, Trouble] | None = None) -> None:
        self.settings = settings
        self.events: list[Event] = []
        self.step_number = 0
        self.requests: dict[str, Request] = {}
        self._troubles = dict(troubles or {})
        self._folder = tempfile.TemporaryDirectory()
        self._weights = Path(self._folder.name) / "weights.safetensors"
        self._write_weights()
        self._inbox: Inbox = queue.Queue()
        self._processes: dict[int, RankProcess] = {}
        self._next_rank = 0
        self._flaps: dict[int, int] = {}
        self._slowness = Slowness()
        self._new: dict[str, Request] = {}
        ranks = tuple(self._spawn() for _ in range(settings.ranks))
        spares = tuple(self._spawn() for _ in range(settings.spares))
        experts = tuple(ranks[expert % len(ranks)] for expert in range(settings.shape.experts))
        self.membership = Membership(ranks, experts, spares)
        self._await_start(ranks)
        self._join()

    def __enter__(self) -> Fleet:
        return self

    def __exit__(self, *ignored: object) -> None:
        self.close()

    def close(self) -> None:
        for process in self._processes.values():
            process.close()
        self._folder.cleanup()

    def submit(self, name: str, prompt: Iterable[int], output: int) -> None:
        tokens = list(prompt)
        load = {rank: sum(each.rank == rank for each in self.requests.values()) for rank in self.membership.ranks}
        rank = min(load, key=lambda each: (load[each], each))
        self.requests[name] = Request(list(tokens), tokens, rank, output, len(tokens))
        self._new[name] = self.requests[name]

    @property
    def has_work(self) -> bool:
        return any(not request.done for request in self.requests.values())

    def kill(self, rank: int) -> float:
        """SIGKILL, as a machine's death looks from outside; returns when."""
        self._processes[rank].kill()
        return time.monotonic()

    def add_spare(self) -> int:
        """A fresh process that waits to take a lost rank's place; it is taken once it has started."""
        return self._spawn()

    def step(self) -> bool:
        """One step of all ranks. False where it was void: it is run again."""
        self._adopt_spares()
        self._hand_out()
        running = {rank: [] for rank in self.membership.ranks}  # type: dict[int, list[str]]
        for name, request in self.requests.items():
            if not request.done:
                running[request.rank].append(name)
        for rank, names in running.items():
            self._processes[rank].tell({"do": "step", "step": self.step_number, "names": names})
        answers, lost = self._gather("step")
        if lost:
            self._recover(lost)
            return False
        broken = [answer for answer in answers.values() if answer.get("failed") == "payload"]
        if broken or any("failed" in answer for answer in answers.values()):
            self._void(broken)
            return False
        self._commit(answers)
        return True

    # A step that counts

    def _commit(self, answers: Mapping[int, dict[str, Any]]) -> None:
        for rank, answer in answers.items():
            tokens = {name: token for name, (token, _) in answer["tokens"].items()}
            for name, (token, margin) in answer["tokens"].items():
                self.requests[name].tokens.append(token)
                self.requests[name].margins.append(margin)
            self._processes[rank].tell({"do": "commit", "tokens": tokens})
        slow = self._slowness.push({rank: float(answer["seconds"]) for rank, answer in answers.items()})
        for rank in slow:
            self.events.append(Event("slow", rank, time.monotonic(), self.step_number))
        _, lost = self._gather("commit")
        if lost:
            self._recover(lost)
        elif self.settings.check_every and self.step_number % self.settings.check_every == 0:
            self._cross_check()
        self.step_number += 1

    def _hand_out(self) -> None:
        for name, request in self._new.items():
            self._processes[request.rank].tell({"do": "take", "sequences": {name: request.tokens}})
        self._new.clear()

    # What goes wrong

    def _void(self, broken: list[dict[str, Any]]) -> None:
        """Ranks that saw no fault have waited in vain for those that did: a new group, and the step again."""
        for answer in broken:
            sender = answer["sender"]
            self._flaps[sender] = self._flaps.get(sender, 0) + 1
            self.events.append(Event("payload", sender, time.monotonic(), self.step_number))
        worn = [rank for rank, count in self._flaps.items() if count >= self.settings.flaps]
        if worn:
            self._recover(worn)
        else:
            self._join()
        # A planted flap strikes by step: the step is numbered anew, as a later try of a real link would be.
        self.step_number += 1

    def _recover(self, lost: Iterable[int]) -> None:
        began = time.monotonic()
        for rank in dict.fromkeys(lost):
            if rank not in self.membership.ranks:
                continue
            self._processes[rank].kill()
            live = {name: each.rank for name, each in self.requests.items() if not each.done}
            plan = plan_for_loss(rank, self.membership, live)
            self.events.append(Event("lost", rank, began, self.step_number, plan))
            self._flaps.pop(rank, None)
            self.membership = plan.membership
            for name, heir in plan.reprefill.items():
                self.requests[name].rank = heir
                self._new[name] = self.requests[name]
            self._await_start(self.membership.ranks)
        self._slowness = Slowness()
        self._join()
        self.events.append(Event("recovered", -1, time.monotonic(), self.step_number, None, time.monotonic() - began))

    def _cross_check(self) -> None:
        """Every expert used in this step is computed again on another rank from the same inputs: bits must agree."""
        for rank in self.membership.ranks:
            self._processes[rank].tell({"do": "witness"})
        told, lost = self._gather("witness")
        witnesses = {rank: answer["witnesses"] for rank, answer in told.items() if "witnesses" in answer}
        wrong = [] if lost else odd_ones(witnesses, self.membership.ranks, self._computed_by)
        if lost or wrong:
            for rank in wrong:
                self.events.append(Event("wrong", rank, time.monotonic(), self.step_number))
            if wrong:
                self._roll_back()
            self._recover([*lost, *wrong])
            return
        for request in self.requests.values():
            request.checked = len(request.tokens)

    def _computed_by(self, rank: int, witnesses: list[dict[str, Any]]) -> list[str] | None:
        self._processes[rank].tell({"do": "compute", "witnesses": witnesses})
        answers, _ = self._gather("compute", (rank,))
        found = answers.get(rank, {}).get("outputs")
        return found if isinstance(found, list) else None

    def _roll_back(self) -> None:
        """Everybody's rows went through every rank: what no check vouches for is taken back and computed again."""
        for name, request in self.requests.items():
            del request.tokens[request.checked :]
            del request.margins[request.checked - len(request.prompt) :]
            self._new[name] = request

    # Processes

    def _join(self) -> None:
        """A new process group of all members; repeated without those that cannot."""
        while True:
            self.membership = Membership(
                self.membership.ranks, self.membership.experts, self.membership.spares, self.membership.epoch + 1
            )
            store = f"{self._folder.name}/epoch-{self.membership.epoch}"
            for rank in self.membership.ranks:
                self._processes[rank].tell(
                    {
                        "do": "join",
                        "members": self.membership.ranks,
                        "experts": self.membership.experts,
                        "store": store,
                        "epoch": self.membership.epoch,
                    }
                )
            answers, lost = self._gather("join")
            if not lost and all("failed" not in answer for answer in answers.values()):
                return
            if lost:
                self._recover(lost)
                return

    def _gather(self, what: str, ranks: Iterable[int] | None = None) -> tuple[dict[int, dict[str, Any]], list[int]]:
        """One answer to `what` of each rank (late answers to other things are passed over), and who was lost."""
        waiting = set(self.membership.ranks if ranks is None else ranks)
        end = float("inf")
        answers: dict[int, dict[str, Any]] = {}
        lost: list[int] = []
        while waiting:
            try:
                rank, message = self._inbox.get(timeout=self.settings.silent_seconds / 10)
            except queue.Empty:
                rank, message = -1, {}
            if message is None and rank in self.membership.ranks:
                lost.append(rank)
                waiting.discard(rank)
            elif rank in waiting and message and ("failed" in message or message.get("did") == what):
                answers[rank] = message
                waiting.discard(rank)
                if "failed" in message:
                    end = min(end, time.monotonic() + self.settings.answer_seconds)
            elif message and message.get("did") == "start":
                self._processes[rank].ready = True
            silent = list(waiting) if time.monotonic() > end else self._silent(waiting)
            for each in silent:
                self._processes[each].kill()
            lost += silent
            waiting -= set(silent)
        return answers, lost

    def _silent(self, waiting: Iterable[int]) -> list[int]:
        """No heartbeat, or a step that hangs while its process still beats."""
        now = time.monotonic()
        return [rank for rank in waiting if now - self._processes[rank].heard > self.settings.silent_seconds]

    def _await_start(self, ranks: Iterable[int]) -> None:
        while not all(self._processes[rank].ready for rank in ranks):
            rank, message = self._inbox.get(timeout=120)
            if message and message.get("did") == "start":
                self._processes[rank].ready = True
            elif message is None and rank in ranks:
                raise RuntimeError(f"rank {rank} did not start: {self._processes[rank].last_words()}")

    def _adopt_spares(self) -> None:
        known = {*self.membership.ranks, *self.membership.spares, *(e.rank for e in self.events if e.kind == "lost")}
        fresh = tuple(rank for rank, process in self._processes.items() if rank not in known and process.ready)
        if fresh:
            chosen = self.membership
            self.membership = Membership(chosen.ranks, chosen.experts, (*chosen.spares, *fresh), chosen.epoch)

    def _spawn(self) -> int:
        rank = self._next_rank
        self._next_rank += 1
        trouble = self._troubles.get(rank, Trouble())
        settings = self.settings
        self._processes[rank] = RankProcess(
            rank, self._weights, settings.shape, trouble, self._inbox, settings.collective_seconds
        )
        return rank

    def _write_weights(self) -> None:
        dense, experts = initial_state(self.settings.shape, self.settings.seed)
        tensors = {f"dense.{name}": tensor for name, tensor in dense.items()}
        for layer, members in enumerate(experts):
            for expert, state in enumerate(members):
                tensors |= {f"expert.{layer}.{expert}.{name}": tensor for name, tensor in state.items()}
        safetensors.torch.save_file(tensors, str(self._weights))
