"""Guards on tool calls: token streams, texts, conversations."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers

from checkengine.benchmarks.detectors.tool_call_families import FAMILIES, runaways
from checkengine.detectors.vocabulary import Vocabulary
from checkengine.guards.finding import Severity
from checkengine.guards.settings import ToolCallSettings
from checkengine.guards.step import SequenceStart, StepView
from checkengine.guards.text import Conversation, TextStart
from checkengine.guards.text_tool_calls import TextToolCallGuard
from checkengine.guards.tool_calls import ToolCallGuard
from checkengine.guards.tool_loops import ToolLoopGuard

CALL = '<tool_call>\n{"name": "search", "arguments": {"query": "sea"}}\n</tool_call>\n'
TOOLS = (
    {
        "type": "function",
        "function": {
            "name": "search",
            "parameters": {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]},
        },
    },
)


def byte_vocabulary(special: tuple[str, ...] = ()) -> tuple[Vocabulary, Tokenizer]:
    """A byte-level tokenizer without merges: each byte is a token, save the special tokens."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({character: number for number, character in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in special])
    return Vocabulary.from_tokenizer(tokenizer), tokenizer


SPECIALS = (
    ("<tool_call>", "</tool_call>"),
    ("</tool_call>", "<tool_call>", "[TOOL_CALLS]", "<｜tool▁call▁begin｜>"),
    (),
)


def told(guard: ToolCallGuard, rows: dict[str, list[int]], width: int = 1) -> list[tuple[str, str, int]]:
    found = []
    longest = max(map(len, rows.values()))
    for step, at in enumerate(range(0, longest, width)):
        live = {name: tokens for name, tokens in rows.items() if at < len(tokens)}
        view = StepView(
            step,
            0.0,
            tuple(live),
            tuple(tuple(tokens[at : at + width]) for tokens in live.values()),
            None,
            np.zeros(len(live), np.int32),
            np.full(len(live), at, np.int32),
        )
        found += [(f.sequence, f.kind, f.token) for f in guard.observe(view)]
    return found


@pytest.mark.parametrize("special", SPECIALS)
@pytest.mark.parametrize("width", [1, 3])
def test_runaways_are_found_whatever_ids_the_tokenizer_gives_the_tags(special, width):
    vocabulary, tokenizer = byte_vocabulary(special)
    rows = {name: tokenizer.encode(text).ids for name, text in runaways(8).items()}
    rows |= {f"healthy {name}": tokenizer.encode(text).ids for name, (text, _) in FAMILIES.items()}
    found = told(ToolCallGuard(ToolCallSettings(), vocabulary), rows, width)
    assert {sequence for sequence, _, _ in found} == set(runaways(8))


def test_rows_that_are_left_out_change_nothing():
    vocabulary, tokenizer = byte_vocabulary(("<tool_call>",))
    texts = [*runaways(8).values(), *(text for text, _ in FAMILIES.values()), "if a[1] < b: x" * 20]
    rows = {str(number): tokenizer.encode(f"Well. {text}").ids for number, text in enumerate(texts)}
    together = told(ToolCallGuard(ToolCallSettings(), vocabulary), rows)
    guard = ToolCallGuard(ToolCallSettings(), vocabulary)
    guard._watched = set(range(len(vocabulary)))
    assert sorted(together) == sorted(told(guard, rows))


def test_an_end_token_of_one_sequence_is_another_sequences_plain_token():
    vocabulary, tokenizer = byte_vocabulary()
    guard = ToolCallGuard(ToolCallSettings(), vocabulary)
    stop = tokenizer.encode("!").ids[0]
    guard.begin(SequenceStart(1, "ends", stop_tokens=(stop,)))
    guard.begin(SequenceStart(2, "goes on", stop_tokens=(stop,), ignores_stop=True))
    ids = tokenizer.encode("Hi!" + CALL).ids
    assert told(guard, {"ends": ids, "goes on": ids}) == [("ends", "tool_call.runaway", 3)]


def test_a_sequence_that_is_over_leaves_nothing_behind():
    vocabulary, tokenizer = byte_vocabulary()
    guard = ToolCallGuard(ToolCallSettings(), vocabulary)
    before = len(guard._watched)
    guard.begin(SequenceStart(1, "a", stop_tokens=(70, 71)))
    told(guard, {"a": tokenizer.encode("Some words, " + CALL * 3).ids})
    guard.forget("a")
    guard.forget("never there")
    assert (guard._readings, guard._quiet, guard._stops, guard._reported) == ({}, set(), {}, {})
    assert len(guard._watched) == before


def test_ids_outside_the_vocabulary_are_no_text():
    vocabulary, _ = byte_vocabulary()
    assert told(ToolCallGuard(ToolCallSettings(), vocabulary), {"a": [-1, 10**6, 3, -7] * 5}) == []


def test_a_warning_that_gets_worse_is_told_again_as_an_error():
    vocabulary, tokenizer = byte_vocabulary()
    guard = ToolCallGuard(ToolCallSettings(unclosed_tokens=40), vocabulary)
    long_call = CALL.replace("sea", "a long question about the sea and the tides")
    ids = tokenizer.encode(long_call * 3).ids
    severities = []
    for at, token in enumerate(ids):
        view = StepView(at, 0.0, ("a",), ((token,),), None, np.zeros(1, np.int32), np.full(1, at, np.int32))
        severities += [finding.severity for finding in guard.observe(view)]
    assert severities == [Severity.WARNING, Severity.ERROR]


