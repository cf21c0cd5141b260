"""Tool calls in a token stream, and loops of them."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from checkengine.detectors import CallLimits, CallLoops, ToolCall, ToolCallRecogniser

HERMES = (
    b'I will look.\n<tool_call>\n{"name": "search", "arguments": {"query": "a } b </x>", "n": [1, 2]}}\n</tool_call>'
)
LLAMA = (
    b'<|python_tag|>{"name": "search", "parameters": {"query": "\\"}{"}}; {"name": "open", "parameters": {}}<|eom_id|>'
)
BARE = b'{"name": "search", "parameters": {"query": "x"}}'
MISTRAL_LIST = b'[TOOL_CALLS] [{"name": "a", "arguments": {"x": [1]}}, {"name": "b", "arguments": {}}]</s>'
MISTRAL_NAMED = b'Sure.[TOOL_CALLS]first[ARGS]{"x": 1}[TOOL_CALLS]second[ARGS]{"y": {"z": "]"}} done'
EVERY = {
    HERMES: ["search"],
    LLAMA: ["search", "open"],
    BARE: ["search"],
    MISTRAL_LIST: ["a", "b"],
    MISTRAL_NAMED: ["first", "second"],
}


def calls_of(pieces) -> list[ToolCall]:
    recogniser = ToolCallRecogniser()
    return [call for piece in pieces for call in recogniser.push(piece)]


def call(name: str, arguments: object) -> bytes:
    return b"<tool_call>\n" + json.dumps({"name": name, "arguments": arguments}).encode() + b"\n</tool_call>\n"


@pytest.mark.parametrize("text", EVERY, ids=["hermes", "llama", "bare", "mistral list", "mistral named"])
def test_a_call_is_recognised_at_every_split_of_its_bytes(text):
    whole = calls_of([text])
    assert [c.name for c in whole] == EVERY[text]
    assert all(c.well_formed for c in whole)
    digests = [c.digest for c in whole]
    for at in range(1, len(text)):
        assert [c.digest for c in calls_of([text[:at], text[at:]])] == digests
    assert [c.digest for c in calls_of([text[i : i + 1] for i in range(len(text))])] == digests


def test_positions_are_the_tokens_of_the_first_and_last_byte():
    (found,) = calls_of(
        [b"Hi ", b"<tool", b"_call>", b'{"name": "a", ', b'"arguments": {}}', b"</tool", b"_call>", b"!"]
    )
    assert (found.start, found.end) == (1, 6)


@settings(max_examples=80, deadline=None)
@given(
    st.dictionaries(st.text(max_size=5), st.recursive(st.integers() | st.text(max_size=8) | st.none(), st.lists)),
    st.integers(0, 5),
)
def test_key_order_and_white_space_do_not_make_another_call(arguments, indent):
    turned = dict(reversed(arguments.items()))
    a = json.dumps({"name": "f", "arguments": arguments})
    b = json.dumps({"arguments": turned, "name": "f"}, indent=indent, ensure_ascii=False)
    first, second = calls_of([f"<tool_call>{a}</tool_call><tool_call> {b} </tool_call>".encode()])
    assert first.digest == second.digest


def test_other_names_arguments_and_types_make_another_call():
    texts = [call("f", {"a": 1}), call("g", {"a": 1}), call("f", {"a": "1"}), call("f", {"a": [1]}), call("f", None)]
    assert len({c.digest for c in calls_of(texts)}) == 5


def test_arguments_in_a_string_equal_arguments_as_an_object():
    (a,) = calls_of([b'<tool_call>{"name": "f", "arguments": "{\\"x\\": 1}"}</tool_call>'])
    (b,) = calls_of([b'<tool_call>{"name": "f", "arguments": {"x": 1}}</tool_call>'])
    assert a.digest == b.digest


def test_a_payload_of_no_family_is_compared_by_its_text_without_white_space():
    odd = b"<tool_call>\n{look: sea,\n now}\n</tool_call>"
    first, second = calls_of([odd, odd.replace(b"\n", b" ")])
    assert first.digest == second.digest
    assert (first.name, first.well_formed) == (None, False)


def test_an_opening_tag_inside_an_open_call_ends_it_as_malformed():
    found = calls_of([b'<tool_call>{"name": "a", <tool_call>{"name": "a", "arguments": {}}</tool_call>'])
    assert [c.well_formed for c in found] == [False, True]


def test_a_json_answer_is_no_call():
    recogniser = ToolCallRecogniser()
    for piece in (b'{"name": "Bob', b'", "age": 7, "pets": [', b'{"name": "Rex"}]}', b" Thanks."):
        assert recogniser.push(piece) == ()
        assert recogniser.open_since is None


def test_python_after_llamas_tag_is_no_open_call():
    recogniser = ToolCallRecogniser()
    for piece in (b"<|python_tag|>", b"import", b" math\nprint(math.pi)"):
        assert recogniser.push(piece) == ()
    assert recogniser.open_since is None


def test_less_than_signs_and_brackets_in_code_are_no_calls():
    text = b"if a<b and c[TOOL] < d: x = [TOOLS[1], <tool>] </tool> <tool_calls> a[1][2] = {'name': 'x'}"
    recogniser = ToolCallRecogniser()
    for i in range(len(text)):
        assert recogniser.push(text[i : i + 1]) == ()
    assert (recogniser.open_since, recogniser.stray_closings, recogniser.calls) == (None, 0, 0)


def test_the_state_tells_since_when_a_call_is_open():
    recogniser = ToolCallRecogniser()
    for piece in (b"a", b"<tool_call>", b'{"name"', b": 1"):
        recogniser.push(piece)
    assert (recogniser.open_since, recogniser.open_tokens) == (1, 3)
    recogniser.push(b"</tool_call>")
    assert (recogniser.open_since, recogniser.open_tokens, recogniser.calls) == (None, 0, 1)


def test_an_endless_payload_is_kept_in_bounded_memory_and_still_ends():
    recogniser = ToolCallRecogniser()
    recogniser.push(b"<tool_call>")
    for _ in range(3000):
        recogniser.push(b"abcdefgh" * 8)
    assert len(recogniser._payload) < 70_000
    (found,) = recogniser.push(b"</tool_call>")
    assert not found.well_formed


def readings(pieces, **limits):
    loops = CallLoops(CallLimits(**limits))
    return [(i, reading) for i, piece in enumerate(pieces) if (reading := loops.push(piece)) is not None]


def test_the_same_call_again_and_again_is_reported_from_the_limit_on():
    same = call("search", {"q": "x"})
    found = readings([b"Sure.", same, b"\n", same, same, same])
    assert [(i, r.kind, r.count, r.start) for i, r in found] == [(4, "repeated", 3, 3), (5, "repeated", 4, 3)]


def test_calls_between_the_repeats_do_not_hide_them():
    pieces = [call("search", {"q": "x"}), call("open", {"n": 1}), call("search", {"q": "x"}), call("open", {"n": 2})]
    found = readings([*pieces, call("search", {"q": "x"})])
    assert [r.count for _, r in found] == [3]


def test_parallel_calls_that_differ_are_no_loop():
    assert readings([call("weather", {"city": str(i)}) for i in range(50)]) == []


def test_a_call_that_does_not_end_is_reported_once():
    pieces = [b"<tool_call>", b'{"name": "f", "arguments": {"text": "'] + [b"%d words " % n for n in range(200)]
    found = readings(pieces, unclosed_tokens=100)
    assert [(i, r.kind, r.count, r.start) for i, r in found] == [(100, "unclosed", 101, 0)]


def test_closing_tags_again_and_again_are_reported_once():
    found = readings([call("f", {}), *[b"</tool", b"_call>\n"] * 20])
    assert [(r.kind, r.count, r.start) for _, r in found] == [("closings", 8, 1)]


def test_closing_tags_of_parallel_calls_are_no_loop():
    assert readings([call("f", {"n": n}) for n in range(30)], stray_closings=2) == []


def test_opening_tags_again_and_again_are_reported_once():
    found = readings([b"Yes.", *[b"<tool_call>\n"] * 20])
    assert [(i, r.kind, r.start) for i, r in found] == [(8, "openings", 2)]


def test_calls_that_only_the_next_one_ends_are_reported_once():
    pieces = [b'<tool_call>{"name": "f", "arguments": {"n": %d}}\n' % n for n in range(20)]
    assert [(i, r.kind) for i, r in readings(pieces)] == [(7, "openings")]


def test_an_argument_whose_text_repeats_without_end_is_found_within_eight_copies():
    copy = b"and then the sea came in, "
    pieces = [b'<tool_call>{"name": "f", "arguments": {"q": "', *[copy] * 30]
    ((index, reading),) = readings(pieces)
    assert reading.kind == "endless"
    assert index <= 8
    assert reading.start == 0


def test_dividers_and_zeros_in_a_written_file_are_no_endless_call():
    content = "=" * 120 + "\n" + "0, " * 100 + "\n" + "| - " * 60
    assert readings([call("write_file", {"path": "a.md", "content": content})[:-15]]) == []


def test_a_long_file_in_one_call_is_no_fault():
    lines = "".join(f"value_{n} = compute({n * n}, {n % 7})\n" for n in range(3000))
    written = call("write_file", {"path": "a.py", "content": lines})
    loops = CallLoops()
    assert {loops.push(written[i : i + 20]) for i in range(0, len(written), 20)} == {None}
    assert loops.recogniser.calls == 1


def test_a_call_too_long_to_be_kept_is_not_called_malformed():
    (found,) = calls_of([call("write_file", {"content": "abc " * 40_000})])
    assert not found.complete


def test_the_cut_of_an_overlong_call_into_pieces_changes_nothing():
    written = call("write_file", {"content": "abcd efg\n" * 20_000})
    (whole,) = calls_of([written])
    (parts,) = calls_of([written[i : i + 997] for i in range(0, len(written), 997)])
    assert whole.digest == parts.digest
