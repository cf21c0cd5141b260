"""Calls against the tools that their request lists."""

from __future__ import annotations

import time
import urllib.request

import pytest

from checkengine.detectors.tool_calls.validity import ToolSchemas


def schemas(parameters, name="f"):
    return ToolSchemas([{"type": "function", "function": {"name": name, "parameters": parameters}}])


WEATHER = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "pattern": "^[A-Z]"},
        "days": {"type": "integer", "minimum": 1, "maximum": 14},
        "units": {"enum": ["C", "F"]},
        "note": {"type": "string", "nullable": True},
        "tags": {"type": "array", "items": {"type": "string"}, "uniqueItems": True},
    },
    "required": ["city"],
    "additionalProperties": False,
}


def test_a_call_that_fits_has_no_fault():
    subject = schemas(WEATHER)
    assert subject.fault("f", {"city": "Oslo", "days": 3, "units": "C", "note": None, "tags": ["a", "b"]}) is None


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        None,
        {"city": 3},
        {"city": "oslo"},
        {"city": "Oslo", "days": 0},
        {"city": "Oslo", "days": "3"},
        {"city": "Oslo", "units": "K"},
        {"city": "Oslo", "country": "NO"},
        {"city": "Oslo", "tags": ["a", "a"]},
        ["Oslo"],
        "Oslo",
    ],
)
def test_a_call_that_does_not_fit_its_schema_is_a_mismatch(arguments):
    assert schemas(WEATHER).fault("f", arguments) == "schema_mismatch"


def test_a_name_that_the_request_does_not_list_is_unknown():
    assert schemas(WEATHER).fault("g", {}) == "unknown_name"


def test_without_tools_nothing_is_judged():
    assert ToolSchemas([]).fault("g", {}) is None
    assert ToolSchemas([None, 3, {"function": 7}]).fault("g", {}) is None  # type: ignore[list-item]


def test_a_tool_without_parameters_takes_any_arguments():
    assert schemas(None).fault("f", {"x": 1}) is None


def test_texts_of_a_family_that_knows_no_types_are_read_as_the_schema_wants_them():
    subject = schemas(WEATHER)
    assert subject.fault("f", {"city": "Oslo", "days": "3"}, typed=False) is None
    assert subject.fault("f", {"city": "Oslo", "days": "many"}, typed=False) == "schema_mismatch"


def test_a_reference_inside_the_schema_is_followed():
    subject = schemas({"$defs": {"n": {"type": "integer"}}, "properties": {"a": {"$ref": "#/$defs/n"}}})
    assert subject.fault("f", {"a": 1}) is None
    assert subject.fault("f", {"a": "x"}) == "schema_mismatch"


def test_a_reference_to_elsewhere_is_never_fetched(monkeypatch):
    asked = []
    monkeypatch.setattr(urllib.request, "urlopen", lambda *a, **k: asked.append(a))
    for target in ("http://127.0.0.1:9/schema.json", "file:///etc/passwd", "other.json"):
        assert schemas({"properties": {"a": {"$ref": target}}}).fault("f", {"a": 1}) is None
    assert asked == []


DOUBLING = {"$defs": {f"d{n}": {"allOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(40)} | {"d40": {}}}
HANGING = {
    "a pattern that backtracks": ({"properties": {"a": {"pattern": "^(a+)+$"}}}, {"a": "a" * 40 + "b"}),
    "many of them": ({"properties": {"a": {"items": {"pattern": "^(a|a)*$"}}}}, {"a": ["a" * 40 + "b"] * 500}),
    "pattern properties": ({"patternProperties": {"^(x+)+$": {}}}, {"x" * 40 + "y": 1}),
    "references that double": (DOUBLING | {"$ref": "#/$defs/d0"}, {}),
    "a reference to itself": ({"$ref": "#"}, {}),
    "unevaluated properties": (DOUBLING | {"$ref": "#/$defs/d0", "unevaluatedProperties": False}, {"a": 1}),
    "many items that ought to differ": (
        {"properties": {"a": {"uniqueItems": True}}},
        {"a": [[n] for n in range(50_000)]},
    ),
    "deep arguments": ({"properties": {"a": {"$ref": "#"}}, "type": "object"}, None),
}


@pytest.mark.parametrize("name", HANGING)
def test_no_schema_can_hang_or_break_the_check(name):
    schema, arguments = HANGING[name]
    if arguments is None:
        arguments = {}
        for _ in range(900):
            arguments = {"a": arguments}
    began = time.process_time()
    schemas(schema).fault("f", arguments)
    assert time.process_time() - began < 2.0


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "OBJECT", "properties": {"a": {"type": "STRING"}}},
        {"type": 7},
        {"properties": 3},
        {"required": "city"},
        {"pattern": "["},
        {"items": [{"type": "string"}]},
        {
            "$schema": "http://json-schema.org/draft-04/schema#",
            "properties": {"a": {"minimum": 0, "exclusiveMinimum": True}},
        },
        {"properties": {"a": {"minimum": 0, "exclusiveMinimum": True}}},
    ],
)
def test_a_schema_that_is_broken_or_of_another_dialect_judges_nobody(schema):
    assert schemas(schema).fault("f", {"a": 1}) is None


def test_the_calls_of_one_request_share_what_slow_patterns_may_cost():
    parameters = {"type": "object", "properties": {"a": {"type": "string", "pattern": "^(a+)+$"}}}
    schemas = ToolSchemas([{"function": {"name": "f", "parameters": parameters}}])
    assert schemas.fault("f", {"a": 1}) == "schema_mismatch"
    began = time.thread_time()
    for _ in range(2000):
        assert schemas.fault("f", {"a": "a" * 4000 + "!"}) is None
    assert time.thread_time() - began < 2
    # What is left judges nobody, whether it would fit or not.
    assert schemas.fault("f", {"a": 1}) is None
