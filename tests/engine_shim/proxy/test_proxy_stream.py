"""Framing of server-sent events on bytes, whatever is cut where; tool calls in all their dialects."""

from __future__ import annotations

import json
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from checkengine.engine_shim.proxy.calls import CallText
from checkengine.engine_shim.proxy.dialects import with_field
from checkengine.engine_shim.proxy.stream import EventFramer, event_name, payload_of

END = st.sampled_from(["\n", "\r\n", "\r"])
LINE = st.one_of(
    st.text(st.characters(exclude_characters="\r\n", exclude_categories=["Cs"]), max_size=12).map(
        lambda text: "data: " + text
    ),
    st.sampled_from([": comment", "event: x", "id: 1", "retry: 10", "data", "data:", "data: [DONE]", "🦙"]),
)


@st.composite
def streams(draw) -> bytes:
    end = draw(END)
    events = draw(st.lists(st.lists(LINE, min_size=1, max_size=3), max_size=6))
    text = "".join("".join(line + end for line in lines) + end for lines in events)
    return (draw(st.sampled_from(["", "\ufeff"])) + text + draw(st.sampled_from(["", "data: cut"]))).encode()


def cut(data: bytes, seed: int) -> list[bytes]:
    draw, parts = random.Random(seed), []
    while data:
        size = draw.randint(1, max(1, len(data)))
        parts.append(data[:size])
        data = data[size:]
    return parts


def events_of(parts: list[bytes]) -> tuple[list[bytes], bytes]:
    framer, found = EventFramer(), []
    for part in parts:
        found += framer.push(part)
    return found, framer.end()


@given(streams(), st.integers(0, 1 << 30))
@settings(max_examples=300, deadline=None)
def test_where_a_stream_is_cut_changes_neither_bytes_nor_payloads(data, seed):
    whole, rest = events_of([data])
    found, tail = events_of(cut(data, seed))
    assert b"".join(found) + tail == data == b"".join(whole) + rest
    assert [payload_of(event) for event in found if payload_of(event)] == [
        payload_of(event) for event in whole if payload_of(event)
    ]


@given(st.binary(max_size=200), st.integers(0, 1 << 30))
@settings(max_examples=300, deadline=None)
def test_bytes_that_are_no_stream_come_out_as_they_went_in(data, seed):
    found, tail = events_of(cut(data, seed))
    assert b"".join(found) + tail == data
    for event in found:
        payload_of(event)
        event_name(event)


def test_a_stream_cut_at_every_byte_gives_the_same_payloads():
    data = 'data: {"a":"hé🦙"}\r\n\r\n: ping\r\n\r\ndata: one\r\ndata: two\r\n\r\ndata: [DONE]\r\n\r\n'.encode()
    wanted = ['{"a":"hé🦙"}'.encode(), b"one\ntwo", b"[DONE]"]
    for place in range(len(data) + 1):
        found, _ = events_of([data[:place], data[place:]])
        assert [payload for event in found if (payload := payload_of(event))] == wanted


@pytest.mark.parametrize(
    ("event", "payload", "name"),
    [
        (b"data: x\n\n", b"x", b""),
        (b"data:x\n\n", b"x", b""),
        (b"data:  x\n\n", b" x", b""),
        (b"data: a\ndata: b\n\n", b"a\nb", b""),
        (b"event: error\ndata: x\r\n\r\n", b"x", b"error"),
        (b": data: x\n\n", b"", b""),
        (b"\ndata: x\n\n", b"x", b""),
        (b"\xef\xbb\xbfdata: x\n\n", b"x", b""),
        (b"database: x\n\n", b"", b""),
    ],
)
def test_an_event_is_read_as_the_standard_says(event, payload, name):
    assert (payload_of(event), event_name(event)) == (payload, name)


@pytest.mark.parametrize("data", [b"{}", b'{"a":1}', b' {"a":{"b":[1,2]}} \n', b'{"a":"}"}'])
def test_a_field_is_put_into_an_object_without_touching_the_rest(data):
    out = with_field(data, "checkengine", {"kind": "x"})
    assert json.loads(out) == json.loads(data) | {"checkengine": {"kind": "x"}}
    assert out.startswith(data[: data.rindex(b"}")])


def part(index=None, identity=None, name=None, arguments=None) -> dict:
    function = {key: value for key, value in (("name", name), ("arguments", arguments)) if value is not None}
    delta = {key: value for key, value in (("index", index), ("id", identity)) if value is not None}
    return delta | {"function": function}


DIALECTS = {
    "OpenAI": [
        part(0, "a", "f", ""),
        part(0, None, None, '{"x"'),
        part(0, None, None, ":1}"),
        part(1, "b", "g", ""),
        part(1, None, None, "{}"),
    ],
    "one index for all": [part(0, "a", "f", '{"x":1}'), part(0, "b", "g", "{}")],
    "no index": [part(None, "a", "f", '{"x":1}'), part(None, "b", "g", "{}")],
    "neither index nor id": [part(None, None, "f", '{"x":1}'), part(None, None, "g", "{}")],
    "from one": [part(1, "a", "f", '{"x":1}'), part(2, "b", "g", "{}")],
    "empty ids": [part(0, "a", "f", ""), part(0, "", "", '{"x":1}'), part(1, "b", "g", ""), part(1, "", None, "{}")],
    "id again and again": [
        part(0, "a", "f", '{"x"'),
        part(0, "a", None, ":1}"),
        part(1, "b", "g", "{"),
        part(1, "b", None, "}"),
    ],
    "id after the first": [
        part(0, None, "f", ""),
        part(0, "a", None, '{"x":1}'),
        part(1, None, "g", ""),
        part(1, "b", None, "{}"),
    ],
    "name again and again": [part(0, "a", "f", '{"x"'), part(0, "a", "f", ":1}"), part(1, "b", "g", "{}")],
    "arguments as an object": [part(0, "a", "f", {"x": 1}), part(1, "b", "g", {})],
    "side by side": [
        part(0, "a", "f", '{"x"'),
        part(1, "b", "g", "{"),
        part(0, None, None, ":1}"),
        part(1, None, None, "}"),
    ],
}


@pytest.mark.parametrize("deltas", DIALECTS.values(), ids=DIALECTS.keys())
@pytest.mark.parametrize("together", [True, False])
def test_tool_calls_are_read_in_every_dialect(deltas, together):
    calls = CallText()
    text = calls.push(deltas) if together else "".join(calls.push([delta]) for delta in deltas)
    text += calls.end()
    found = [json.loads(each.removeprefix("<tool_call>")) for each in text.split("</tool_call>") if each]
    assert found == [{"name": "f", "arguments": {"x": 1}}, {"name": "g", "arguments": {}}]
    assert calls.count == 2


@given(
    st.lists(
        st.recursive(
            st.none() | st.integers() | st.text(max_size=3),
            lambda inner: (
                st.lists(inner, max_size=2)
                | st.dictionaries(st.sampled_from(["id", "index", "function", "name", "arguments"]), inner, max_size=4)
            ),
            max_leaves=8,
        ),
        max_size=8,
    )
)
@settings(max_examples=200, deadline=None)
def test_what_is_no_tool_call_tells_nothing_and_raises_nothing(deltas):
    calls = CallText()
    calls.push(deltas)
    calls.push("x")
    calls.function_call(deltas)
    calls.end()
