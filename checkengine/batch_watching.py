"""`checkengine.watch` on transformers' continuous batching: managers that a watched model makes are followed."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from checkengine.engine_shim.shim import Shim
from checkengine.engine_shim.transformers import Numbers
from checkengine.engine_shim.transformers_batching import WatchedBatching, batch_sampling, refuse_other

MAKER = "init_continuous_batching"


class BatchWatch:
    """Wraps a model's `init_continuous_batching`, which `generate_batch` calls too, until it is closed."""

    def __init__(self, model: Any, shim: Shim, numbers: Numbers) -> None:
        self._model, self._shim, self._numbers = model, shim, numbers
        self._followed: list[WatchedBatching] = []
        self._hook = model.register_forward_hook(self._forward_done, with_kwargs=True)
        self._previous: Callable[..., Any] | None = getattr(model, MAKER, None)
        self._own = MAKER in vars(model)
        if self._previous is not None:
            setattr(model, MAKER, self._wrapper(self._previous))

    def close(self) -> None:
        """Batches that still run end unguarded."""
        self._hook.remove()
        for watched in self._followed:
            watched.end()
        self._followed.clear()
        if self._previous is None:
            return
        if self._own:
            setattr(self._model, MAKER, self._previous)
        else:
            delattr(self._model, MAKER)

    def _wrapper(self, previous: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(previous)
        def init_continuous_batching(*arguments: Any, **keywords: Any) -> Any:
            manager = previous(*arguments, **keywords)
            if not hasattr(manager, "checkengine_watch"):
                self._follow(manager)
            return manager

        return init_continuous_batching

    def _follow(self, manager: Any) -> None:
        refuse_other(manager)
        watched = WatchedBatching(self._shim, self._numbers, batch_sampling(manager.generation_config))
        manager.checkengine_watch = watched
        self._followed.append(watched)
        make = manager._create_batch_processor

        def create_batch_processor() -> Any:
            processor = make()
            watched.attach(processor)
            return processor

        manager._create_batch_processor = create_batch_processor

    def _forward_done(self, module: Any, inputs: Any, keywords: dict[str, Any], output: Any) -> None:
        """One model has one manager at work at a time: its forwards are told by their arguments."""
        logits = getattr(output, "logits", None)
        if logits is not None:
            for watched in self._followed:
                watched.forward_done(keywords, logits)
