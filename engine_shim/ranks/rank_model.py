"""One rank's part of a step: its own sequences through the dense layers, everybody's rows through its own experts."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from safetensors import safe_open

from checkengine.engine_shim.ranks.exchange import BrokenPayload, Group, exchange
from checkengine.engine_shim.ranks.moe import Dense, Expert, MoeShape
from checkengine.engine_shim.ranks.trouble import Trouble

WRONG_BY = 1e-2
"""What a wrong rank adds, relatively: no overflow, no NaN, fluent nonsense."""


@dataclass(slots=True)
class RankSequence:
    tokens: list[int]
    computed: int = 0
    cache: list[list[torch.Tensor]] = field(default_factory=list)
    """Keys and values of each layer."""


@dataclass(frozen=True, slots=True)
class Witness:
    """What an expert was given and gave in the last step."""

    layer: int
    expert: int
    inputs: torch.Tensor
    outputs: torch.Tensor


class RankModel:
    """Weights come from one safetensors file: the dense part at the start, an expert when the rank takes it over."""

    def __init__(self, weights: Path, shape: MoeShape, trouble: Trouble) -> None:
        self.shape, self.trouble = shape, trouble
        self.sequences: dict[str, RankSequence] = {}
        self.witnesses: list[Witness] = []
        self.own_seconds = 0.0
        """Of the last step, without waiting for other ranks."""
        self._weights = weights
        self._experts: dict[tuple[int, int], Expert] = {}
        self._group = Group((0,), 0)
        self._owners: Sequence[int] = ()
        self._dense = Dense(shape)
        with safe_open(str(weights), "pt") as file:
            self._dense.load_state_dict({name: file.get_tensor(f"dense.{name}") for name in self._dense.state_dict()})
        self._dense.eval()

    def join(self, group: Group, owners: Sequence[int]) -> None:
        """`owners[e]` is the rank of expert e; those that are ours are loaded, others' are dropped."""
        self._group, self._owners = group, owners
        mine = [expert for expert, owner in enumerate(owners) if owner == group.own]
        wanted = {(layer, expert) for layer in range(self.shape.layers) for expert in mine}
        self._experts = {each: self._experts.get(each) or self.load_expert(*each) for each in sorted(wanted)}

    def load_expert(self, layer: int, expert: int) -> Expert:
        made = Expert(self.shape).eval()
        with safe_open(str(self._weights), "pt") as file:
            names = made.state_dict()
            made.load_state_dict({name: file.get_tensor(f"expert.{layer}.{expert}.{name}") for name in names})
        return made

    @torch.inference_mode()
    def step(self, number: int, names: Sequence[str]) -> dict[str, tuple[int, float]]:
        """Next token and its margin of each sequence. Nothing is committed: the same step may be run again."""
        began, waited = time.perf_counter(), 0.0
        self.witnesses = []
        self._group.broken.clear()
        pending = [self._pending(name) for name in names]
        states = [self._embed(self.sequences[name], tokens) for name, tokens in zip(names, pending, strict=True)]
        if self.trouble.slow(number):
            time.sleep(self.trouble.slow_seconds)
        for layer in range(self.shape.layers):
            attention = self._dense.attention[layer]
            states = [
                attention(state, self.sequences[name].cache[layer]) for name, state in zip(names, states, strict=True)
            ]
            states, seconds = self._mixed(layer, states, number)
            waited += seconds
        self.own_seconds = time.perf_counter() - began - waited
        if self._group.broken:
            raise BrokenPayload(self._group.broken[0], self._group.own)
        return {name: self._next(state) for name, state in zip(names, states, strict=True)}

    def commit(self, tokens: Mapping[str, int]) -> None:
        for name, token in tokens.items():
            sequence = self.sequences[name]
            sequence.computed = len(sequence.tokens)
            sequence.tokens.append(token)

    def compute(self, layer: int, expert: int, inputs: torch.Tensor, number: int) -> torch.Tensor:
        """What this rank makes of another one's inputs; a wrong rank is wrong here too."""
        with torch.inference_mode():
            return self._run(self._experts.get((layer, expert)) or self.load_expert(layer, expert), inputs, number)

    def _pending(self, name: str) -> list[int]:
        """Tokens to compute; what a void step has put into the cache is dropped."""
        sequence = self.sequences[name]
        sequence.cache = sequence.cache or [[] for _ in range(self.shape.layers)]
        for layer in sequence.cache:
            layer[:] = [part[: sequence.computed] for part in layer]
        return sequence.tokens[sequence.computed :]

    def _embed(self, sequence: RankSequence, tokens: list[int]) -> torch.Tensor:
        positions = torch.arange(sequence.computed, sequence.computed + len(tokens))
        found: torch.Tensor = self._dense.embedding(torch.tensor(tokens)) + self._dense.positions(positions)
        return found

    def _mixed(self, layer: int, states: list[torch.Tensor], number: int) -> tuple[list[torch.Tensor], float]:
        lengths = [len(state) for state in states]
        rows = torch.cat(states) if states else torch.empty(0, self.shape.width)
        normed = self._dense.norms[layer](rows)
        scores, chosen = self._dense.routers[layer](normed).softmax(-1).topk(self.shape.chosen)
        answers, waited = self._ask(layer, normed, chosen, number)
        mixed = rows + (answers * scores[..., None]).sum(1)
        return list(torch.split(mixed, lengths)), waited

    def _ask(self, layer: int, normed: torch.Tensor, chosen: torch.Tensor, number: int) -> tuple[torch.Tensor, float]:
        """Answers (rows, chosen, width) of the chosen experts, wherever they are."""
        experts = chosen.flatten()
        owner = torch.tensor(self._owners)[experts]
        places = [torch.nonzero(owner == member).flatten() for member in self._group.members]
        given = normed.repeat_interleave(self.shape.chosen, 0)
        flip = self.trouble.flaps(number) and layer == 0
        began = time.perf_counter()
        asked, labels = exchange(
            self._group, [given[each] for each in places], [experts[each] for each in places], flip=flip
        )
        waited = time.perf_counter() - began
        replies = [self._answer(layer, rows, wanted, number) for rows, wanted in zip(asked, labels, strict=True)]
        began = time.perf_counter()
        returned, _ = exchange(self._group, replies, labels)
        waited += time.perf_counter() - began
        answers = torch.empty_like(given)
        for each, part in zip(places, returned, strict=True):
            answers[each] = part
        return answers.view(-1, self.shape.chosen, self.shape.width), waited

    def _answer(self, layer: int, rows: torch.Tensor, wanted: torch.Tensor, number: int) -> torch.Tensor:
        found = torch.zeros_like(rows)
        for expert in sorted(set(wanted.tolist())):
            if (layer, expert) not in self._experts:
                continue  # A label that broke on its way: the step is void.
            places = torch.nonzero(wanted == expert).flatten()
            outputs = self._run(self._experts[layer, expert], rows[places], number)
            self.witnesses.append(Witness(layer, expert, rows[places], outputs))
            found[places] = outputs
        return found

    def _run(self, expert: Expert, rows: torch.Tensor, number: int) -> torch.Tensor:
        outputs: torch.Tensor = expert(rows)
        return outputs * (1 + WRONG_BY) if self.trouble.wrong(number) else outputs

    def _next(self, state: torch.Tensor) -> tuple[int, float]:
        best = self._dense.head(self._dense.last(state[-1:]))[0].topk(2)
        return int(best.indices[0]), float(best.values[0] - best.values[1])
