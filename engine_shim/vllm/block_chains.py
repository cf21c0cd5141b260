"""Which blocks of which request are whole after a step, and which are brought from outside: from vLLM's messages."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from checkengine.engine_shim.engine.prefix_cache import block_ids
from checkengine.engine_shim.vllm.seal_ledger import Block


@dataclass(slots=True)
class Chain:
    """Of one request: its prompt's block identities, and where its blocks lie."""

    identities: list[bytes]
    numbers: list[int] = field(default_factory=list)
    computed: int = 0

    def blocks(self, first: int, end: int) -> list[Block]:
        last = min(end, len(self.identities), len(self.numbers))
        return [Block(self.identities[index], self.numbers[index]) for index in range(first, last)]


class BlockChains:
    """Scheduler's half. `block_size` in tokens."""

    def __init__(self, block_size: int) -> None:
        self._size = block_size
        self._chains: dict[str, Chain] = {}
        self._loading: dict[str, tuple[int, int]] = {}

    def loads(self, request: str, first_token: int, count: int) -> None:
        """vLLM has taken blocks for `count` tokens of the request that the connector brings. A last block that it
        brings a part of is filled up by the step and has no seal yet."""
        self._loading[request] = (first_token // self._size, (first_token + count) // self._size)

    def step(self, scheduled: Any) -> tuple[list[Block], list[Block]]:
        """Of a SchedulerOutput: blocks that this step loads, and prompt blocks that are whole when it is done."""
        for request in scheduled.finished_req_ids:
            self._chains.pop(request, None)
            self._loading.pop(request, None)
        for new in scheduled.scheduled_new_reqs:
            self._chains[new.req_id] = Chain(
                block_ids(new.prompt_token_ids or [], self._size), list(new.block_ids[0]), new.num_computed_tokens
            )
        cached = scheduled.scheduled_cached_reqs
        for place, request in enumerate(cached.req_ids):
            self._continued(request, cached, place)
        loading, whole = [], []
        for request, count in scheduled.num_scheduled_tokens.items():
            chain = self._chains.get(request)
            if chain is None:
                continue
            if request in self._loading:
                loading += chain.blocks(*self._loading.pop(request))
            after = chain.computed + count
            whole += chain.blocks(chain.computed // self._size, after // self._size)
            chain.computed = after
        return loading, whole

    def _continued(self, request: str, cached: Any, place: int) -> None:
        chain = self._chains.get(request)
        if chain is None:
            return
        new = cached.new_block_ids[place]
        added = list(new[0]) if new else []
        chain.numbers = added if request in cached.resumed_req_ids else chain.numbers + added
        chain.computed = cached.num_computed_tokens[place]
