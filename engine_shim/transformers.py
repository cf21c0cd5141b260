"""The shim in transformers' own `generate()`, through its logits processors and stopping criteria.

`generate()` calls custom logits processors after its own penalties and masks (5.x: `_get_logits_processor` appends
them), one of which launders NaN (`remove_invalid_values`). So raw logits come from a forward hook, torch's public one,
and the processor's place is used for what it sees last: what the sampler will get.
"""

from __future__ import annotations

import copy
import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from checkengine.engine_shim.adapter import StopOnly
from checkengine.engine_shim.shim import Shim, StepScope
from checkengine.guards.action import Action, ActionKind
from checkengine.guards.errors import UserError
from checkengine.guards.step import SequenceStart
from checkengine.replay.record import StepRecord

logger = logging.getLogger("checkengine.watch")

Ints = NDArray[np.int32]


class UnwatchableError(UserError, ValueError):
    """This way of generating cannot be watched."""


class GenerateAdapter(StopOnly):
    """EngineAdapter over a model's `generate()`: it stops rows, and that is all it can do."""

    def __init__(self, model: Any) -> None:
        self._model = model

    def apply(self, action: Action) -> None:
        """A row is stopped by the stopping criterion of its own call."""

    def environment(self) -> Mapping[str, Any]:
        attention = getattr(self._model.config, "_attn_implementation", None) or "unknown"
        return {"engine": "transformers", "kernel": f"generate/{attention}"}


@dataclass(frozen=True, slots=True)
class GenerateCall:
    """What one call of `generate()` was asked for."""

    name: str
    stop_tokens: tuple[int, ...]
    ignores_stop: bool
    pad_token: int
    attention_mask: torch.Tensor | None
    sampling: Mapping[str, object]
    guided: bool = False
    """Classifier-free guidance runs a second forward a step, without the prompt: the first one counts."""
    keeps_bad_tokens: bool = False
    """A streamer has told every token already: nothing is taken back."""


class Numbers:
    """Step numbers and handles of all calls on one model; `lock` is held while guards work."""

    def __init__(self, lock: Any) -> None:
        self.lock = lock
        self._step = -1
        self._handle = -1

    def step(self) -> int:
        self._step += 1
        return self._step

    def handles(self, count: int) -> list[int]:
        first = self._handle + 1
        self._handle += count
        return list(range(first, first + count))


