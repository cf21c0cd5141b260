"""A prefix goes from one vLLM process to another; what is planted on its way is caught before a token rests on it."""

from __future__ import annotations

import pytest

from checkengine.motion.kv_transfer import figures


@pytest.mark.timeout(600)
def test_every_planted_fault_of_a_transfer_is_named_and_the_answer_is_the_clean_runs() -> None:
    assert [each["name"] for each in figures() if not each["ok"]] == []
