"""Faults planted into vLLM's own execution: each is caught, and only its sequence is stopped. One engine start."""

from __future__ import annotations

from typing import Any

import pytest
from chats import CHATS, VICTIM, ask, chat_parameters, difference, findings, prompt_length, tokens, user
from conftest import Switches

pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module")
def clean(engine: Any) -> dict[str, Any]:
    """The undisturbed run, on memory that another run has used before."""
    ask(engine)
    engine.reset_prefix_cache()
    answers = ask(engine)
    assert all(answer.outputs[0].stop_reason is None for answer in answers.values())
    return answers


def only_the_victim_was_stopped(clean: dict[str, Any], struck: dict[str, Any], victim: str, reason: str) -> None:
    end = struck[victim].outputs[0]
    assert (end.finish_reason, end.stop_reason) == ("stop", reason)
    for name in clean.keys() - {victim}:
        assert struck[name].outputs[0].stop_reason is None
        assert difference(clean[name], struck[name]) == "", name


def test_a_row_of_nan_stops_its_sequence_at_the_last_good_token(
    engine: Any, clean: dict[str, Any], switches: Switches
) -> None:
    length, known = prompt_length(clean[VICTIM]) + 9, len(findings(engine.spool))
    with switches.on("nan_row", length=length):
        struck = ask(engine)
    only_the_victim_was_stopped(clean, struck, VICTIM, "checkengine:logits.nonfinite")
    # The row of this length samples output token 9: the prompt's last row samples token 0.
    assert tokens(struck[VICTIM]) == tokens(clean[VICTIM])[:9]
    told = [finding for finding in findings(engine.spool)[known:] if finding["kind"] == "logits.nonfinite"]
    assert [finding["token"] for finding in told] == [9]


def test_the_same_prefix_is_healthy_after_its_poisoned_request_was_stopped(
    engine: Any, clean: dict[str, Any], switches: Switches
) -> None:
    with switches.on("nan_row", length=prompt_length(clean[VICTIM]) + 5):
        assert ask(engine, [VICTIM])[VICTIM].outputs[0].stop_reason == "checkengine:logits.nonfinite"
    again = ask(engine)
    assert again[VICTIM].num_cached_tokens == 0
    for name in clean:
        assert difference(clean[name], again[name]) == "", name


def test_a_poisoned_shared_prefix_strikes_one_request_and_not_the_next_one(engine: Any, clean: dict[str, Any]) -> None:
    """The cached blocks of a prompt go bad in memory: who reads them is stopped, who comes after is not."""
    engine.reset_prefix_cache()
    engine.collective_rpc("fill_memory", args=(0.0,))
    ask(engine, [VICTIM])
    (used,) = engine.collective_rpc("blocks_in_use")
    engine.collective_rpc("poison_blocks", args=(used,))
    struck = ask(engine, [VICTIM])[VICTIM]
    assert struck.num_cached_tokens > 0
    assert struck.outputs[0].stop_reason == "checkengine:logits.nonfinite"
    assert tokens(struck) == []
    again = ask(engine, [VICTIM])[VICTIM]
    assert again.num_cached_tokens == 0
    assert difference(clean[VICTIM], again) == ""


def test_an_end_of_turn_that_is_not_honoured_after_a_tool_call_ends_the_sequence(
    engine: Any, clean: dict[str, Any], switches: Switches
) -> None:
    closing = engine.get_tokenizer().encode("</tool_call>", add_special_tokens=False)
    assert clean["agent"].outputs[0].text.rstrip().endswith("</tool_call>")
    with switches.on("deaf_stop", after=closing):
        struck = ask(engine)
    only_the_victim_was_stopped(clean, struck, "agent", "checkengine:stop.ignored")
    assert tokens(struck["agent"]) == tokens(clean["agent"])


def test_memory_full_of_large_numbers_changes_nothing_for_a_right_kernel(engine: Any, clean: dict[str, Any]) -> None:
    engine.reset_prefix_cache()
    engine.collective_rpc("fill_memory", args=(1e30,))
    healthy = ask(engine)
    assert all(tokens(healthy[name]) == tokens(clean[name]) for name in CHATS)


def test_quarantined_blocks_are_refilled_before_another_request_gets_them(
    engine: Any, clean: dict[str, Any], switches: Switches
) -> None:
    engine.reset_prefix_cache()
    engine.collective_rpc("fill_memory", args=(0.0,))
    with switches.on("nan_row", length=prompt_length(clean[VICTIM]) + 2):
        ask(engine, [VICTIM])
    assert engine.collective_rpc("count_nan")[0] > 0
    # One after the other gets the blocks that were used last.
    for name in CHATS:
        assert difference(clean[name], ask(engine, [name])[name]) == "", name
    assert engine.collective_rpc("count_nan")[0] == 0


def test_text_that_repeats_itself_for_good_is_cut_off(engine: Any) -> None:
    """No fault is planted: SmolLM2 does it on its own."""
    parameters = {"max_tokens": 900, "logprobs": None}
    poem = engine.chat([user("Write a haiku about rain.")], chat_parameters(**parameters), use_tqdm=False)[0].outputs[0]
    assert poem.stop_reason == "checkengine:repetition.loop"
    assert len(poem.token_ids) < 900
