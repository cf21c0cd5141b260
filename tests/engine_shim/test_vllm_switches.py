"""Run-time switches of vLLM engines: a file that each engine core looks at."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

from checkengine.commands.switch import app
from checkengine.engine_shim.vllm.switch_file import SwitchFile
from checkengine.guards.errors import UserError


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_change_is_told_once_and_looked_for_once_a_second(tmp_path: Path) -> None:
    clock = Clock()
    file = SwitchFile(tmp_path, clock)
    assert file.changed() is None
    file.put("salad", "disable")
    assert file.changed() is None, "not within the same second"
    clock.now = 1.0
    assert file.changed() == {"salad": "disable"}
    clock.now = 2.0
    assert file.changed() is None
    file.put("sidecar", "disable")
    clock.now = 3.0
    assert file.changed() == {"sidecar": "disable"}
    assert SwitchFile(tmp_path).changed() == {"salad": "disable", "sidecar": "disable"}, "all of it at a start"


def test_what_was_switched_earlier_is_not_switched_again_by_a_later_switch(tmp_path: Path) -> None:
    clock = Clock()
    file = SwitchFile(tmp_path, clock)
    for now, (name, switch) in enumerate([("salad", "rearm"), ("language", "disable"), ("salad", "rearm")], 1):
        file.put(name, switch)  # type: ignore[arg-type]
        clock.now = now
        assert file.changed() == {name: switch}


@pytest.mark.parametrize(
    "content", ["[]", '{"salad": "off"}', '{"salad": 1}', "{", "\x00", "[" * 60_000, '{"salad": "rearm"' + " " * 70_000]
)
def test_a_file_that_makes_no_sense_is_an_error_that_names_it(content: str, tmp_path: Path) -> None:
    (tmp_path / "switches.json").write_text(content)
    with pytest.raises(UserError, match=r"switches\.json"):
        SwitchFile(tmp_path).changed()


def test_a_folder_or_a_pipe_of_that_name_is_an_error_and_nobody_waits(tmp_path: Path) -> None:
    for make in (os.mkdir, os.mkfifo):
        folder = tmp_path / make.__name__
        folder.mkdir()
        make(folder / "switches.json")
        with pytest.raises(UserError, match="cannot be read"):
            SwitchFile(folder).changed()
        with pytest.raises(UserError, match="cannot be read"):
            SwitchFile(folder).put("salad", "disable")


def test_a_switch_that_cannot_be_written_leaves_the_old_file_and_no_draft(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = SwitchFile(tmp_path)
    file.put("salad", "disable")

    def full(path: Path, target: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(UserError, match="No space left"):
        file.put("language", "disable")
    assert [path.name for path in tmp_path.iterdir()] == ["switches.json"]
    assert file.read() == {"salad": "disable"}


def test_the_command_writes_what_an_engine_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CHECKENGINE_CONFIG", raising=False)
    monkeypatch.setenv("CHECKENGINE_SPOOL__DIRECTORY", str(tmp_path / "spool"))
    result = CliRunner().invoke(app, ["repetition", "disable"])
    assert result.exit_code == 0
    assert "within a second" in result.output
    assert SwitchFile(tmp_path / "spool").changed() == {"repetition": "disable"}
    assert isinstance(CliRunner().invoke(app, ["repetitions", "disable"]).exception, UserError)
    assert isinstance(CliRunner().invoke(app, ["repetition", "off"]).exception, UserError)
