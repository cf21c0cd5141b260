"""Whether a call is one that its request allows: JSON, a known name, arguments that fit the tool's schema."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any, Literal

import regex
from jsonschema import Draft202012Validator, validators
from jsonschema.exceptions import ValidationError
from referencing import Registry

from checkengine.detectors.tool_calls.canonical import canonical

Fault = Literal["invalid_json", "unknown_name", "schema_mismatch"]
MOST_KEYWORDS = 20_000
"""Schema keywords that one call is held against: schemas that double at every level exist."""
MOST_OF_A_REQUEST = 100_000
"""Of all its calls together; later ones are judged no more."""
PATTERN_SECONDS = 0.01
LONGEST_PATTERN_TEXT = 4096
"""Characters of a text that are held against a pattern."""
LONGEST_PATTERN = 1024
SLOW_PATTERN_COST = 5000
"""Keywords that a pattern counts as which ran into its time limit."""
LARGEST_SCHEMA = 262_144
"""Characters as JSON."""
MOST_UNIQUE_ITEMS = 1000
SKIPPED = ("unevaluatedProperties", "unevaluatedItems", "$dynamicRef", "$recursiveRef", "format")
"""Keywords that count as fulfilled: what they need has no bound."""


class _TooMuch(Exception):
    """The schema asks for more work than a call is worth."""


_budget = threading.local()


class ToolSchemas:
    """Of one request's tools. Nothing is fetched: a `$ref` that leaves the schema leaves the call unjudged."""

    def __init__(self, tools: Iterable[Mapping[str, object]]) -> None:
        self._parameters: dict[str, object] = {}
        for tool in tools:
            function = tool.get("function", tool) if isinstance(tool, Mapping) else None
            if isinstance(function, Mapping) and isinstance(name := function.get("name"), str):
                self._parameters[name] = function.get("parameters")
        self._validators: dict[str, Any] = {}
        self._left = MOST_OF_A_REQUEST

    def __bool__(self) -> bool:
        return bool(self._parameters)

    def fault(self, name: str, arguments: Any, *, typed: bool = True) -> Fault | None:
        """None where the call fits or cannot be judged. Without `typed`, texts are read as what the schema wants."""
        if not self._parameters:
            return None
        if name not in self._parameters:
            return "unknown_name"
        schema = self._parameters[name]
        if not isinstance(schema, Mapping):
            return None
        arguments = {} if arguments is None else arguments if typed else _coerced(arguments, schema)
        return "schema_mismatch" if self._mismatch(name, schema, arguments) else None

    def _mismatch(self, name: str, schema: Mapping[str, Any], arguments: Any) -> bool:
        budget = _budget.left = min(MOST_KEYWORDS, self._left)
        if budget <= 0:
            return False
        try:
            if name not in self._validators:
                self._validators[name] = _validator(schema)
            validator = self._validators[name]
            return validator is not None and next(validator.iter_errors(arguments), None) is not None
        except Exception:
            # A schema that is broken, endless or points elsewhere judges nobody.
            return False
        finally:
            self._left -= budget - _budget.left


def _validator(schema: Mapping[str, Any]) -> Any:
    if len(canonical(schema)) > LARGEST_SCHEMA:
        return None
    base = validators.validator_for(schema, default=Draft202012Validator)
    return _bounded(base)(schema, registry=Registry())


@lru_cache(maxsize=16)
def _bounded(base: Any) -> Any:
    """The draft's validator with every keyword counted and none that can hang."""
    keywords = {name: _counted(keyword) for name, keyword in base.VALIDATORS.items()}
    own = {
        "pattern": _pattern,
        "patternProperties": _pattern_properties,
        "additionalProperties": _additional_properties,
        "uniqueItems": _unique_items,
        "required": _required,
        "type": _nullable(base.VALIDATORS["type"]),
        "exclusiveMinimum": _numeric(base.VALIDATORS.get("exclusiveMinimum")),
        "exclusiveMaximum": _numeric(base.VALIDATORS.get("exclusiveMaximum")),
    }
    keywords |= {name: _counted(keyword) for name, keyword in own.items() if keyword is not None}
    return validators.extend(base, keywords | dict.fromkeys(SKIPPED, _nothing))