class WatchedCall:
    """One running call of `generate()`: it is a logits processor (`process`) and a stopping criterion (`stop`).

    What fails in here ends the watching of this call, and never the call.
    """

    def __init__(self, shim: Shim, call: GenerateCall, numbers: Numbers) -> None:
        self.processor = _Processor(self)
        self.criterion = _Criterion(self)
        self._shim, self._call, self._numbers = shim, call, numbers
        self._raw: torch.Tensor | None = None
        self._scope: StepScope | None = None
        self._record: StepRecord | None = None
        self._handles: list[int] = []
        self._names: list[str] = []
        self._prompts: list[tuple[int, ...]] = []
        self._begun = False
        self._broken = False
        self._width = 0
        """Columns of the prompt, padding included."""
        self._outputs = 0
        self._over: NDArray[np.bool_] = np.zeros(0, np.bool_)
        """Rows that have ended: generate() pads them from then on."""
        self._stopped: NDArray[np.bool_] = np.zeros(0, np.bool_)
        self._kept: dict[int, int] = {}
        """Row to output tokens that a stop leaves it."""

    def forward_done(self, logits: torch.Tensor) -> None:
        """From the forward hook: shape (rows, positions, vocabulary). The last forward before the processor counts,
        so a prompt in chunks is measured once."""
        if not self._broken and (self._raw is None or not self._call.guided):
            self._raw = logits[:, -1]

    def process(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        if self._broken:
            return scores
        try:
            raw, self._raw = self._raw, None
            return self._look(input_ids, scores, scores if raw is None or len(raw) != len(scores) else raw)
        except Exception as error:
            self._break(error)
            return scores

    def stop(self, input_ids: torch.Tensor) -> torch.Tensor:
        """Shape (rows,), True where a guard has stopped the row."""
        if not self._broken and self._scope is not None:
            try:
                self._decide(input_ids[:, -1].cpu().numpy().astype(np.int32))
            except Exception as error:
                self._break(error)
        stopped = self._stopped if len(self._stopped) == len(input_ids) else np.zeros(len(input_ids), np.bool_)
        return torch.from_numpy(stopped.copy()).to(input_ids.device)

    def end(self) -> None:
        with self._numbers.lock:
            self._shim.end(self._handles)

    def trimmed(self, result: Any) -> Any:
        """Bad tokens of stopped rows become padding, as if the row had ended before them."""
        sequences = getattr(result, "sequences", result)
        if not self._call.keeps_bad_tokens and isinstance(sequences, torch.Tensor):
            for row, kept in self._kept.items():
                sequences[row, self._width + kept :] = self._call.pad_token
        return result

    def _look(self, input_ids: torch.Tensor, scores: torch.Tensor, raw: torch.Tensor) -> torch.Tensor:
        if not self._begun:
            self._begin(input_ids)
        live = np.flatnonzero(~self._over)
        if not len(live):
            self._scope = None
            return scores
        with self._numbers.lock:
            self._record = self._make_record(live, input_ids)
            self._scope = self._shim.step(self._record)
            self._scope.__enter__()
        whole, rows = len(live) == len(raw), torch.from_numpy(live).to(raw.device)
        self._scope.logits(raw if whole else raw[rows])
        self._scope.sampled_from(scores if whole else scores[rows])
        return self._sampleable(scores, live)

    def _sampleable(self, scores: torch.Tensor, live: NDArray[np.int64]) -> torch.Tensor:
        """torch's sampler raises on NaN and takes the whole batch down; a row that will be stopped on this step
        gets scores that can be sampled, and its token is dropped."""
        stats = self._scope.stats if self._scope is not None else None
        if stats is None or not stats.nonfinite.any() or not self._will_stop():
            return scores
        bad = torch.from_numpy(live[stats.nonfinite]).to(scores.device)
        scores = scores.clone()
        scores[bad] = 0.0
        return scores

    def _will_stop(self) -> bool:
        parts = self._shim.parts
        state = parts.pipeline.states().get("nonfinite")
        return state is not None and state.active and parts.policy.action_of("nonfinite") in ("stop", "retry")

    def _decide(self, tokens: Ints) -> None:
        scope, record = self._scope, self._record
        assert scope is not None
        assert record is not None
        self._scope = None
        live = np.flatnonzero(~self._over)
        with self._numbers.lock:
            try:
                actions = scope.tokens(tokens[live])
            finally:
                scope.__exit__(None, None, None)
        self._outputs += 1
        for action in actions:
            if action.kind is ActionKind.STOP and action.sequence in self._names:
                row = self._names.index(action.sequence)
                self._stopped[row] = True
                self._kept[row] = min(action.keep_tokens, self._outputs)
        self._note_ends(tokens)

    def _note_ends(self, tokens: Ints) -> None:
        """generate() pads a row from the step after its end on; another token there says that it goes on."""
        padded = tokens == self._call.pad_token
        ends = padded | np.isin(tokens, self._call.stop_tokens)
        self._over = np.where(self._over, padded, ends) | self._stopped

    def _begin(self, input_ids: torch.Tensor) -> None:
        self._begun = True
        rows, self._width = input_ids.shape
        self._prompts = prompts_of(input_ids, self._call.attention_mask, self._call.pad_token)
        self._names = [f"{self._call.name}/{row}" for row in range(rows)]
        self._over, self._stopped = np.zeros(rows, np.bool_), np.zeros(rows, np.bool_)
        with self._numbers.lock:
            self._handles = self._numbers.handles(rows)

    def _starts(self) -> tuple[SequenceStart, ...]:
        call = self._call
        return tuple(
            SequenceStart(handle, name, prompt, call.sampling, call.stop_tokens, call.ignores_stop)
            for handle, name, prompt in zip(self._handles, self._names, self._prompts, strict=True)
        )

    def _make_record(self, live: NDArray[np.int64], input_ids: torch.Tensor) -> StepRecord:
        rows = live.tolist()
        prompts = np.array([len(self._prompts[row]) for row in rows], np.int32)
        first = self._outputs == 0
        last = [] if first else input_ids[:, -1].tolist()
        tokens = [token for row in rows for token in (self._prompts[row] if first else (last[row],))]
        return StepRecord(
            step=self._numbers.step(),
            time_ns=time.time_ns(),
            handles=np.array([self._handles[row] for row in rows], np.int32),
            query_lengths=prompts if first else np.ones(len(rows), np.int32),
            starts=np.zeros(len(rows), np.int32) if first else prompts + np.int32(self._outputs - 1),
            samples=np.ones(len(rows), np.bool_),
            token_ids=np.array(tokens, np.int32),
            begun=self._starts() if first else (),
            kernel="generate",
        )

    def _break(self, error: Exception) -> None:
        self._broken = True
        self._raw = self._scope = None
        logger.error("watching %s failed; it goes on without guards", self._call.name, exc_info=error)


class _Processor:
    """As transformers calls a LogitsProcessor."""

    def __init__(self, watched: WatchedCall) -> None:
        self._watched = watched

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        return self._watched.process(input_ids, scores)


class _Criterion:
    """As transformers calls a StoppingCriteria. generate() pads ended rows only where a criterion has end tokens."""

    eos_token_id = torch.empty(0, dtype=torch.long)

    def __init__(self, watched: WatchedCall) -> None:
        self._watched = watched

    def __call__(self, input_ids: torch.Tensor, scores: object, **ignored: object) -> torch.Tensor:
        return self._watched.stop(input_ids)


def prompts_of(input_ids: torch.Tensor, mask: torch.Tensor | None, pad_token: int) -> list[tuple[int, ...]]:
    """Without padding. `mask` has a row for each prompt; `num_return_sequences` repeats them in `input_ids`."""
    rows, width = input_ids.shape
    if mask is not None and mask.ndim == 2 and mask.shape[1] == width and rows % len(mask) == 0:
        kept = mask.repeat_interleave(rows // len(mask), 0).bool().cpu()
    else:
        kept = (input_ids.cpu() != pad_token).cumsum(-1).bool()
    return [tuple(row[keep].tolist()) for row, keep in zip(input_ids.cpu(), kept, strict=True)]


def effective_config(model: Any, given: Any | None, arguments: Mapping[str, Any]) -> Any:
    """The generation configuration that a call with these keyword arguments runs with."""
    config = copy.deepcopy(model.generation_config)
    if given is not None:
        config.update(**{name: value for name, value in given.to_dict().items() if value is not None})
    config.update(**arguments)
    return config


def describe_call(model: Any, tokenizer: Any, name: str, arguments: Mapping[str, Any]) -> GenerateCall:
    """`arguments` are those of generate(), by name, `kwargs` flattened. Raises UnwatchableError."""
    config = effective_config(model, arguments.get("generation_config"), flags_of(arguments))
    refuse_unwatchable(config, arguments)
    ends = token_ids(config.eos_token_id)
    explicit = "eos_token_id" in arguments
    own = () if explicit else token_ids(getattr(tokenizer, "eos_token_id", None))
    pads = (*token_ids(config.pad_token_id), *ends, *token_ids(getattr(tokenizer, "pad_token_id", None)), *own, 0)
    return GenerateCall(
        name=name,
        stop_tokens=tuple(sorted({*ends, *own})),
        ignores_stop=explicit and not ends,
        pad_token=pads[0],
        attention_mask=None if model.config.is_encoder_decoder else arguments.get("attention_mask"),
        sampling=sampling_of(config),
        guided=config.guidance_scale not in (None, 1),
        keeps_bad_tokens=arguments.get("streamer") is not None,
    )


def sampling_of(config: Any) -> dict[str, object]:
    """What happens to the scores behind our processor."""
    if not config.do_sample:
        return {"temperature": 0.0}
    names = ("top_k", "top_p", "min_p", "typical_p", "top_h", "epsilon_cutoff", "eta_cutoff")
    given = {name: value for name in names if (value := getattr(config, name, None)) is not None}
    temperature = 1.0 if config.temperature is None else config.temperature
    return {"temperature": temperature, **given, "masked": getattr(config, "watermarking_config", None) is not None}


def flags_of(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Keyword arguments that are plain values: those of the generation configuration are among them."""
    return {name: value for name, value in arguments.items() if isinstance(value, (int, float, str, list, type(None)))}


def refuse_unwatchable(config: Any, arguments: Mapping[str, Any]) -> None:
    mode = str(getattr(config.get_generation_mode(arguments.get("assistant_model")), "value", ""))
    paged = arguments.get("cache_implementation") == "paged"
    if mode in ("greedy_search", "sample") and not paged and arguments.get("custom_generate") is None:
        return
    what = "a paged cache (continuous batching)" if paged else f"generation mode {mode.replace('_', ' ')!r}"
    raise UnwatchableError(
        f"checkengine.watch follows greedy search and sampling, not {what}: close the watch for this call, "
        "or generate with num_beams=1 and without assistant model or custom_generate"
    )


def token_ids(value: Any) -> tuple[int, ...]:
    """An id, ids or None, as transformers allows them."""
    if value is None:
        return ()
    return tuple(int(token) for token in torch.as_tensor(value).flatten().tolist())
