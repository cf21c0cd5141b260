"""Tools, calls and results out of messages of every dialect, and out of what is no message at all."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from checkengine.detectors.tool_calls import Round, Said, TurnLoops, UserTurn, prompt_of, tools_of, turns_of

USER = {"role": "user", "content": "Weather in Oslo?"}
DIALECTS = {
    "openai": [
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "rain"},
    ],
    "arguments as an object": [
        {"role": "assistant", "tool_calls": [{"id": "c1", "function": {"name": "f", "arguments": {"a": 1}}}]},
        {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "rain"}]},
    ],
    "no ids": [
        {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": '{"a": 1}'}}]},
        {"role": "tool", "content": "rain"},
    ],
    "legacy": [
        {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": '{"a": 1}'}},
        {"role": "function", "name": "f", "content": "rain"},
    ],
    "blocks": [
        {
            "role": "assistant",
            "content": [
                {"type": "text", "text": ""},
                {"type": "tool_use", "id": "t1", "name": "f", "input": {"a": 1}},
            ],
        },
        {
            "role": "user",
            "content": [{"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "rain"}]}],
        },
    ],
    "tags in the text": [
        {"role": "assistant", "content": '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'},
        {"role": "user", "content": "<tool_response>\nrain\n</tool_response>"},
    ],
}


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_call_and_its_result_are_read_in_every_dialect(dialect):
    turns = turns_of([USER, *DIALECTS[dialect]])
    (use,) = next(turn for turn in turns if isinstance(turn, Round)).uses
    assert (use.name, use.arguments, use.result, use.message, use.result_message) == ("f", {"a": 1}, "rain", 1, 2)
    assert [turn.text for turn in turns if isinstance(turn, UserTurn)] == ["Weather in Oslo?"]


def test_results_in_another_order_find_their_calls():
    calls = [{"id": f"c{n}", "function": {"name": "f", "arguments": json.dumps({"n": n})}} for n in range(3)]
    results = [{"role": "tool", "tool_call_id": f"c{n}", "content": str(n)} for n in (2, 0, 1)]
    (turn,) = turns_of([{"role": "assistant", "tool_calls": calls}, *results])
    assert isinstance(turn, Round)
    assert [use.result for use in turn.uses] == ["0", "1", "2"]


def test_an_id_that_comes_back_later_belongs_to_the_later_call():
    def pair(result):
        call = {"id": "same", "function": {"name": "f", "arguments": "{}"}}
        return [
            {"role": "assistant", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "same", "content": result},
        ]

    turns = turns_of([*pair("one"), *pair("two")])
    assert [turn.uses[0].result for turn in turns if isinstance(turn, Round)] == ["one", "two"]


def test_a_result_for_nobody_is_left_out():
    turns = turns_of([{"role": "tool", "tool_call_id": "x", "content": "late"}, *DIALECTS["openai"]])
    assert [turn.uses[0].result for turn in turns if isinstance(turn, Round)] == ["rain"]


def test_arguments_that_are_no_json_are_told_apart():
    call = {"id": "c", "function": {"name": "f", "arguments": '{"a": '}}
    (turn,) = turns_of([{"role": "assistant", "tool_calls": [call]}])
    assert isinstance(turn, Round)
    assert (turn.uses[0].form, turn.uses[0].arguments) == ("broken", '{"a": ')


def test_the_prompt_is_the_last_user_turn_behind_the_system_prompt():
    messages = [
        {"role": "system", "content": "Be short."},
        USER,
        {"role": "assistant", "content": "Rain."},
        {"role": "user", "content": [{"type": "text", "text": "And"}, {"type": "text", "text": "Rome?"}]},
        *DIALECTS["blocks"],
    ]
    assert prompt_of(messages) == "Be short.\nAnd\nRome?"
    assert prompt_of(None) == prompt_of([]) == ""


def test_tools_are_listed_in_one_shape_whatever_the_request_has():
    schema = {"type": "object"}
    wanted = ({"type": "function", "function": {"name": "f", "parameters": schema}},)
    assert tools_of({"tools": [{"type": "function", "function": {"name": "f", "parameters": schema}}]}) == wanted
    assert tools_of({"tools": [{"name": "f", "input_schema": schema}]}) == wanted
    assert tools_of({"functions": [{"name": "f", "parameters": schema}]}) == wanted
    assert tools_of({"tools": "f"}) == tools_of(None) == tools_of({"tools": [3, {}, {"function": "f"}]}) == ()


def test_an_assistants_words_are_turns_of_their_own():
    turns = turns_of([USER, {"role": "assistant", "content": "Rain."}])
    assert isinstance(turns[-1], Said)


def nested(depth: int) -> object:
    value: object = "x"
    for _ in range(depth):
        value = {"a": [value]}
    return value


HOSTILE = {
    "tool_calls is no list": {"role": "assistant", "tool_calls": "f"},
    "tool_calls holds no calls": {"role": "assistant", "tool_calls": [None, 3, "f", [], {}, {"function": 7}]},
    "a name that is a list": {"role": "assistant", "tool_calls": [{"function": {"name": ["f"], "arguments": 3}}]},
    "deep arguments": {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": nested(5000)}}]},
    "deep JSON": {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "[" * 100_000}}]},
    "a number of many digits": {
        "role": "assistant",
        "tool_calls": [{"function": {"name": "f", "arguments": "9" * 9999}}],
    },
    "lone surrogates": {
        "role": "assistant",
        "tool_calls": [{"function": {"name": "\ud800", "arguments": '"\\ud800"'}}],
    },
    "a role that is a number": {"role": 3, "content": 4},
    "content that is an object": {"role": "user", "content": {"deep": nested(3000)}},
    "a result of ten megabytes": {"role": "tool", "content": "x 1 " * 2_500_000},
    "no message": 17,
    "function_call as text": {"role": "assistant", "function_call": "f"},
    "bytes": {"role": "assistant", "content": b"\xff"},
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_messages_never_raise(name):
    messages = [USER, *DIALECTS["openai"][:1], HOSTILE[name], *DIALECTS["openai"][1:], HOSTILE[name]] * 3
    list(TurnLoops().read(turns_of(messages)))
    prompt_of(messages)


def test_messages_that_are_no_list_are_an_empty_conversation():
    for messages in (None, 3, "text", {"role": "user"}, b"x"):
        assert turns_of(messages) == []


SCRAPS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=6),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["role", "content", "tool_calls", "function", "name", "arguments", "id", "type", "text", "input"]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)
MESSAGES = st.fixed_dictionaries(
    {"role": st.sampled_from(["user", "assistant", "tool", "function", "system"])},
    optional={"content": SCRAPS, "tool_calls": SCRAPS, "function_call": SCRAPS, "tool_call_id": SCRAPS, "name": SCRAPS},
)


@settings(max_examples=200, deadline=None)
@given(st.lists(MESSAGES | SCRAPS, max_size=6))
def test_no_conversation_raises(messages):
    list(TurnLoops().read(turns_of(messages)))
    prompt_of(messages)
    tools_of(messages)
