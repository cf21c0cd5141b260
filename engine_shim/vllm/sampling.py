"""vLLM's sampling parameters as plain JSON, and back, across versions."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Any

from checkengine.replay.executor import CannotReplayError

TELLS_NOTHING = frozenset(
    [
        "n",
        "stop",
        "logprobs",
        "prompt_logprobs",
        "prompt_logprob_token_ids",
        "prompt_logprob_start",
        "logprob_token_ids",
        "flat_logprobs",
        "detokenize",
        "skip_special_tokens",
        "spaces_between_special_tokens",
        "include_stop_str_in_output",
        "output_kind",
        "stream_interval",
        "skip_clone",
        "output_text_buffer_length",
        "structured_outputs",
        "skip_reading_prefix_cache",
        "repetition_detection",
        "watermarking",
        "_watermarking_skipped",
        "truncate_prompt_tokens",
    ]
)
"""The front end's and the scheduler's fields: they decide neither logits nor the token that a worker draws."""
STOPS = "_all_stop_token_ids"
OURS = ("unreplayable", "token_not_compared")
"""Notes of the recorder's."""


def sampling_of(parameters: Any) -> dict[str, Any]:
    """The fields that differ from their defaults, as JSON; `{}` where there are no parameters (pooling)."""
    if parameters is None:
        return {}
    default = type(parameters)()
    told = {}
    for name in field_names(parameters):
        value = getattr(parameters, name)
        if value != getattr(default, name, None) and (plain := as_json(value)) is not None:
            told[name] = plain
    told.setdefault("temperature", float(getattr(parameters, "temperature", 1.0)))
    return told


def stop_tokens_of(parameters: Any) -> tuple[int, ...]:
    """Token ids that end the sequence: the model's and the request's own."""
    found = set(getattr(parameters, STOPS, None) or ()) | set(getattr(parameters, "stop_token_ids", None) or ())
    end = getattr(parameters, "_eos_token_id", None)
    if end is not None and not getattr(parameters, "ignore_eos", False):
        found.add(end)
    return tuple(sorted(int(token) for token in found))


def field_names(parameters: Any) -> tuple[str, ...]:
    """Of a msgspec struct, a dataclass, or any object with attributes."""
    for names in ("__struct_fields__", "__dataclass_fields__"):
        if found := getattr(parameters, names, None):
            return tuple(found)
    return tuple(vars(parameters))


def as_json(value: Any) -> Any:
    """None for what JSON cannot carry: such a field is left out."""
    if isinstance(value, enum.Enum):
        return as_json(value.value)
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Mapping):
        return {str(key): as_json(item) for key, item in value.items()}
    if isinstance(value, set | frozenset):
        return sorted(as_json(item) for item in value)
    if isinstance(value, list | tuple):
        return [as_json(item) for item in value]
    return None


def parameters_from(told: Mapping[str, Any], kind: type[Any]) -> Any:
    """What a worker needs of them, as `kind` (vLLM's class). CannotReplayError for a field that decides tokens and that
    the installed version does not have."""
    known = set(field_names(kind()))
    wanted = {name: value for name, value in told.items() if name not in TELLS_NOTHING}
    if unknown := sorted(wanted.keys() - known - set(OURS)):
        raise CannotReplayError(
            f"the record's sampling parameters {', '.join(unknown)} are not in the installed vLLM: install the version "
            "that recorded it"
        )
    private = {name: wanted.pop(name) for name in list(wanted) if name.startswith("_")}
    for told_elsewhere in OURS:
        wanted.pop(told_elsewhere, None)
    wanted.pop("seed", None)  # Its generator's state is not recorded.
    wanted.pop("bad_words", None)  # Words need a tokenizer; their token ids are in a private field.
    if isinstance(wanted.get("logit_bias"), Mapping):
        wanted["logit_bias"] = {int(token): bias for token, bias in wanted["logit_bias"].items()}
    if isinstance(stops := private.get(STOPS), list):
        private[STOPS] = set(stops)
    parameters = kind(**wanted)
    for name, value in private.items():
        setattr(parameters, name, value)
    return parameters