Keyword = Callable[[Any, Any, Any, Any], Any]


def _counted(keyword: Keyword) -> Keyword:
    def counted(validator: Any, value: Any, instance: Any, schema: Any) -> Iterator[Any]:
        _spend()
        yield from keyword(validator, value, instance, schema) or ()

    return counted


def _nothing(validator: Any, value: Any, instance: Any, schema: Any) -> Iterator[Any]:
    return iter(())


def _matches(pattern: Any, text: str) -> bool:
    """True also where it takes too long to tell, or the pattern is in another dialect."""
    try:
        if not isinstance(pattern, str) or len(pattern) > LONGEST_PATTERN:
            return True
        return regex.search(pattern, text[:LONGEST_PATTERN_TEXT], timeout=PATTERN_SECONDS) is not None
    except TimeoutError:
        _spend(SLOW_PATTERN_COST)
        return True
    except regex.error:
        return True


def _spend(keywords: int = 1) -> None:
    _budget.left -= keywords
    if _budget.left < 0:
        raise _TooMuch


def _pattern(validator: Any, pattern: Any, instance: Any, schema: Any) -> Iterator[ValidationError]:
    if isinstance(instance, str) and len(instance) <= LONGEST_PATTERN_TEXT and not _matches(pattern, instance):
        yield ValidationError("pattern")


def _pattern_properties(validator: Any, patterns: Any, instance: Any, schema: Any) -> Iterator[Any]:
    if isinstance(instance, dict):
        for pattern, subschema in patterns.items():
            for key, value in instance.items():
                _spend()
                if _matches(pattern, key):
                    yield from validator.descend(value, subschema, path=key)


def _additional_properties(validator: Any, allowed: Any, instance: Any, schema: Any) -> Iterator[Any]:
    if not isinstance(instance, dict):
        return
    known, patterns = schema.get("properties", {}), schema.get("patternProperties", {})
    for key, value in instance.items():
        if key not in known and not any(_matches(pattern, key) for pattern in patterns):
            if allowed is False:
                yield ValidationError("additionalProperties")
            elif isinstance(allowed, Mapping):
                yield from validator.descend(value, allowed, path=key)


def _required(validator: Any, names: Any, instance: Any, schema: Any) -> Iterator[ValidationError]:
    """Draft 3 has a boolean here."""
    if isinstance(names, list) and isinstance(instance, dict):
        yield from (ValidationError("required") for name in names if name not in instance)


def _unique_items(validator: Any, wanted: Any, instance: Any, schema: Any) -> Iterator[ValidationError]:
    if wanted is not True or not isinstance(instance, list) or len(instance) > MOST_UNIQUE_ITEMS:
        return
    if len({canonical(item) for item in instance}) < len(instance):
        yield ValidationError("uniqueItems")


def _nullable(keyword: Keyword) -> Keyword:
    """OpenAPI's `nullable`, which tool definitions often carry."""

    def checked(validator: Any, types: Any, instance: Any, schema: Any) -> Any:
        return (
            () if instance is None and schema.get("nullable") is True else keyword(validator, types, instance, schema)
        )

    return checked


def _numeric(keyword: Keyword | None) -> Keyword | None:
    """Draft 4 has a boolean here; such schemas seldom say that they are of draft 4."""

    def checked(validator: Any, limit: Any, instance: Any, schema: Any) -> Any:
        return () if isinstance(limit, bool) else keyword(validator, limit, instance, schema)  # type: ignore[misc]

    return checked if keyword is not None else None


def _coerced(arguments: Any, schema: Mapping[str, Any]) -> Any:
    properties = schema.get("properties")
    if not isinstance(arguments, dict) or not isinstance(properties, Mapping):
        return arguments
    return {key: _as_wanted(value, properties.get(key)) for key, value in arguments.items()}


def _as_wanted(value: Any, schema: Any) -> Any:
    wanted = schema.get("type") if isinstance(schema, Mapping) else None
    if not isinstance(value, str) or wanted == "string" or (isinstance(wanted, list) and "string" in wanted):
        return value
    try:
        return json.loads({"True": "true", "False": "false", "None": "null"}.get(value, value))
    except (ValueError, RecursionError):
        return value
