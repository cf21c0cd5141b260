"""`checkengine bench proxy`: each figure as it is known, and the mock that it measures with."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from checkengine.benchmarks.proxy import proxy_figures
from checkengine.benchmarks.proxy_holds import LOOP_EVERY, STREAM_EVERY, various
from checkengine.benchmarks.proxy_litellm import litellm_proxy
from checkengine.benchmarks.proxy_upstream import prompt_of, whole
from checkengine.commands import bench
from checkengine.guards.errors import UserError


def test_an_unknown_part_is_one_clear_error() -> None:
    with pytest.raises(UserError, match="bench proxy has no part 'sped'; there are cost, latency, prompts"):
        proxy_figures(only=["sped"])


def test_an_environment_without_litellm_is_one_clear_error(tmp_path: Path) -> None:
    beside = litellm_proxy(tmp_path / "python", "http://127.0.0.1:1", None)
    with pytest.raises(UserError, match="takes the Python of an environment with litellm"), beside:
        pass


def test_litellm_is_measured_beside_the_proxy_only() -> None:
    done = CliRunner().invoke(bench.app, ["logits", "--litellm", "python"])
    assert "--litellm belongs to `bench proxy`" in str(done.exception)


def test_no_two_requests_of_the_memory_run_are_alike_and_some_are_loops() -> None:
    bodies = [json.loads(various(number)) for number in range(100)]
    assert len({body["messages"][0]["content"] for body in bodies}) == 100
    assert sum(body["stream"] for body in bodies) == 100 // STREAM_EVERY
    assert sum(body["mock"]["loops"] for body in bodies) == 100 // LOOP_EVERY


def test_the_mock_answers_with_a_loop_where_it_is_asked_for_one() -> None:
    assert whole(16, loops=True).count(b"It cannot be helped") == 40
    assert b"cannot be helped" not in whole(16)
    assert 1000 <= len(prompt_of(1000, 1)) < 1100
    assert prompt_of(1000, 1) != prompt_of(1000, 2)
