"""`checkengine bench`: one JSON shape, exit codes, and a slice of every long measurement."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from checkengine.benchmarks import bundles, clean, guards, replay, tokens
from checkengine.benchmarks.figure import figure, interval
from checkengine.benchmarks.prompts import QUESTIONS, TEMPERATURES
from checkengine.commands import bench
from checkengine.engine_shim.engine.request import SamplingParameters
from checkengine.guards.errors import UserError
from checkengine.guards.finding import Finding, Severity
from checkengine.selftest_faults import tiny_model, tiny_tokenizer

DEMO_MODEL = Path.home() / ".cache" / "checkengine" / "models" / "smollm2-135m"
needs_demo_model = pytest.mark.skipif(
    not (DEMO_MODEL / "model.safetensors").exists(),
    reason="the demo model is not on this machine: checkengine models get smollm2-135m",
)


def choose(monkeypatch: pytest.MonkeyPatch, figures: list[dict[str, Any]]) -> None:
    monkeypatch.setattr(bench, "figures_of", lambda name, data, **options: figures)


def test_every_benchmark_in_the_table_can_be_called() -> None:
    for module, function in bench.BENCHMARKS.values():
        imported = __import__(f"checkengine.benchmarks.{module}", fromlist=[function])
        assert callable(getattr(imported, function))


def test_a_benchmark_prints_one_json_object(monkeypatch: pytest.MonkeyPatch) -> None:
    choose(monkeypatch, [figure("speed", 2.0, "s", 3.0, peer=("theirs", 2.5))])
    done = CliRunner().invoke(bench.app, ["logits", "--json"])
    measured = json.loads(done.stdout)
    assert set(measured) == {"command", "version", "machine", "figures"}
    assert measured["command"] == "bench logits"
    assert measured["figures"] == [
        {"name": "speed", "value": 2.0, "unit": "s", "target": 3.0, "ok": True, "peer": "theirs", "peer_value": 2.5}
    ]
    assert done.exit_code == 0


def test_a_figure_that_misses_its_target_is_exit_code_one_and_told(monkeypatch: pytest.MonkeyPatch) -> None:
    choose(monkeypatch, [figure("speed", 4.0, "s", 3.0)])
    done = CliRunner().invoke(bench.app, ["logits"])
    assert done.exit_code == 1
    assert "MISSED" in done.stdout


def test_a_long_benchmark_tells_each_figure_before_it_measures_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []

    def measured() -> Iterator[dict[str, Any]]:
        yield figure("first", 1.0, "s", 3.0)
        assert said == ["bench bundles …", "first: 1 s"]
        yield figure("second", 4.0, "", 3.0)

    monkeypatch.setattr(bundles, "bundle_figures", measured)
    monkeypatch.setattr(bench.typer, "echo", lambda line, err: said.append(line))
    assert [each["name"] for each in bench.figures_of("bundles", None)] == ["first", "second"]
    assert said[-1] == "second: 4 MISSED, the target is 3"


def test_an_unknown_benchmark_is_one_clear_error() -> None:
    done = CliRunner().invoke(bench.app, ["sped"])
    assert isinstance(done.exception, UserError)
    assert "there is no benchmark 'sped'; there are logits" in str(done.exception)


def test_data_that_is_not_there_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert tokens.completions(tmp_path) == []
    assert "language_confusion.jsonl.gz is not there" in capsys.readouterr().err


def test_the_interval_of_a_median_narrows_with_more_pairs() -> None:
    wide, narrow = interval([0.0, 1.0, 2.0, 3.0]), interval([0.0, 1.0, 2.0, 3.0] * 100)
    assert wide[0] <= 1.5 <= wide[1]
    assert narrow[1] - narrow[0] < wide[1] - wide[0]


def test_there_are_at_least_two_hundred_clean_generations_to_run() -> None:
    assert len(set(QUESTIONS)) * len(TEMPERATURES) >= 200


def test_random_windows_of_a_tiny_model_replay_bit_exact_after_reuse_and_preemption() -> None:
    figures = {each["name"]: each for each in replay.replay_figures(wanted=25, demo=False)}
    assert [each for each in figures.values() if not each["ok"]] == []
    assert figures["replay.bit_exact, tiny"]["value"] == 25


def test_a_window_that_differs_is_counted_and_described() -> None:
    seen = replay.Tally(windows=3, bit_exact=2, preemptions=1, hits=1, first_other="step 7 differs")
    missed = [each for each in replay.figures_of("x", seen, 3) if not each["ok"]]
    assert [(each["name"], each["first_other"]) for each in missed] == [("replay.bit_exact, x", "step 7 differs")]


@pytest.fixture(scope="module")
def looping() -> tuple[Any, Any, clean.Generation, list[Finding]]:
    """Without attention the next token depends on the last one only, so greedy decoding must go round in a circle."""
    model, tokenizer = tiny_model(), tiny_tokenizer()
    with torch.no_grad():
        for layer in model.model.layers:
            layer.self_attn.o_proj.weight.zero_()
    sampling = SamplingParameters(temperature=0, max_tokens=200)
    generation = clean.Generation(0, sampling, list(range(20, 31)))
    findings = clean.guarded(model, tokenizer, [generation])
    return model, tokenizer, generation, findings


def test_a_loop_that_goes_on_is_genuine(looping: tuple[Any, Any, clean.Generation, list[Finding]]) -> None:
    model, tokenizer, generation, findings = looping
    assert "repetition.loop" in {finding.kind for finding in findings}
    loops, _ = clean.genuine_loops(model, tokenizer, [generation], findings)
    assert loops == ["repetition.loop of 0@0.0"]


def test_a_loop_that_ends_by_itself_is_a_false_finding(
    looping: tuple[Any, Any, clean.Generation, list[Finding]],
) -> None:
    model, tokenizer, generation, findings = looping
    (loop,) = [finding for finding in findings if finding.kind == "repetition.loop"]
    ending = clean.Generation(
        0,
        generation.sampling.model_copy(update={"stop_token_ids": tuple(range(160))}),
        generation.prompt,
        generation.tokens,
        generation.steps,
    )
    assert clean.genuine_loops(model, tokenizer, [ending], [loop]) == ([], ["repetition.loop of 0@0.0"])


def test_any_other_finding_on_a_clean_generation_is_false(
    looping: tuple[Any, Any, clean.Generation, list[Finding]],
) -> None:
    model, tokenizer, generation, _ = looping
    other = Finding("language.switch", generation.name, Severity.WARNING, 3, 1, "language")
    assert clean.genuine_loops(model, tokenizer, [generation], [other]) == ([], ["language.switch of 0@0.0"])


@needs_demo_model
def test_the_cost_of_guards_is_measured_in_pairs_on_the_demo_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guards, "WARM_STEPS", 4)
    monkeypatch.setattr(guards, "fastest_threads", lambda model, tokenizer: 1)
    cpu, slower = guards.guard_figures(pairs=2, cases=[(2, "full", 50.0)])
    assert 0 < cpu["value"] < 50
    assert slower["pairs"] == 2
    assert slower["interval"][0] <= slower["value"] <= slower["interval"][1]


@needs_demo_model
def test_a_few_clean_generations_of_the_demo_model_have_no_false_finding() -> None:
    figures = {each["name"]: each for each in clean.clean_figures(questions=[0, 17, 41])}
    assert figures["clean.generations"]["value"] == 6
    assert figures["clean.false_findings"]["which"] == []
