"""Our attention in transformers' models: registration, and the context of the forward that runs in this thread.

transformers looks an attention function up by its name in a table of the process; which memory and batch it works on is
known only to the runner. So the runner puts itself into a thread-local for the time of its forward: two runners can use
the same weights in two threads.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import torch
from transformers import AttentionInterface

IMPLEMENTATION = "checkengine"


class Attending(Protocol):
    """What runs inside a forward in place of the model's attention."""

    def attend(
        self, module: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, options: dict[str, Any]
    ) -> torch.Tensor:
        """Packed query, key and value (tokens, heads, dim) to output (tokens, query heads, value dim)."""


_running = threading.local()


@contextmanager
def attending(attention: Attending) -> Iterator[None]:
    """Attention of every forward that this thread runs inside the block."""
    before = getattr(_running, "attention", None)
    _running.attention = attention
    try:
        yield
    finally:
        _running.attention = before


def _attention_function(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    **options: Any,
) -> tuple[torch.Tensor, None]:
    attention: Attending | None = getattr(_running, "attention", None)
    if attention is None:
        raise RuntimeError(
            "this model's attention belongs to checkengine's engine and runs only inside it; "
            "for plain use call model.set_attn_implementation('sdpa') first"
        )
    query, key, value = (states[0].transpose(0, 1) for states in (query, key, value))
    return attention.attend(module, query, key, value, options).unsqueeze(0), None


def register() -> None:
    AttentionInterface.register(IMPLEMENTATION, _attention_function)


register()
