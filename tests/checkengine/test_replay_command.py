from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from checkengine.commands import minimise as minimise_command
from checkengine.commands import replay as command
from checkengine.commands import report as report_command
from checkengine.detectors.logits import row_stats
from checkengine.engine_shim.capturing import take_capture
from checkengine.engine_shim.engine.engine import Engine
from checkengine.engine_shim.engine.executor import cached_model
from checkengine.engine_shim.engine.request import GenerationRequest, SamplingParameters
from checkengine.engine_shim.faults import NanAttention, OverRead
from checkengine.engine_shim.models import ModelError, model_directory
from checkengine.engine_shim.settings import EngineSettings
from checkengine.guards.errors import UserError
from checkengine.guards.finding import Finding, Severity
from checkengine.replay.bundle import plain, write_bundle
from checkengine.replay.bundle.files import Entry
from checkengine.replay.investigate import Investigation
from checkengine.replay.recorder import Recorder
from checkengine.replay.undo import UndoRing

PROMPTS = ([1, 4093, 198, 1780, 346, 260], [1, 9690, 198, 2683, 359, 253, 5356, 5646])


class CaptureAt:
    """A shim that records and captures sequence r1 in one step, with the finding that the test names."""

    def __init__(self, step: int, kind: str) -> None:
        self.recorder, self.at, self.kind = Recorder(64, 2 << 20), step, kind
        self.engine: Engine | None = None
        self.capture = None

    @contextmanager
    def step(self, record):
        self.record, self.prints = record, None
        self.recorder.begin(record)
        yield self

    def logits(self, logits) -> None:
        self.prints = row_stats(logits, "full").fingerprint

    def tokens(self, tokens):
        self.recorder.finish(self.record.step, self.prints, tokens)
        if self.record.step == self.at:
            starts = self.recorder.window().starts
            handles = [handle for handle, start in starts.items() if start.name == "r1"]
            finding = Finding(self.kind, "r1", Severity.ERROR, self.at, self.at, "test")
            self.capture = take_capture(self.engine, self.recorder, handles, first_step=0, findings=(finding,))
        return []


def bundle_of(directory: Path, fault, kind: str, step: int = 5) -> Path:
    threads = torch.get_num_threads()
    shim = CaptureAt(step, kind)
    settings = EngineSettings(blocks=8, threads=1)
    engine = Engine(cached_model("smollm2-135m", "float32"), None, settings, shim, UndoRing(32, 32 << 20), [fault])
    shim.engine = engine
    for number, prompt in enumerate(PROMPTS):
        engine.submit(GenerationRequest(f"r{number}", prompt, SamplingParameters(temperature=0.0, max_tokens=20)))
    while shim.capture is None:
        engine.step()
    torch.set_num_threads(threads)
    return write_bundle(shim.capture, directory, content="full")


@pytest.fixture(scope="module")
def nan_bundle(tmp_path_factory) -> Path:
    fault = NanAttention(modulus=64, remainder=13, layer=12)
    return bundle_of(tmp_path_factory.mktemp("nan"), fault, "logits.nonfinite")


def run(*arguments: str):
    return CliRunner().invoke(command.app, list(arguments))


def test_a_nan_incident_on_the_demo_model_is_reproduced_and_judged_from_its_bundle(nan_bundle: Path, tmp_path: Path):
    report = tmp_path / "report.html"
    result = run(str(nan_bundle), "--json", "--report", str(report))
    assert result.exit_code == 1, result.output
    told = json.loads(result.stdout)
    assert (told["bit_exact"], told["reproduced"], told["exact_from"]) == (True, True, "undo")
    assert told["rows"] == told["equal_rows"] == 6
    assert told["reference"] == {"kernel": "reference", "finding_fires": False}
    assert told["verdict"]["kind"] == "code defect"
    assert told["verdict"]["layers"] == [12]
    assert "attention of layer 12" in report.read_text()


def test_with_the_reference_kernel_the_nan_incident_does_not_come_again(nan_bundle: Path):
    result = run(str(nan_bundle), "--kernel", "reference")
    assert result.exit_code == 0, result.output
    assert "does not fire again" in " ".join(result.output.split())


def test_an_off_by_one_on_the_demo_model_is_convicted_with_its_slot(tmp_path: Path):
    bundle = bundle_of(tmp_path, OverRead(minimum_length=11, layers=(3,)), "language.switch")
    told = json.loads(run(str(bundle), "--json").stdout)
    assert told["bit_exact"] is True
    assert told["verdict"]["kind"] == "code defect"
    assert told["verdict"]["layers"] == [3]
    assert "one past the end of sequence" in told["verdict"]["sentence"]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--kernel", "fast"), "no kernel named 'fast'; the executor embedded has paged, reference, float64"),
        (("--executor", "nosuch"), "cannot be replayed by 'nosuch', only by embedded"),
    ],
)
def test_an_unknown_kernel_or_executor_is_a_wrong_command_line_and_what_there_is_is_listed(
    nan_bundle: Path, arguments: tuple[str, str], told: str
):
    with pytest.raises(UserError, match=told) as caught:
        run_raising(str(nan_bundle), *arguments)
    assert caught.value.exit_code == 129


