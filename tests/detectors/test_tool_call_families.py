"""Every family of delimiters, from text cut anywhere and from token ids."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from checkengine.benchmarks.detectors.tool_call_families import FAMILIES, runaways
from checkengine.detectors.tool_calls import DIALECTS, CallLoops, ToolCallRecogniser, tags_of
from checkengine.detectors.tool_calls.payload import parse_calls


def read(pieces):
    recogniser = ToolCallRecogniser()
    found = [call for piece in pieces for call in recogniser.push(piece)]
    return recogniser, found


def test_there_are_more_than_a_dozen_families():
    assert len(DIALECTS) >= 20
    assert len(FAMILIES) >= 24


@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_is_recognised_at_every_split_of_its_bytes(family):
    text, calls = FAMILIES[family]
    data = text.encode() + b"\nThat is all."
    ways = [[data], [data[i : i + 1] for i in range(len(data))]]
    ways += [[data[:at], data[at:]] for at in range(1, len(data))]
    digests = [call.digest for call in read(ways[0])[1]]
    for pieces in ways:
        recogniser, found = read(pieces)
        assert [(call.name, call.arguments) for call in found] == calls
        assert all(call.well_formed for call in found)
        assert [call.digest for call in found] == digests
        assert recogniser.open_since is None
        assert recogniser.stray_closings <= 1


@pytest.mark.parametrize("family", FAMILIES)
def test_a_call_begins_at_the_same_byte_however_it_is_cut(family):
    data = FAMILIES[family][0].encode()
    by_byte = [call.start for call in read([data[i : i + 1] for i in range(len(data))])[1]]
    for at in range(1, len(data)):
        starts = [call.start for call in read([data[:at], data[at:]])[1]]
        assert starts[:1] == [int(by_byte[0] >= at)]


@settings(max_examples=150, deadline=None)
@given(st.lists(st.sampled_from([text for text, _ in FAMILIES.values()]), min_size=1, max_size=4), st.randoms())
def test_families_in_a_row_are_read_alike_however_they_are_cut(texts, random):
    data = "\n".join(texts).encode()
    cuts = sorted(random.randrange(len(data) + 1) for _ in range(random.randrange(12)))
    pieces = [data[a:b] for a, b in zip([0, *cuts], [*cuts, len(data)], strict=True)]
    assert [call.digest for call in read(pieces)[1]] == [call.digest for call in read([data])[1]]


@settings(max_examples=300, deadline=None)
@given(
    st.lists(
        st.sampled_from(sorted(tags_of().all))
        | st.binary(max_size=6)
        | st.sampled_from(
            [b'{"name": "f", "arguments": {}}', b"[", b"{", b"f(", b'"', b"\\", b"<|message|>", b" to=functions.f "]
        ),
        max_size=24,
    )
)
def test_tags_in_any_disorder_never_raise_and_cuts_change_nothing(parts):
    data = b"".join(parts)
    whole, by_byte = read([data]), read([data[i : i + 1] for i in range(len(data))])
    assert [call.digest for call in whole[1]] == [call.digest for call in by_byte[1]]
    assert whole[0].stray_closings == by_byte[0].stray_closings
    assert whole[0].unclosed_calls == by_byte[0].unclosed_calls
    assert (whole[0].open_since is None) == (by_byte[0].open_since is None)


@settings(max_examples=300, deadline=None)
@given(st.text(alphabet="<>[]{}()\"'\\=:,/| \nabfx▁｜é0", max_size=60))
def test_no_payload_makes_the_parser_raise(text):
    parse_calls(text)


def test_nesting_without_end_in_a_payload_is_no_call_and_no_crash():
    for text in ("[" * 50_000, '{"a":' * 20_000, "f(" * 8_000, "f(" + "-" * 9_000 + "1)", "call:f{" + "{" * 30_000):
        assert parse_calls(text) is None or isinstance(parse_calls(text), list)


@pytest.mark.parametrize("name", runaways(1))
def test_a_generation_that_does_not_end_is_found_within_eight_repeats(name):
    data = runaways(8)[name].encode()
    loops = CallLoops()
    assert any(loops.push(data[i : i + 3]) is not None for i in range(0, len(data), 3))


@pytest.mark.parametrize("name", runaways(1))
def test_two_repeats_are_no_fault(name):
    loops = CallLoops()
    assert loops.push(runaways(2)[name].encode()) is None


def test_loud_tokens_are_those_in_which_a_tag_stands_or_begins():
    pieces = (
        b"the",
        b" <",
        b"<tool_call>",
        b"a[",
        b"[1]",
        b"</",
        b"tool_call>",
        b"x < y",
        b"[TOOL",
        "<｜".encode(),
        b"{",
    )
    assert tags_of().loud_tokens(pieces) == {1, 2, 3, 5, 8, 9}


def test_prose_about_tags_opens_no_call():
    text = (
        "Hermes models write `<tool_call>` and `</tool_call>`, Jamba <tool_calls>, Olmo <function_calls> around calls. "
        "Harmony uses <|channel|>analysis<|message|>thoughts<|end|>."
    )
    recogniser, found = read([text.encode()])
    assert [call.looks_like_one for call in found] in ([], [False])
    assert recogniser.open_since is None
