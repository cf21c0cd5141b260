"""`checkengine scan`: what a finding holds of the records, what it never holds, and what reading took."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from checkengine.commands import scan
from checkengine.guards.settings import DriftSettings
from checkengine.scanning.reader import Account

HARBOUR = "The old harbour was quiet in the morning, and the boats lay close to the wall while children went home. "


def run(*arguments: object) -> Result:
    return CliRunner().invoke(scan.app, [str(each) for each in arguments])


def file_of(folder: Path, *rows: object) -> Path:
    path = folder / "log.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    return path


def found(result: Result) -> list[dict[str, Any]]:
    return [json.loads(line) for line in result.stdout.splitlines()]


@pytest.mark.parametrize("language", ["English", "eng", "en-US", "EN"])
def test_a_language_may_be_a_longer_code_or_an_english_name(language: str, tmp_path: Path) -> None:
    row = {"id": 1, "prompt": "Wie war es?", "completion": HARBOUR * 6, "language": language}
    result = run(file_of(tmp_path, row), "--guards", "language")
    assert (result.stdout, "ISO" in result.stderr) == ("", False)


def test_a_language_that_is_none_is_told_once_a_line_and_never_stands_in_evidence(tmp_path: Path) -> None:
    secret = "secret: my prompt text \x1b[31m and more of it than is shown"
    german = "Der alte Hafen war am Morgen ruhig, und die Boote lagen nahe an der Mauer, als die Kinder gingen. "
    rows = [
        {"id": 1, "prompt": HARBOUR, "completion": HARBOUR * 6, "language": "zz"},
        {"id": 2, "prompt": german, "completion": HARBOUR * 6, "language": secret},
    ]
    path = file_of(tmp_path, *rows)
    result = run(path)
    lines = [line for line in result.stderr.splitlines() if "ISO 639-1" in line]
    assert lines == [
        f"{path}:1: language 'zz' is no ISO 639-1 code; the prompt is the expectation",
        f"{path}:2: language 'secret: my prompt text \\x1b...' is no ISO 639-1 code; the prompt is the expectation",
    ]
    told = found(result)
    assert {(each["id"], each["evidence"]["expected"]) for each in told if each["guard"] == "language"} == {(2, "de")}
    assert "secret" not in result.stdout


def test_the_same_measurements_give_the_same_bytes_each_time(tmp_path: Path) -> None:
    random = np.random.default_rng(6)
    values = [*random.normal(size=3000), *random.normal(2, 1, 200)]
    path = file_of(tmp_path, *[{"series": "entropy", "value": value} for value in values])
    first, second, third = (run(path).stdout for _ in range(3))
    assert "median_before" in first
    assert first == second == third


def test_booleans_are_categories_whose_share_may_change(tmp_path: Path) -> None:
    values = [number % 20 != 0 for number in range(2000)] + [number % 2 == 0 for number in range(400)]
    result = run(file_of(tmp_path, *[{"series": "tool_call_valid", "value": value} for value in values]))
    (finding,) = found(result)
    assert finding["kind"] == "drift.tool_call_valid"
    assert (finding["evidence"]["change"], finding["evidence"]["categories"]) == ("category", 2)


def test_the_finding_that_the_document_shows_is_one_that_the_guard_gives(tmp_path: Path) -> None:
    shown = Path(__file__).parents[2].joinpath("docs/scan.md").read_text("utf-8")
    (sample,) = [json.loads(line) for line in shown.splitlines() if line.startswith('{"id": "req-17"')]
    result = run(file_of(tmp_path, {"id": "req-17", "completion": "A quiet day. " + HARBOUR * 40}))
    (real,) = [each for each in found(result) if each["severity"] == "error"]
    assert (sample.keys(), sample["evidence"].keys()) == (real.keys(), real["evidence"].keys())
    assert f"first {DriftSettings().baseline:,} values" in shown


def test_a_series_without_times_is_placed_by_the_number_of_its_value_and_categories_by_their_first_coming(
    tmp_path: Path,
) -> None:
    values = ["length"] + ["stop"] * 1500 + [("stop", "error")[number % 2] for number in range(200)]
    rows = [{"series": "finish_reason", "value": value} for value in values]
    (untimed,) = found(run(file_of(tmp_path, *rows)))
    (timed,) = found(run(file_of(tmp_path, *[row | {"t": 5000.0 + n} for n, row in enumerate(rows)])))
    assert 1501 <= untimed["at"]["t"] < len(values)
    assert timed["at"]["t"] == 5000 + untimed["at"]["t"]
    assert untimed["evidence"]["category"] in (1, 2)
    assert untimed["evidence"]["categories"] == 3


def test_the_first_record_of_a_guard_loads_its_tables_and_is_not_timed() -> None:
    account, loaded = Account(), set[str]()
    for nanoseconds in (9_000_000, 100, 300):
        account.count({"salad": nanoseconds}, loaded)
    assert (account.records["salad"], account.timed["salad"], account.nanoseconds["salad"]) == (3, 2, 400)
