"""`checkengine.watch`: the guards on transformers' own `generate()`."""

from __future__ import annotations

import functools
import inspect
import itertools
import logging
import threading
import time
from collections import deque
from pathlib import Path
from types import TracebackType
from typing import Any

from checkengine.assemble import assemble
from checkengine.batch_watching import BatchWatch
from checkengine.config import Settings, load_settings
from checkengine.detectors import Vocabulary
from checkengine.engine_shim.shim import Shim
from checkengine.engine_shim.transformers import GenerateAdapter, Numbers, WatchedCall, describe_call
from checkengine.guards.events import Event, FindingRaised
from checkengine.guards.incident import Incident
from checkengine.replay.settings import CaptureSettings, RecorderSettings, SpoolSettings

logger = logging.getLogger("checkengine.watch")

REMEMBERED = 1000
"""Findings that `Watch.findings` keeps."""


def watch(model: Any, tokenizer: Any, config: Settings | Path | str | None = None) -> Watch:
    """Guard every `model.generate(...)` and `generate_batch(...)` from now on, until `close()` or the end of a `with`.

    `config` is the path of a checkengine.toml, or Settings; without it the file is looked for as `load_settings` does.
    Greedy search and sampling, any batch; a stopped row ends at its last good token, the others go on. Raises
    ConfigurationError here, and UnwatchableError (a ValueError) from a `generate` that cannot be followed, such as
    beam search.
    """
    return Watch(model, tokenizer, config if isinstance(config, Settings) else load_settings(config))


class Watch:
    """Holds the guards of one model. Calls may run in several threads at once; watches may be nested and closed in
    any order."""

    def __init__(self, model: Any, tokenizer: Any, settings: Settings) -> None:
        size = model.get_output_embeddings().weight.shape[0]
        adapter = GenerateAdapter(model)
        self.assembly = assemble(
            adapter, _settings(settings), Vocabulary.from_tokenizer(tokenizer, size), logits_dtype=model.dtype
        )
        self.shim = Shim(adapter, self.assembly.parts)
        self.closed = False
        self._findings: deque[FindingRaised] = deque(maxlen=REMEMBERED)
        self.assembly.bus.subscribe_sync(self._hear, name="watch")
        self._model, self._tokenizer = model, tokenizer
        self._numbers = Numbers(threading.Lock())
        self._calls = itertools.count()
        self._running = threading.local()
        self._previous = model.generate
        self._hook = model.register_forward_hook(self._forward_done)
        self._own = "generate" in vars(model)
        model.generate = self._wrapper()
        self._batches = BatchWatch(model, self.shim, self._numbers)

    def incidents(self) -> list[Incident]:
        """All so far, oldest first: one for each cause, however many rows it struck."""
        return self.assembly.book.incidents(time.time())

    def findings(self) -> list[FindingRaised]:
        """The last findings, oldest first, each with its incident."""
        return list(self._findings)

    def close(self) -> None:
        """Give the model its own `generate` back. A call that runs meanwhile ends unguarded."""
        if self.closed:
            return
        self.closed = True
        self._hook.remove()
        self._batches.close()
        self._unwrap()
        self.assembly.close()

    def __enter__(self) -> Watch:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _wrapper(self) -> Any:
        previous = self._previous

        @functools.wraps(previous)
        def generate(*arguments: Any, **keywords: Any) -> Any:
            if self.closed:
                return previous(*arguments, **keywords)
            return self._generate(arguments, keywords)

        generate.checkengine_watch = self  # type: ignore[attr-defined]
        return generate

    def _generate(self, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        bound = inspect.signature(self._previous).bind(*arguments, **keywords)
        given = {**bound.arguments, **bound.arguments.get("kwargs", {})}
        call = describe_call(self._model, self._tokenizer, f"generate-{next(self._calls)}", given)
        watched = WatchedCall(self.shim, call, self._numbers)
        given.pop("kwargs", None)
        # generate() needs a padding token once a row can end early; the effective one where the caller has any.
        given = {**given, **_hooks(watched, given), "pad_token_id": call.pad_token}
        outer = getattr(self._running, "call", None)
        self._running.call = watched
        try:
            return watched.trimmed(self._previous(**given))
        finally:
            self._running.call = outer
            watched.end()

    def _forward_done(self, module: Any, inputs: Any, output: Any) -> None:
        """Runs in the thread of the call; forwards outside of a watched call are nobody's business."""
        call: WatchedCall | None = getattr(self._running, "call", None)
        logits = getattr(output, "logits", None)
        if call is not None and logits is not None:
            call.forward_done(logits)

    def _unwrap(self) -> None:
        """Watches that were closed before the ones around them leave with these."""
        current, own = vars(self._model).get("generate"), True
        if current is None:
            return
        while (found := getattr(current, "checkengine_watch", None)) is not None and found.closed:
            current, own = found._previous, found._own
        if own:
            self._model.generate = current
        else:
            del self._model.generate

    def _hear(self, event: Event) -> None:
        if not isinstance(event, FindingRaised):
            return
        self._findings.append(event)
        finding = event.finding
        if event.primary:
            logger.warning(
                "%s at output token %d of %s (guard %s, incident %s)",
                finding.kind,
                finding.token,
                finding.sequence,
                finding.guard,
                event.incident,
            )


def _hooks(watched: WatchedCall, given: dict[str, Any]) -> dict[str, Any]:
    """The caller's processors and criteria, and ours behind them."""
    from transformers import LogitsProcessorList, StoppingCriteriaList

    return {
        "logits_processor": LogitsProcessorList([*(given.get("logits_processor") or ()), watched.processor]),
        "stopping_criteria": StoppingCriteriaList([*(given.get("stopping_criteria") or ()), watched.criterion]),
    }


def _settings(settings: Settings) -> Settings:
    """generate() has no paged memory to record or capture; a spool is kept only where the configuration names one."""
    off: dict[str, Any] = {"recorder": RecorderSettings(enabled=False), "capture": CaptureSettings(enabled=False)}
    if "spool" not in settings.model_fields_set:
        off["spool"] = SpoolSettings(enabled=False)
    return settings.model_copy(update=off)
