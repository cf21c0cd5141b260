"""vLLM's scheduler messages as plain JSON and back, whatever the version: for people, for tests, for another process.

A message is dataclasses (or msgspec structs) of plain values. Its record names each type, the version it comes from and
every field, so that a reader of another version sees what it does not know: such fields survive a reading and writing
in `UNKNOWN`, and only a field that decides numbers and that the installed version lacks is refused.
"""

from __future__ import annotations

import base64
import dataclasses
import enum
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from checkengine.engine_shim.vllm.sampling import field_names
from checkengine.replay.executor import CannotReplayError

FORMAT = 1
UNKNOWN = "checkengine_unknown"
"""Attribute of a message read from a record: its fields that the installed version does not have."""
TYPE, SET, TUPLE, MAP, ARRAY, ENUM, LEFT_OUT = "$type", "$set", "$tuple", "$map", "$array", "$enum", "$left_out"
MOST_DEPTH = 32


def to_record(message: Any, version: str) -> dict[str, Any]:
    """As JSON. Values that JSON cannot carry (tensors, callables) are named by their type, not told."""
    return {"format": FORMAT, "vllm": version, "message": plain(message, MOST_DEPTH)}


def plain(value: Any, depth: int) -> Any:
    if isinstance(value, enum.Enum):
        return {ENUM: type(value).__name__, "value": plain(value.value, depth)}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if not depth:
        return {LEFT_OUT: "nested too deep"}
    if isinstance(value, np.ndarray):
        told = base64.b64encode(np.ascontiguousarray(value).tobytes()).decode()
        return {ARRAY: told, "dtype": str(value.dtype), "shape": list(value.shape)}
    if isinstance(value, list):
        return [plain(item, depth - 1) for item in value]
    if isinstance(value, tuple):
        return {TUPLE: [plain(item, depth - 1) for item in value]}
    if isinstance(value, set | frozenset):
        return {SET: sorted((plain(item, depth - 1) for item in value), key=repr)}
    if isinstance(value, Mapping):
        return {MAP: [[plain(key, depth - 1), plain(item, depth - 1)] for key, item in value.items()]}
    if dataclasses.is_dataclass(value) or hasattr(value, "__struct_fields__"):
        fields = {name: plain(getattr(value, name), depth - 1) for name in field_names(value)}
        return {TYPE: type(value).__name__, **fields, **getattr(value, UNKNOWN, {})}
    return {LEFT_OUT: type(value).__name__}


def from_record(record: Mapping[str, Any], types: Mapping[str, type[Any]]) -> Any:
    """`types`: the installed version's classes by name. CannotReplayError for a record of another format, of types that
    are not there, or with a field that decides numbers and is not known here."""
    if record.get("format") != FORMAT:
        raise CannotReplayError(f"a message record of format {record.get('format')!r}: this reads format {FORMAT}")
    try:
        return Reader(types).value(record["message"], MOST_DEPTH)
    except (KeyError, TypeError, ValueError) as error:
        version = record.get("vllm", "of unknown version")
        raise CannotReplayError(f"a message of vLLM {version} cannot be read here: {error}") from error


@dataclasses.dataclass(frozen=True, slots=True)
class Reader:
    types: Mapping[str, type[Any]]

    def value(self, told: Any, depth: int) -> Any:
        if not depth:
            raise ValueError("it is nested too deep")
        if isinstance(told, list):
            return [self.value(item, depth - 1) for item in told]
        if not isinstance(told, Mapping):
            return told
        for key, read in self._kinds().items():
            if key in told:
                return read(told, depth)
        raise ValueError(f"an object of unknown kind {sorted(told)[:3]}")

    def _kinds(self) -> dict[str, Callable[[Mapping[str, Any], int], Any]]:
        return {
            TYPE: self._object,
            TUPLE: lambda told, depth: tuple(self.value(item, depth - 1) for item in told[TUPLE]),
            SET: lambda told, depth: {self.value(item, depth - 1) for item in told[SET]},
            MAP: lambda told, depth: {self.value(k, depth - 1): self.value(v, depth - 1) for k, v in told[MAP]},
            ARRAY: lambda told, _: array(told),
            ENUM: self._enumerated,
            LEFT_OUT: self._left_out,
        }

    def _left_out(self, told: Mapping[str, Any], depth: int) -> Any:
        raise ValueError(f"it holds a {told[LEFT_OUT]}, which the record does not tell")

    def _enumerated(self, told: Mapping[str, Any], depth: int) -> Any:
        if told[ENUM] not in self.types:
            raise ValueError(f"the installed version has no {told[ENUM]}")
        return self.types[told[ENUM]](told["value"])

    def _object(self, told: Mapping[str, Any], depth: int) -> Any:
        name = told[TYPE]
        if name not in self.types:
            raise ValueError(f"the installed version has no {name}")
        kind = self.types[name]
        known = declared(kind)
        fields = {field: value for field, value in told.items() if field != TYPE}
        unknown = {field: value for field, value in fields.items() if field not in known}
        if telling := sorted(field for field, value in unknown.items() if not says_nothing(value)):
            raise ValueError(f"{name} has {', '.join(telling)}, which the installed version does not know")
        read = {field: self.value(value, depth - 1) for field, value in fields.items() if field in known}
        made = construct(kind, read)
        if unknown:
            put(made, UNKNOWN, unknown)
        return made


def installed_types() -> dict[str, type[Any]]:
    """Of vLLM's messages and of what they hold. ImportError where vLLM is not installed, or keeps them elsewhere."""
    from vllm import sampling_params
    from vllm.v1.core.sched import output

    found = {name: kind for module in (output, sampling_params) for name, kind in vars(module).items()}
    return {name: kind for name, kind in found.items() if isinstance(kind, type)}


def says_nothing(told: Any) -> bool:
    """A value that stands for "not used": none, false, zero, empty."""
    if isinstance(told, Mapping):
        return all(not told[kind] for kind in (SET, TUPLE, MAP) if kind in told) and TYPE not in told
    return not told


def declared(kind: type[Any]) -> set[str]:
    names = getattr(kind, "__struct_fields__", None) or getattr(kind, "__dataclass_fields__", None)
    if names is None:
        raise ValueError(f"{kind.__name__} is no dataclass and no struct")
    return set(names)


def construct(kind: type[Any], fields: Mapping[str, Any]) -> Any:
    """Public fields go through the constructor; the others are set as they were."""
    private = {name: value for name, value in fields.items() if name.startswith("_")}
    made = kind(**{name: value for name, value in fields.items() if name not in private})
    for name, value in private.items():
        put(made, name, value)
    return made


def put(made: Any, name: str, value: Any) -> None:
    try:
        setattr(made, name, value)
    except dataclasses.FrozenInstanceError:
        object.__setattr__(made, name, value)


def array(told: Mapping[str, Any]) -> Any:
    data = base64.b64decode(told[ARRAY], validate=True)
    return np.frombuffer(data, np.dtype(told["dtype"])).reshape(told["shape"]).copy()
