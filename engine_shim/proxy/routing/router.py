"""The proxy's router over several upstreams: who may serve, what each has cached, what each has in hand."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from checkengine.engine_shim.proxy.routing.fleet import Case, Fleet, FleetEvent, Standing
from checkengine.engine_shim.proxy.routing.lines import Load, Placement, Prompt, TwoLines
from checkengine.engine_shim.proxy.routing.prefix_index import ChainHash, PrefixIndex, bytes_of
from checkengine.engine_shim.proxy.routing.prompt import prompt_bytes
from checkengine.engine_shim.proxy.routing.settings import RoutingSettings
from checkengine.engine_shim.proxy.routing.siblings import SiblingWatch
from checkengine.engine_shim.proxy.routing.state_file import StateFile
from checkengine.engine_shim.proxy.upstream import Ending, NoUpstream, Outcome, RoutedRequest, Upstream
from checkengine.guards.errors import UserError

logger = logging.getLogger("checkengine.proxy.routing")

FAILED = (Ending.REFUSED, Ending.SERVER_ERROR, Ending.BROKEN, Ending.STALLED)
"""Endings that speak against the upstream; BUSY is load, and the rest is the client's doing or a guard's."""


@dataclass(slots=True)
class _Sent:
    placement: Placement
    chain: Sequence[int]
    is_waiting: bool = True


class UpstreamRouter:
    """A `Router`; see there. Not thread-safe: everything on the event loop.

    Raises UserError for upstreams of equal names, for lines that name no upstream and for a damaged state file.
    """

    def __init__(
        self,
        upstreams: Sequence[Upstream],
        settings: RoutingSettings | None = None,
        *,
        clock: Callable[[], float] = time.time,
        tell: Callable[[FleetEvent], None] = lambda event: None,
    ) -> None:
        self.settings = settings or RoutingSettings()
        self._upstreams = _by_name(upstreams, self.settings)
        self._state = StateFile(self.settings.state_file) if self.settings.state_file else None
        self._clock = clock
        self.fleet = Fleet(
            {each.name: each.pool for each in upstreams},
            self.settings.drain,
            self.settings.canary,
            clock=clock,
            tell=tell,
            changed=self._save,
            cases=self._state.load() if self._state else None,
        )
        self._siblings = SiblingWatch(self.settings.siblings, self._convict_sibling)
        self._hash = ChainHash()
        share = max(1, self.settings.lines.index_blocks // len(upstreams))
        self.lines = TwoLines(self.settings.lines, PrefixIndex(share))
        self.loads = {name: Load() for name in self._upstreams}
        self._sent: dict[tuple[str, str], _Sent] = {}
        self._placed: tuple[str, Placement, Sequence[int]] | None = None

    def upstreams(self) -> tuple[Upstream, ...]:
        return tuple(self._upstreams.values())

    def choose(self, request: RoutedRequest) -> Upstream:
        """See Router."""
        names = [name for pool in self._pools(request) for name in self.fleet.serving(pool)]
        names = [name for name in names if name not in request.excluded]
        if not names:
            raise NoUpstream("no server behind this proxy can take the request now; try again later")
        prompt = self._prompt(request)
        placement = self.lines.place(prompt, self.loads, names)
        self._placed = (request.id, placement, prompt.chain)
        return self._upstreams[placement.upstream]

    def started(self, upstream: Upstream, request: RoutedRequest) -> None:
        """It is being sent there: its prefix will be in that upstream's cache."""
        sent = self._sent_to(upstream, request)
        load = self.loads[upstream.name]
        load.running += 1
        load.waiting += sent.placement.uncached
        self._sent[upstream.name, request.id] = sent
        self.lines.index.insert(upstream.name, sent.chain)

    def answering(self, upstream: Upstream, request: RoutedRequest) -> None:
        """Its first output came: its prefill delays nobody any more. Optional, and better called."""
        sent = self._sent.get((upstream.name, request.id))
        if sent is not None and sent.is_waiting:
            sent.is_waiting = False
            self.loads[upstream.name].waiting -= sent.placement.uncached

    def finished(self, upstream: Upstream, request: RoutedRequest, outcome: Outcome) -> None:
        """See Router."""
        self.answering(upstream, request)
        if self._sent.pop((upstream.name, request.id), None) is not None:
            self.loads[upstream.name].running -= 1
        self._judge(upstream.name, request, outcome)

    def convict(self, name: str, by: str, reason: str) -> None:
        """By the judge or a person: out until released. UserError for an unknown name."""
        self.lines.index.forget(name)
        self.fleet.convict(name, by, reason)

    def release(self, name: str, by: str) -> None:
        """By a person, after a repair. UserError where it is not out."""
        self.fleet.release(name, by)
        self.lines.index.forget(name)
        self._siblings.readmit(name)

    def status(self) -> list[dict[str, object]]:
        """For a control endpoint: no content, no address."""
        return [self._status(name) for name in self._upstreams]

    def close(self) -> None:
        if self._state is not None:
            self._state.close()

    def _judge(self, name: str, request: RoutedRequest, outcome: Outcome) -> None:
        client = _client(request)
        if outcome.ending in FAILED:
            self.fleet.failed(name, str(outcome.ending))
            if self.fleet.standing(name) is Standing.DOWN:
                self.lines.index.forget(name)  # what comes back after a restart has an empty cache
            # A kept connection that the server closes in the same moment is refused too, and that is no fault.
            if outcome.ending is not Ending.REFUSED:
                self.fleet.incident(name, "upstream.error", client)
        elif outcome.ending is not Ending.CLIENT_GONE:
            self.fleet.ended(name)
        for kind in outcome.findings:
            self.fleet.incident(name, kind, client)
        self._siblings.ended(self._clock(), name, outcome.findings)

    def _convict_sibling(self, name: str, reason: str) -> None:
        self.convict(name, "siblings", reason)

    def _pools(self, request: RoutedRequest) -> Sequence[str]:
        """A pool that bears the model's name serves it; otherwise all do."""
        pools = self.fleet.pools()
        return (request.model,) if request.model in pools else pools

    def _prompt(self, request: RoutedRequest) -> Prompt:
        data = prompt_bytes(request.body)
        return Prompt(self._hash.chain(data), len(data), bytes_of)

    def _sent_to(self, upstream: Upstream, request: RoutedRequest) -> _Sent:
        if self._placed is not None and self._placed[0] == request.id and self._placed[1].upstream == upstream.name:
            _, placement, chain = self._placed
            self._placed = None
            return _Sent(placement, chain)
        prompt = self._prompt(request)
        return _Sent(self.lines.place(prompt, self.loads, [upstream.name]), prompt.chain)

    def _save(self, cases: Mapping[str, Case]) -> None:
        if self._state is not None:
            self._state.save(cases)

    def _status(self, name: str) -> dict[str, object]:
        case, load, standing = self.fleet.case(name), self.loads[name], self.fleet.standing(name)
        found: dict[str, object] = {"name": name, "pool": self.fleet.pool(name), "standing": str(standing)}
        found |= {"running": load.running, "waiting_bytes": load.waiting, "blocks": self.lines.index.blocks(name)}
        if case is not None:
            found["case"] = case.to_json() | {"kept_in_by_limit": standing in (Standing.SERVING, Standing.DOWN)}
        return found


def _client(request: RoutedRequest) -> str:
    user = request.body.get("user")
    return user if isinstance(user, str) and user else request.session


def _by_name(upstreams: Sequence[Upstream], settings: RoutingSettings) -> dict[str, Upstream]:
    found = {each.name: each for each in upstreams}
    if len(found) != len(upstreams) or not found:
        raise UserError("upstreams need names of their own, and at least one upstream is needed")
    if strangers := sorted(set(settings.lines.cold) - found.keys()):
        raise UserError(
            f"[proxy.routing.lines] cold names {', '.join(strangers)}; the upstreams are {', '.join(found)}"
        )
    return found
