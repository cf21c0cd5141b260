"""Engines that are made in other ways: each of them finds the bad row and stops its sequence. Three engine starts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from chats import CHATS, VICTIM, ask, difference, findings, prompt_length, tokens
from conftest import Switches

pytestmark = pytest.mark.timeout(900)
NAN = "checkengine:logits.nonfinite"


def test_async_scheduling_stops_the_sequence_before_a_bad_token_is_sent(
    start: Callable[..., Any], switches: Switches
) -> None:
    with switches.on("async_scheduling"), start() as engine:
        assert engine.llm_engine.vllm_config.scheduler_config.async_scheduling
        clean = ask(engine)
        with switches.on("nan_row", length=prompt_length(clean[VICTIM]) + 9):
            struck = ask(engine)
        assert struck[VICTIM].outputs[0].stop_reason == NAN
        assert tokens(struck[VICTIM]) == tokens(clean[VICTIM])[:9]
        again = ask(engine)
        for name in CHATS:
            assert name == VICTIM or difference(clean[name], struck[name]) == "", name
            assert difference(clean[name], again[name]) == "", name


def test_a_bad_row_among_verified_drafts_stops_at_its_own_token(start: Callable[..., Any], switches: Switches) -> None:
    guess = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 3, "prompt_lookup_min": 2}
    with start(speculative_config=guess, disable_log_stats=False) as engine:
        clean = ask(engine)
        drafted = [metric for metric in engine.get_metrics() if metric.name == "vllm:spec_decode_num_accepted_tokens"]
        assert drafted[0].value > 0, "something was speculated"
        with switches.on("nan_row", length=prompt_length(clean["agent"]) + 9):
            struck = ask(engine)
        assert struck["agent"].outputs[0].stop_reason == NAN
        assert tokens(struck["agent"]) == tokens(clean["agent"])[:9]
        for name in CHATS.keys() - {"agent"}:
            assert difference(clean[name], struck[name]) == "", name


def test_tensor_parallel_ranks_observe_and_the_scheduler_decides_once(
    start: Callable[..., Any], switches: Switches
) -> None:
    """Three, because SmolLM2 has nine heads. On two cores vLLM must be kept from binding its threads."""
    settings = {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1"}
    with start(settings, tensor_parallel_size=3) as engine:
        clean = ask(engine, max_tokens=16)
        with switches.on("nan_row", length=prompt_length(clean[VICTIM]) + 5):
            struck = ask(engine, max_tokens=16)
        assert struck[VICTIM].outputs[0].stop_reason == NAN
        assert tokens(struck[VICTIM]) == tokens(clean[VICTIM])[:5]
        assert len(findings(engine.spool)) == 1
        for name in CHATS.keys() - {VICTIM}:
            assert difference(clean[name], struck[name]) == "", name
