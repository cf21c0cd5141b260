"""A small mixture-of-experts language model, its experts apart from the rest.

Experts are computed in blocks of a fixed number of rows, padded: a row's bits then depend on nothing but the row, so
that who else is in the batch, or on which rank it runs, changes no answer (design rule 10).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

ROWS = 8


@dataclass(frozen=True, slots=True)
class MoeShape:
    vocabulary: int = 128
    width: int = 48
    heads: int = 4
    layers: int = 2
    experts: int = 8
    chosen: int = 2
    hidden: int = 96


class Attention(nn.Module):
    def __init__(self, shape: MoeShape) -> None:
        super().__init__()
        self.heads = shape.heads
        self.norm = nn.RMSNorm(shape.width)
        self.inputs = nn.Linear(shape.width, 3 * shape.width, bias=False)
        self.output = nn.Linear(shape.width, shape.width, bias=False)

    def forward(self, state: torch.Tensor, cache: list[torch.Tensor]) -> torch.Tensor:
        """`state` (tokens, width) of one sequence; `cache` holds its keys and values so far, and grows by these."""
        query, key, value = self.inputs(self.norm(state)).unflatten(-1, (3, self.heads, -1)).unbind(-3)
        if cache:
            key, value = torch.cat([cache[0], key]), torch.cat([cache[1], value])
        cache[:] = [key, value]
        past = len(key) - len(query)
        mask = torch.ones(len(query), len(key), dtype=torch.bool).tril(past)
        query, key, value = (part.transpose(0, 1) for part in (query, key, value))
        read = functional.scaled_dot_product_attention(query, key, value, attn_mask=mask)
        found: torch.Tensor = state + self.output(read.transpose(0, 1).flatten(-2))
        return found


class Expert(nn.Module):
    def __init__(self, shape: MoeShape) -> None:
        super().__init__()
        self.up = nn.Linear(shape.width, shape.hidden, bias=False)
        self.down = nn.Linear(shape.hidden, shape.width, bias=False)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        parts = []
        for block in torch.split(rows, ROWS):
            padded = functional.pad(block, (0, 0, 0, ROWS - len(block)))
            parts.append(self.down(functional.silu(self.up(padded)))[: len(block)])
        return torch.cat(parts) if parts else rows


class Dense(nn.Module):
    """All but the experts; every rank has it."""

    def __init__(self, shape: MoeShape) -> None:
        super().__init__()
        self.embedding = nn.Embedding(shape.vocabulary, shape.width)
        self.positions = nn.Embedding(512, shape.width)
        self.attention = nn.ModuleList(Attention(shape) for _ in range(shape.layers))
        self.norms = nn.ModuleList(nn.RMSNorm(shape.width) for _ in range(shape.layers))
        self.routers = nn.ModuleList(nn.Linear(shape.width, shape.experts, bias=False) for _ in range(shape.layers))
        self.last = nn.RMSNorm(shape.width)
        self.head = nn.Linear(shape.width, shape.vocabulary, bias=False)


def initial_state(shape: MoeShape, seed: int) -> tuple[dict[str, torch.Tensor], list[list[dict[str, torch.Tensor]]]]:
    """Weights of the dense part, and of each layer's experts, the same for the same seed."""
    torch.manual_seed(seed)
    dense = Dense(shape)
    for parameter in dense.parameters():
        if parameter.ndim > 1:
            nn.init.normal_(parameter, 0, 0.4)
    experts = [[Expert(shape) for _ in range(shape.experts)] for _ in range(shape.layers)]
    for layer in experts:
        for expert in layer:
            for parameter in expert.parameters():
                nn.init.normal_(parameter, 0, 0.25)
    return dense.state_dict(), [[expert.state_dict() for expert in layer] for layer in experts]
