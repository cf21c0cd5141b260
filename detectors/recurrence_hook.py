"""Norms of the hidden state of any torch module that is called several times within a forward pass."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

import numpy as np
import torch

from checkengine.detectors.recurrence import LoopNorms

OnReading = Callable[[LoopNorms], None]

FEWEST_LOOPS = 2
"""A pass in which the module ran once is no recurrence."""


def watch_recurrence(
    module: torch.nn.Module, on_reading: OnReading, *, within: torch.nn.Module | None = None
) -> RecurrenceWatch:
    """Call `on_reading` once a forward pass with the norms of the module's output after each of its calls.

    `module` maps a state of shape (…, dimension) to the next one, as first argument and as output (or first of a tuple
    of outputs); rows of the reading are all leading dimensions, flattened. Of several layers that are looped together,
    watch the last. `within` is the module of which one call is one pass; without it a pass begins where the input is
    not the output of the call before, which fits a single looped module only, and is told at the next pass.

    On a GPU nothing waits: norms stay on the device, are copied by its stream, and are told at a later pass, once they
    are there. Norms are float32. Close the watch, or use it as a context manager.
    """
    return RecurrenceWatch(module, on_reading, within)


@dataclass(slots=True)
class _Pass:
    norms: list[torch.Tensor] = field(default_factory=list)
    """Of each loop, shape (2, rows): of the state and of its change."""
    state: torch.Tensor | None = None
    epsilon: float = 0.0


@dataclass(slots=True)
class _Travelling:
    norms: torch.Tensor
    """On the host, shape (loops, 2, rows)."""
    epsilon: float
    arrived: Any
    """A device event; None where the copy is done."""


class RecurrenceWatch:
    """Hooks on the module until `close()`. What `on_reading` raises reaches the caller of the model: it must not."""

    def __init__(self, module: torch.nn.Module, on_reading: OnReading, within: torch.nn.Module | None) -> None:
        self._on_reading = on_reading
        self._whole = within is not None
        self._pass = _Pass()
        self._travelling: list[_Travelling] = []
        self._hooks = [module.register_forward_hook(self._called)]
        if within is not None:
            self._hooks.append(within.register_forward_pre_hook(lambda *ignored: self._begin()))
            self._hooks.append(within.register_forward_hook(lambda *ignored: self.flush()))

    def flush(self) -> None:
        """The pass is over: tell what has arrived."""
        done, self._pass = self._pass, _Pass()
        if len(done.norms) >= FEWEST_LOOPS:
            self._travelling.append(_send(torch.stack(done.norms), done.epsilon))
        self._tell()

    def close(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()
        self.flush()

    def __enter__(self) -> RecurrenceWatch:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _begin(self) -> None:
        """A pass that raised in its midst is dropped."""
        self._pass = _Pass()

    def _called(self, module: torch.nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        after = output[0] if isinstance(output, (tuple, list)) else output
        before = inputs[0] if inputs and isinstance(inputs[0], torch.Tensor) else None
        if not self._whole and before is not self._pass.state:
            self.flush()
        if self._pass.state is not None and self._pass.state.shape != after.shape:
            self.flush()
        self._pass.norms.append(_norms(after.detach(), before if self._pass.state is None else self._pass.state))
        self._pass.state = after
        self._pass.epsilon = torch.finfo(after.dtype).eps

    def _tell(self) -> None:
        while self._travelling and (self._travelling[0].arrived is None or self._travelling[0].arrived.query()):
            sent = self._travelling.pop(0)
            norms = sent.norms.numpy()
            self._on_reading(LoopNorms(norms[:, 0], norms[:, 1], sent.epsilon))


def _norms(after: torch.Tensor, before: torch.Tensor | None) -> torch.Tensor:
    with torch.no_grad():
        flat = after.reshape(-1, after.shape[-1])
        hidden = torch.linalg.vector_norm(flat, dim=-1, dtype=torch.float32)
        if before is None or before.shape != after.shape:
            return torch.stack((hidden, torch.full_like(hidden, torch.nan)))
        change = flat - before.detach().reshape(-1, before.shape[-1])
        return torch.stack((hidden, torch.linalg.vector_norm(change, dim=-1, dtype=torch.float32)))


def _send(norms: torch.Tensor, epsilon: float) -> _Travelling:
    if norms.device.type != "cuda":
        return _Travelling(norms.cpu(), epsilon, None)
    host = torch.empty(norms.shape, dtype=norms.dtype, pin_memory=True)
    host.copy_(norms, non_blocking=True)
    arrived: Any = torch.cuda.Event()  # type: ignore[no-untyped-call]
    arrived.record()
    return _Travelling(host, epsilon, arrived)


def last_rows(query_lengths: np.ndarray[Any, np.dtype[np.int32]]) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Of packed tokens, the index of each row's last."""
    return (np.cumsum(query_lengths) - 1).astype(np.int64)