def test_a_kernel_for_many_bundles_or_hosts_is_refused_and_not_ignored(nan_bundle: Path):
    for where in (("--fan-out", "local"), ("--matrix", "local:A=1")):
        result = run(str(nan_bundle), *where, "--kernel", "reference")
        assert result.exit_code == 2
        assert "without --fan-out and --matrix" in " ".join(result.output.replace("│", " ").split())


def test_a_defect_of_ours_is_no_verdict(nan_bundle: Path, monkeypatch):
    def broken(*_, **__):
        raise RuntimeError("ours")

    monkeypatch.setattr(command, "investigate_capture", broken)
    assert run(str(nan_bundle)).exit_code == 125


def moved(bundle: Path, target: Path, name: str) -> Path:
    """The bundle as one that names a model that is not at that place here."""
    copied = Path(shutil.copytree(bundle, target))
    environment = json.loads((copied / "env.json").read_bytes()) | {"model": name}
    data = plain.encode(environment)
    (copied / "env.json").write_bytes(data)
    manifest = json.loads((copied / "manifest.json").read_bytes())
    manifest["files"]["env.json"] = Entry.of(data).to_json()
    listed = plain.encode(manifest)
    (copied / "manifest.json").write_bytes(listed)
    marker = json.loads((copied / "BUNDLE").read_bytes())
    marker["manifest"] = Entry.of(listed).to_json()
    (copied / "BUNDLE").write_bytes(plain.encode(marker))
    return copied


def test_a_model_that_lies_elsewhere_is_given_by_option_or_by_variable(
    nan_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    bundle = str(moved(nan_bundle, tmp_path / "bundle", "model"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CHECKENGINE_MODEL", raising=False)
    with pytest.raises(UserError, match=f"'model' is neither at {tmp_path}/model .* give --model DIR") as caught:
        run_raising(bundle, "--repeats", "0")
    assert caught.value.exit_code == 125
    directory = str(model_directory("smollm2-135m"))
    given = run(bundle, "--repeats", "1", "--json", "--model", directory)
    assert given.exit_code == 1, given.output
    gate = [test for test in json.loads(given.stdout)["verdict"]["tests"] if test["name"] == "gate"]
    assert gate[0]["passed"], gate
    assert "CHECKENGINE_MODEL" not in os.environ
    monkeypatch.setenv("CHECKENGINE_MODEL", directory)
    assert run(bundle, "--kernel", "reference").exit_code == 0


def test_a_directory_without_a_model_is_a_wrong_command_line(nan_bundle: Path, tmp_path: Path):
    for app in (command.app, report_command.app, minimise_command.app):
        result = CliRunner().invoke(app, [str(nan_bundle), "--model", str(tmp_path)])
        assert result.exit_code == 2
        assert "holds no config.json" in " ".join(result.output.replace("│", " ").split())


def test_a_model_that_is_not_here_is_no_verdict_for_git_bisect(nan_bundle: Path, monkeypatch):
    def missing(*_, **__):
        raise ModelError("model smollm2-135m is not on this machine yet")

    monkeypatch.setattr(command, "investigate_capture", missing)
    with pytest.raises(UserError, match="not on this machine") as caught:
        run_raising(str(nan_bundle))
    assert caught.value.exit_code == 125


def test_a_report_that_cannot_be_written_is_a_usage_error(nan_bundle: Path, tmp_path: Path, monkeypatch):
    empty = Investigation("b", (), {})
    monkeypatch.setattr(command, "investigate_capture", lambda *_, **__: empty)
    with pytest.raises(UserError, match="cannot be written") as caught:
        run_raising(str(nan_bundle), "--report", str(tmp_path / "no" / "report.html"))
    assert caught.value.exit_code == 129


def run_raising(*arguments: str) -> None:
    CliRunner().invoke(command.app, list(arguments), catch_exceptions=False)


@pytest.mark.parametrize("arguments", [["replay", "no/such/bundle"], ["replay", "--no-such-option"], ["replay"]])
def test_a_wrong_command_line_or_a_damaged_bundle_ends_with_129_and_no_traceback(arguments: list[str]):
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-m", "checkengine", *arguments], capture_output=True, env=environment)
    assert done.returncode == 129
    assert b"Traceback" not in done.stderr