def text_findings(pieces, start=None):
    guard = TextToolCallGuard(start or TextStart("r"))
    return [finding for piece in pieces for finding in guard.push(piece)] + list(guard.end())


def test_the_same_call_three_times_in_a_text_is_an_error_placed_at_its_second_copy():
    (finding,) = text_findings(["Søk. " + CALL * 4])
    assert (finding.kind, finding.severity) == ("tool_call.runaway", Severity.ERROR)
    assert finding.at == {"char": 5 + len(CALL)}
    assert dict(finding.evidence) == {"reason": "repeated", "identical_calls": 3}


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        ('{"name": "search", "arguments": {"query": "sea"}', "invalid_json"),
        ('{"name": "find", "arguments": {"query": "sea"}}', "unknown_name"),
        ('{"name": "search", "arguments": {"q": "sea"}}', "schema_mismatch"),
        ('{"name": "search"}', "schema_mismatch"),
        ("not a call at all", "invalid_json"),
    ],
)
def test_a_call_that_does_not_fit_the_requests_tools_is_malformed(payload, reason):
    (finding,) = text_findings([f"Ah. <tool_call>{payload}</tool_call>"], TextStart("r", tools=TOOLS))
    assert (finding.kind, finding.severity) == ("tool_call.malformed", Severity.WARNING)
    assert dict(finding.evidence) == {"reason": reason}
    assert finding.at == {"char": 4}


def test_a_call_that_fits_is_no_finding():
    assert text_findings([CALL], TextStart("r", tools=TOOLS)) == []


def test_a_text_that_ends_inside_a_call_is_malformed_there():
    (finding,) = text_findings(["Ah. " + CALL[:40]])
    assert (finding.kind, dict(finding.evidence), finding.at) == (
        "tool_call.malformed",
        {"reason": "unclosed"},
        {"char": 4},
    )


def test_prose_about_tags_is_no_warning():
    text = "Hermes writes `<tool_call>` and `</tool_call>`; then `<tool_call>` again. " * 3
    assert [f for f in text_findings([text]) if f.severity > Severity.INFO] == []


TEXTS = [
    *runaways(9).values(),
    *(text for text, _ in FAMILIES.values()),
    "é < [ { ｜ 😀 \ud800 \x00",
    CALL[:50],
    '{"name": "f", "',
]


@settings(max_examples=200, deadline=None)
@given(st.lists(st.sampled_from(TEXTS), min_size=1, max_size=3), st.randoms())
def test_cutting_a_text_elsewhere_changes_no_finding(texts, random):
    text = "\n".join(texts)
    cuts = sorted(random.randrange(len(text) + 1) for _ in range(random.randrange(20)))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    start = TextStart("r", tools=TOOLS)
    assert facts(text_findings(pieces, start)) == facts(text_findings([text], start))


def facts(findings):
    return sorted(repr((f.kind, dict(f.at), f.evidence["reason"], f.severity)) for f in findings)


def test_a_text_of_many_megabytes_without_a_line_break_passes():
    assert text_findings(["a<b[c] " * 500_000, "x" * 5_000_000]) == []


def test_a_conversation_that_loops_is_told_by_numbers_and_rules_only():
    call = {"id": "c", "function": {"name": "search", "arguments": '{"query": "my secret"}'}}
    turn = [
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": "a secret page"},
    ]
    messages = ({"role": "user", "content": "Find it."}, *turn * 5)
    found = list(ToolLoopGuard().read(Conversation("chat", messages)))
    assert [(f.kind, f.severity, dict(f.at)) for f in found] == [
        ("tool_call.loop", Severity.WARNING, {"message": 5}),
        ("tool_call.loop", Severity.ERROR, {"message": 7}),
    ]
    assert dict(found[1].evidence) == {"rule": "identical", "count": 4, "period": 1, "first_message": 1}
    assert "secret" not in json.dumps([dict(f.evidence) for f in found])


def test_calls_of_a_conversation_are_held_against_its_tools():
    def turn(name, arguments):
        return {"role": "assistant", "tool_calls": [{"id": "c", "function": {"name": name, "arguments": arguments}}]}

    messages = (
        turn("search", '{"query": "x"}'),
        turn("search", '{"query": '),
        turn("seek", "{}"),
        turn("search", '{"q": 1}'),
    )
    found = list(ToolLoopGuard().read(Conversation("chat", messages, TOOLS)))
    assert [(f.at["message"], f.evidence["reason"]) for f in found] == [
        (1, "invalid_json"),
        (2, "unknown_name"),
        (3, "schema_mismatch"),
    ]


def test_loops_can_be_switched_off():
    call = {"id": "c", "function": {"name": "search", "arguments": "{}"}}
    turn = [{"role": "assistant", "tool_calls": [call]}, {"role": "tool", "tool_call_id": "c", "content": "page"}]
    guard = ToolLoopGuard(ToolCallSettings(loops=False))
    assert list(guard.read(Conversation("chat", tuple(turn * 9)))) == []
