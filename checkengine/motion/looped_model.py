"""A small looped transformer: one block applied T times to its own output, the input injected at each loop.

    h <- A h + B e + R(h, e)

Three forms of A and B: additive (A = r Q, Q orthogonal, B = 1), concatenating (one matrix on [h, e]), and constrained:
A = exp(delta * a) with a negative diagonal, after Parcae (arXiv 2604.12946) as we read it, which is a contraction
whatever its parameters are. R is a transformer layer whose output is normed, so that it adds a bounded amount.
"""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import nn
from torch.nn import functional

Form = Literal["additive", "concatenating", "constrained"]
FORMS: tuple[Form, ...] = get_args(Form)
WIDTH = 64
HEADS = 4


class Residual(nn.Module):
    """R(h, e): attention over the sequence and a feed-forward layer, pre-normed; its output has unit scale."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.last = nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH)
        self.inputs, self.output = nn.Linear(WIDTH, 3 * WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH, bias=False), nn.Linear(4 * WIDTH, WIDTH, bias=False)

    def forward(self, state: torch.Tensor, injected: torch.Tensor) -> torch.Tensor:
        parts = self.inputs(self.norm(state + injected)).unflatten(-1, (3, HEADS, -1)).unbind(-3)
        query, key, value = (part.transpose(-3, -2) for part in parts)
        read = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        mixed = self.output(read.transpose(-3, -2).flatten(-2))
        found: torch.Tensor = self.last(mixed + self.down(functional.silu(self.up(mixed))))
        return found


class LoopBlock(nn.Module):
    """One loop. `radius` is the spectral radius of A; the constrained form ignores what would be above one."""

    def __init__(self, form: Form, radius: float, gain: float = 0.1) -> None:
        super().__init__()
        self.form, self.gain = form, gain
        self.residual = Residual()
        rotation = torch.linalg.qr(torch.randn(WIDTH, WIDTH)).Q
        if form == "constrained":
            # Any parameters at all: large ones make it contract at once, small ones slowly, none makes it grow.
            self.rate = nn.Parameter(torch.randn(WIDTH) * 2 + torch.tensor(radius).log())
            self.step = nn.Parameter(torch.randn(WIDTH))
        elif form == "concatenating":
            self.mix = nn.Parameter(torch.cat([radius * rotation, torch.eye(WIDTH)], 1))
        else:
            self.matrix = nn.Parameter(radius * rotation)

    def forward(self, state: torch.Tensor, injected: torch.Tensor) -> torch.Tensor:
        added: torch.Tensor = self.gain * self.residual(state, injected)
        return self._carried(state, injected) + added

    def _carried(self, state: torch.Tensor, injected: torch.Tensor) -> torch.Tensor:
        if self.form == "constrained":
            carried = torch.exp(-functional.softplus(self.step) * torch.exp(self.rate))
            return carried * state + (1 - carried) * injected
        if self.form == "concatenating":
            return torch.cat([state, injected], -1) @ self.mix.T
        return state @ self.matrix.T + injected


class LoopedModel(nn.Module):
    """Token ids (sequences, tokens) to logits, `loops` loops in between."""

    def __init__(self, form: Form, radius: float, *, loops: int, seed: int = 0, vocabulary: int = 160) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.embedding = nn.Embedding(vocabulary, WIDTH)
        self.block = LoopBlock(form, radius)
        self.head = nn.Linear(WIDTH, vocabulary, bias=False)
        self.loops = loops

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        injected = self.embedding(tokens)
        state = torch.zeros_like(injected)
        for _ in range(self.loops):
            state = self.block(state, injected)
        logits: torch.Tensor = self.head(state)
        return logits
