"""A request on its way through the engine."""

from __future__ import annotations

from dataclasses import dataclass, field

from checkengine.engine_shim.engine.phases import PhaseClock
from checkengine.engine_shim.engine.request import GenerationRequest
from checkengine.guards.step import SequenceStart


@dataclass(slots=True, eq=False)
class LiveSequence:
    """A retried request is a new sequence with a new handle: handles are never reused."""

    handle: int
    request: GenerationRequest
    tokens: list[int]
    """Prompt and output so far."""
    stop_tokens: frozenset[int]
    computed: int = 0
    """Tokens whose KV is in memory."""
    blocks: list[int] = field(default_factory=list)
    table_row: int = -1
    block_ids: list[bytes] = field(default_factory=list)
    """Prefix-cache ids of its full blocks as far as known."""
    cached_tokens: int = 0
    begun: bool = False
    poisoned: bool = False
    """Nothing of it may enter the prefix cache."""
    phases: PhaseClock = field(default_factory=PhaseClock)

    @property
    def name(self) -> str:
        return self.request.name

    @property
    def prompt_length(self) -> int:
        return len(self.request.prompt_tokens)

    @property
    def output_length(self) -> int:
        return len(self.tokens) - len(self.request.prompt_tokens)

    @property
    def output(self) -> list[int]:
        return self.tokens[len(self.request.prompt_tokens) :]

    @property
    def pending(self) -> int:
        """Tokens still to compute before the next one can be sampled."""
        return len(self.tokens) - self.computed

    def start(self) -> SequenceStart:
        request = self.request
        return SequenceStart(
            handle=self.handle,
            name=request.name,
            prompt_tokens=tuple(request.prompt_tokens),
            sampling=request.sampling.model_dump(),
            stop_tokens=tuple(sorted(self.stop_tokens)),
            ignores_stop=request.sampling.ignore_eos,
            language=request.language,
            arrived=request.arrived or None,
        )
