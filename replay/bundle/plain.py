"""JSON that loses nothing and cannot hurt its reader.

Floats that JSON does not know travel as {"$f64": bits in hex}, tuples as {"$tuple": [...]}.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping
from typing import Any

import numpy as np

from checkengine.replay.bundle.layout import MOST_JSON_BYTES, MOST_JSON_DEPTH, BundleError


def encode(value: object) -> bytes:
    """Canonical JSON: sorted keys, ASCII. BundleError names the place of a value that JSON cannot carry, and refuses
    what `decode` would refuse."""
    try:
        plain = to_plain(value, "value")
    except RecursionError:
        raise BundleError("a value of the capture holds itself or is nested too deep for JSON") from None
    if is_deeper(plain, MOST_JSON_DEPTH):
        raise BundleError(f"a value of the capture is nested deeper than {MOST_JSON_DEPTH}: make it flatter")
    data = json.dumps(plain, sort_keys=True, indent=1, ensure_ascii=True, allow_nan=False).encode("ascii") + b"\n"
    if len(data) > MOST_JSON_BYTES:
        raise BundleError(f"JSON of {len(data)} bytes, more than a bundle may hold: make the window shorter")
    return data


def to_plain(value: object, where: str) -> Any:
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else {"$f64": struct.pack(">d", value).hex()}
    if isinstance(value, Mapping):
        return {key_of(key, where): to_plain(item, f"{where}.{key}") for key, item in value.items()}
    if isinstance(value, tuple):
        return {"$tuple": [to_plain(item, f"{where}[]") for item in value]}
    if isinstance(value, list):
        return [to_plain(item, f"{where}[]") for item in value]
    raise BundleError(f"{where} is a {type(value).__name__}, which JSON cannot carry: give numbers, strings, lists")


def key_of(key: object, where: str) -> str:
    if not isinstance(key, str) or key.startswith("$"):
        raise BundleError(f"{where} has the key {key!r}: keys must be strings that do not begin with $")
    return key


def decode(data: bytes, where: str) -> Any:
    """BundleError for anything but JSON within the limits of size and depth."""
    if len(data) > MOST_JSON_BYTES:
        raise BundleError(f"{where} has {len(data)} bytes, more than {MOST_JSON_BYTES}: not a bundle of this format")
    try:
        text = data.decode("utf-8")
        value = json.loads(text, object_pairs_hook=from_pairs, parse_constant=refuse_constant)
    except (ValueError, RecursionError, struct.error) as error:
        raise BundleError(f"{where} is not valid JSON of a bundle ({error}): fetch the bundle again") from None
    if is_deeper(value, MOST_JSON_DEPTH):
        raise BundleError(f"{where} is nested deeper than {MOST_JSON_DEPTH}: not a bundle of this format")
    return value


def is_deeper(value: object, levels: int) -> bool:
    if isinstance(value, dict):
        return levels == 0 or any(is_deeper(item, levels - 1) for item in value.values())
    if isinstance(value, list | tuple):
        return levels == 0 or any(is_deeper(item, levels - 1) for item in value)
    return False


def from_pairs(pairs: list[tuple[str, Any]]) -> Any:
    values = dict(pairs)
    if len(values) != len(pairs):
        raise ValueError("a key appears twice")
    if len(values) == 1 and "$f64" in values:
        return struct.unpack(">d", bytes.fromhex(str(values["$f64"])))[0]
    if len(values) == 1 and isinstance(values.get("$tuple"), list):
        return tuple(values["$tuple"])
    return values


def refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON")
