"""Silly and hostile arguments: one clear line, the documented exit code, no traceback."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console
from typer.testing import CliRunner

from checkengine.commands import demo, main
from checkengine.commands import replay as command
from checkengine.commands.replay_summary import print_summary
from checkengine.config import Settings
from checkengine.guards.errors import UserError
from checkengine.guards.finding import Finding, Severity
from checkengine.replay.bundle import BundleError, BundleReader, write_bundle
from checkengine.replay.capture import Capture
from checkengine.replay.investigate import Investigation
from checkengine.replay.memory import MemoryImage
from checkengine.replay.recorded import RecordedWindow
from checkengine.serving import _server_settings

COMMAND = [sys.executable, "-m", "checkengine"]


def told(*arguments: str | bytes, **options: object) -> subprocess.CompletedProcess[bytes]:
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.run([*COMMAND, *arguments], capture_output=True, env=environment, check=False, **options)  # type: ignore[call-overload,no-any-return]


def is_one_line(stderr: bytes) -> bool:
    return stderr.startswith(b"checkengine: ") and stderr.count(b"\n") == 1 and stderr.endswith(b"\n")


@pytest.mark.parametrize("path", ["two\nlines", "x" * 5000, b"\xff\xfe"])
def test_a_bundle_whose_path_is_odd_is_one_line_and_129(path: str | bytes) -> None:
    done = told("replay", path)
    assert done.returncode == 129
    assert is_one_line(done.stderr)


def test_a_folder_that_cannot_be_opened_is_a_bundle_error(tmp_path: Path) -> None:
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    with pytest.raises(BundleError, match="cannot be opened"):
        BundleReader(loop)


@pytest.mark.parametrize("path", ["x" * 5000])
def test_a_model_whose_path_is_odd_is_one_line_and_2(path: str | bytes) -> None:
    done = told("serve", path)
    assert done.returncode == 2
    assert is_one_line(done.stderr)


def test_an_output_that_cannot_be_written_is_one_line_and_a_failure() -> None:
    with open("/dev/full", "wb") as full:
        done = subprocess.run([*COMMAND, "config", "show"], stdout=full, stderr=subprocess.PIPE, check=False)
    assert done.returncode == 2
    assert is_one_line(done.stderr)


@pytest.mark.parametrize("failure", [OSError(28, "No space left on device"), BrokenPipeError(32, "Broken pipe")])
def test_a_verdict_that_cannot_be_told_is_no_verdict_for_git_bisect(
    failure: OSError, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise failure

    monkeypatch.setattr(command, "investigate_bundle", lambda *_, **__: Investigation("b", (), {}))
    monkeypatch.setattr(command, "keep_result", lambda *_: None)
    monkeypatch.setattr(command.typer, "echo", fail)
    with pytest.raises(UserError) as caught:
        CliRunner().invoke(command.app, ["b", "--json"], catch_exceptions=False)
    assert caught.value.exit_code == 125


def test_a_machine_that_fails_replay_outside_of_it_is_no_verdict_either(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail() -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(main, "app", fail)
    codes = []
    for name in ("replay", "demo"):
        monkeypatch.setattr(sys, "argv", ["checkengine", name])
        with pytest.raises(SystemExit) as caught:
            main.run()
        codes.append(caught.value.code)
    assert codes == [125, 2]
    assert "Input/output error" in capsys.readouterr().err


def test_a_report_names_a_bundle_whose_path_is_no_text(tmp_path: Path) -> None:
    report = tmp_path / "report.html"
    empty = Capture(RecordedWindow(), MemoryImage(4, np.empty(0, np.int32), {}, {}), frozenset())
    bundle = tmp_path / os.fsdecode(b"b\xff")
    write_bundle(empty, tmp_path).rename(bundle)
    command.write_report(Investigation("b", (), {}), report, bundle, "full")
    assert "\\udcff" in report.read_text("utf-8")


@pytest.mark.parametrize(("host", "port"), [(None, 99_999_999), (None, -1), ("", None)])
def test_an_address_that_no_server_can_have_is_refused_as_in_the_configuration(
    host: str | None, port: int | None
) -> None:
    with pytest.raises(UserError, match="--port" if host is None else "--host"):
        _server_settings(Settings(), host, port)


def test_an_address_on_the_command_line_outweighs_the_configuration_and_leaves_the_rest() -> None:
    settings = Settings(server={"port": 9000, "max_requests": 7, "control_token": "s3cret"})
    chosen = _server_settings(settings, "::1", 0)
    assert (chosen.host, chosen.port, chosen.max_requests) == ("::1", 0, 7)
    assert chosen.control_token == settings.server.control_token


def test_letters_that_a_terminal_does_not_know_do_not_break_an_output() -> None:
    code = "import sys; from checkengine.commands import main; main.app = lambda: print('■ …'); main.run()"
    environment = os.environ | {"PYTHONIOENCODING": "ascii"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, env=environment, check=False)
    assert (done.returncode, done.stdout) == (0, b"\\u25a0 \\u2026\n")


def test_a_demo_that_could_not_write_its_report_is_refused_before_it_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(demo.tempfile, "TemporaryFile", full)
    with pytest.raises(UserError, match="No space left on device; choose another --out"):
        demo.prepare(tmp_path / "out")


def test_names_from_a_bundle_cannot_write_to_the_terminal_that_shows_them() -> None:
    finding = Finding("logits.nonfinite", "\x1b]0;owned\x07[red]\n", Severity.ERROR, 1, 1, "test")
    found = Investigation("b", (finding,), {}, finding=finding, notes=["\x1b[2J"])
    told = io.StringIO()
    print_summary(found, console=Console(file=told, width=200))
    assert "\x1b" not in told.getvalue()
    assert "[red]\\n" in told.getvalue()
