"""The benchmarks of the black box inside vLLM."""

from __future__ import annotations

from importlib.util import find_spec

import pytest
from typer.testing import CliRunner

from checkengine.benchmarks import vllm_recorder
from checkengine.benchmarks.vllm_replay import vllm_replay_figures
from checkengine.commands.bench import app
from checkengine.engine_shim.vllm.recorder import StepRecorder
from checkengine.guards.errors import UserError


def test_every_step_of_the_recorders_benchmark_is_recorded() -> None:
    recorder = StepRecorder(vllm_recorder.BLOCK_SIZE, None)
    seconds = vllm_recorder.seconds_a_step(recorder, 4)
    window = recorder.recorder.window()
    assert 0 < seconds < 1
    assert window.last_step == vllm_recorder.STEPS
    assert (window.records[-1].token_ids == window.records[-2].sampled).all()


@pytest.mark.skipif(find_spec("vllm") is not None, reason="vLLM is here")
def test_the_replay_benchmark_says_what_it_needs() -> None:
    with pytest.raises(UserError, match="needs vLLM"):
        vllm_replay_figures(2)


def test_windows_belong_to_the_replay_benchmark_only() -> None:
    result = CliRunner().invoke(app, ["recorder", "--windows", "3"])
    assert isinstance(result.exception, UserError)
    assert "vllm-replay" in str(result.exception)
