"""`checkengine bench detectors`: every module runs or is a failing figure; a tiny slice of the cost of all guards."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from checkengine.benchmarks import detectors
from checkengine.benchmarks.detectors import DetectorOptions, run, together
from checkengine.benchmarks.figure import figure
from checkengine.commands import bench
from checkengine.detectors.vocabulary import Vocabulary
from checkengine.figures import print_report, report
from checkengine.figures_markdown import as_markdown
from checkengine.guards.errors import UserError
from checkengine.guards.finding import Finding
from checkengine.guards.pipeline import Pipeline
from checkengine.guards.settings import GuardsSettings
from checkengine.selftest_faults import tiny_tokenizer


def one_figure(options: DetectorOptions) -> list[dict[str, Any]]:
    return [figure("fine.speed", 1.0 if options.quick else 9.0, "s", 3.0)]


def failing(options: DetectorOptions) -> list[dict[str, Any]]:
    raise ZeroDivisionError("a\nb|c")


@pytest.fixture
def modules(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that works, one that raises, one that is not there."""
    for name, measure in (("fine", one_figure), ("failing", failing)):
        module = ModuleType(f"{run.PACKAGE}.{name}")
        module.figures = measure  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(run, "MODULES", ("fine", "failing", "absent"))


@pytest.mark.usefixtures("modules")
class TestTheModules:
    def test_one_that_fails_or_is_missing_is_a_failing_figure_with_its_error_and_the_others_run(self) -> None:
        figures = run.detector_figures(DetectorOptions(quick=True))
        assert [(each["name"], each["ok"]) for each in figures] == [
            ("fine.speed", True),
            ("failing: did not run", False),
            ("absent: did not run", False),
            ("detectors.seconds", True),
        ]
        assert "ZeroDivisionError at test_bench_detectors.py" in figures[1]["error"]
        assert "No module named" in figures[2]["error"]

    def test_each_tells_its_seconds_and_the_total_is_a_figure_with_the_limit_of_its_mode(self) -> None:
        told: list[str] = []
        figures = [run.detector_figures(DetectorOptions(quick=quick), ["fine"], told.append) for quick in (True, False)]
        assert [each[-1]["target"] for each in figures] == [120.0, 900.0]
        assert [each[0]["value"] for each in figures] == [1.0, 9.0]
        assert told[0] == "bench detectors fine …"
        assert told[1].startswith("bench detectors fine: ")

    def test_only_some_of_them_run_where_they_are_named(self) -> None:
        done = CliRunner().invoke(bench.app, ["detectors", "--quick", "--only", "fine", "--json"])
        measured = json.loads(done.stdout)
        assert [each["name"] for each in measured["figures"]] == ["fine.speed", "detectors.seconds"]
        assert measured["command"] == "bench detectors --quick --only fine"
        assert done.exit_code == 0

    def test_a_name_that_is_none_is_one_error_that_lists_them(self) -> None:
        with pytest.raises(UserError, match="'fin'; there are fine, failing, absent"):
            run.detector_figures(DetectorOptions(), ["fin"])

    def test_the_table_for_a_document_has_a_row_a_figure_and_says_what_was_missed_and_why(self) -> None:
        done = CliRunner().invoke(bench.app, ["detectors", "--markdown"])
        rows = done.stdout.splitlines()
        assert "4 figures" in rows[0]
        assert rows[0].startswith("`checkengine bench detectors`")
        assert "3 missed" in rows[0]
        assert "| fine.speed | 9 s | 3 |  | **missed** |" in rows
        assert any("ZeroDivisionError" in row and "a\\nb\\|c" in row for row in rows)
        assert done.exit_code == 1

    def test_the_table_for_a_person_shows_the_error(self, capsys: pytest.CaptureFixture[str]) -> None:
        print_report(report("bench detectors", run.detector_figures(DetectorOptions(), ["failing"])))
        assert "ZeroDivisionError" in capsys.readouterr().out


@pytest.mark.parametrize("arguments", [["logits", "--quick"], ["tokens", "--only", "x"], ["detectors", "--data", "no"]])
def test_options_that_do_not_fit_are_refused(arguments: list[str]) -> None:
    assert isinstance(CliRunner().invoke(bench.app, arguments).exception, UserError)


def test_a_missing_peer_leaves_its_cell_empty() -> None:
    table = as_markdown(report("x", [figure("a|b", 1.0, "s", 2.0, peer=("theirs", 3.0)), figure("c", 1.0, "s", 2.0)]))
    assert "| a\\|b | 1 s | 2 | theirs: 3 | ok |" in table
    assert "| c | 1 s | 2 |  | ok |" in table


def test_the_list_of_modules_has_no_name_twice() -> None:
    assert len(set(detectors.MODULES)) == len(detectors.MODULES)


@pytest.fixture(scope="module")
def small() -> tuple[Vocabulary, list[list[int]]]:
    vocabulary = Vocabulary.from_tokenizer(tiny_tokenizer())
    random = np.random.default_rng(0)
    texts = [random.integers(3, len(vocabulary), 40).tolist() for _ in range(12)]
    return vocabulary, together.token_streams([texts], together.PROMPT_TOKENS + together.WARM_STEPS + 10, rows=4)


def test_the_parts_of_the_guards_and_the_pipeline_add_up_to_the_whole(small: tuple[Any, Any]) -> None:
    figures = {each["name"]: each for each in together.guard_figures(*small, steps=10)}
    parts = [each for name, each in figures.items() if name.startswith("together.of which")]
    assert sum(each["percent"] for each in parts) == pytest.approx(100, abs=1)
    assert figures["together.cost, batch 4"]["value"] > 0
    assert figures["together.guards that were switched off"]["value"] == 0


def test_findings_on_real_text_are_counted_by_kind(small: tuple[Any, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    observed: Callable[..., list[Finding]] = Pipeline.observe

    def with_one_more(self: Pipeline, step: Any) -> list[Finding]:
        from checkengine.guards.finding import Severity

        more = [Finding("text.salad", "row-0", Severity.ERROR, 3, 3, "salad")] if step.step == 20 else []
        return [*observed(self, step), *more]

    monkeypatch.setattr(Pipeline, "observe", with_one_more)
    figures = {each["name"]: each for each in together.guard_figures(*small, steps=10)}
    assert figures["together.findings on real text"]["value"] >= 1
    assert figures["together.findings on real text"]["kinds"]["salad text.salad ERROR"] == 1


def test_no_stream_repeats_itself_before_all_texts_were_read() -> None:
    texts = [[n] * 3 for n in range(10)]
    for stream in together.token_streams([texts, texts], 30, rows=4):
        assert len({tuple(stream[i : i + 3]) for i in range(0, 30, 3)}) == 10


def test_row_statistics_are_measured_beside_the_count_that_engines_run() -> None:
    (found,) = together.statistics_figures(500, repeats=2, rows=3)
    assert found["peer"] == "isnan().sum(-1)"
    assert found["target"] == found["peer_value"] > 0


def test_the_defaults_of_the_guards_are_what_is_measured(small: tuple[Any, Any]) -> None:
    from checkengine.guards.build import build_guards

    names = {guard.name for guard in build_guards(GuardsSettings(), small[0])}
    figures = {each["name"] for each in together.guard_figures(*small, steps=2)}
    assert {f"together.of which {name}" for name in names} <= figures


def test_data_that_is_not_a_folder_is_one_clear_error(tmp_path: Path) -> None:
    done = CliRunner().invoke(bench.app, ["detectors", "--data", str(tmp_path / "none")])
    assert "is no folder" in str(done.exception)
