"""The command line as a person meets it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from checkengine import __version__
from checkengine.commands import main
from checkengine.commands.main import COMMANDS, CommandEntry
from checkengine.guards.errors import UserError

COMMAND = [sys.executable, "-m", "checkengine"]


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *arguments], capture_output=True, text=True, env={**os.environ, **environment}, check=False
    )


def test_help_names_every_command_and_loads_none() -> None:
    code = """
import sys
from checkengine.commands.main import run
sys.argv = ["checkengine", "--help"]
try:
    run()
except SystemExit:
    print("LOADED", sorted({"torch", "transformers", "numba", "sklearn", "fastapi"} & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "LOADED []" in done.stdout
    for name in ("models", "serve"):
        assert name in done.stdout


def test_the_version_is_printed() -> None:
    done = run("--version")
    assert (done.returncode, done.stdout.strip()) == (0, __version__)


def test_every_command_that_is_here_loads() -> None:
    for name, entry in COMMANDS.items():
        if main._exists(entry):
            assert main.load_command(name).name == name


def test_a_command_that_is_not_here_is_no_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(COMMANDS, "soon", CommandEntry("not_written_yet", "Later."))
    group = main.typer.main.get_command(main.app)
    assert "soon" not in group.list_commands(None)  # type: ignore[attr-defined]
    assert group.get_command(None, "soon") is None  # type: ignore[attr-defined]


def test_an_unknown_model_is_one_line_and_a_failure() -> None:
    done = run("models", "get", "gpt-9")
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "known: smollm2-135m" in done.stderr
    assert done.stdout == ""


def test_serving_a_model_that_is_not_here_is_one_line_and_a_failure(tmp_path: Path) -> None:
    done = run("serve", "smollm2-135m", CHECKENGINE_CACHE=str(tmp_path))
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1] == (
        "checkengine: model smollm2-135m is not on this machine yet; run: checkengine models get smollm2-135m"
    )
    assert "Traceback" not in done.stderr


def test_a_damaged_model_is_one_line_and_a_failure(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("not json")
    done = run("serve", str(tmp_path))
    assert done.returncode == 2
    assert "cannot load the model" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("arguments", "code"), [(["replay"], 129), (["replay", "--nonsense"], 129), (["models", "get"], 2), (["nope"], 2)]
)
def test_a_wrong_command_line_has_the_exit_code_of_its_command(arguments: list[str], code: int) -> None:
    """git bisect takes 1 to 127 for verdicts."""
    assert run(*arguments).returncode == code


def test_a_user_error_is_printed_without_a_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class TornError(UserError):
        exit_code = 129

    def fail() -> None:
        raise TornError("bundle b is torn at member 3; capture it again")

    monkeypatch.setattr(main, "app", fail)
    with pytest.raises(SystemExit) as caught:
        main.run()
    assert caught.value.code == 129
    assert capsys.readouterr().err == "checkengine: bundle b is torn at member 3; capture it again\n"


def test_models_are_listed_with_their_place(tmp_path: Path) -> None:
    done = run("models", "list", CHECKENGINE_CACHE=str(tmp_path))
    assert done.stdout == "smollm2-135m\tSmolLM2-135M-Instruct, float32 (Apache-2.0)\tnot fetched\n"


def test_a_good_configuration_is_said_to_be_good(tmp_path: Path) -> None:
    file = tmp_path / "checkengine.toml"
    file.write_text("[server]\nport = 9000\n")
    done = run("config", "check", str(file))
    assert (done.returncode, done.stdout, done.stderr) == (0, "configuration is good\n", "")


def test_a_bad_configuration_names_line_and_key(tmp_path: Path) -> None:
    file = tmp_path / "checkengine.toml"
    file.write_text("[server]\nport = 9000\nprot = 1\n")
    done = run("config", "check", str(file))
    assert done.returncode == 2
    assert "line 3" in done.stderr
    assert "'prot'" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_shown_configuration_masks_the_token(tmp_path: Path) -> None:
    file = tmp_path / "checkengine.toml"
    file.write_text('[server]\ncontrol_token = "s3cret"\n')
    done = run("config", "show", str(file))
    assert done.returncode == 0
    assert "s3cret" not in done.stdout
    assert "control_token" in done.stdout


def paths(command: Any, path: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    yield path
    for name, below in getattr(command, "commands", {}).items():
        yield from paths(below, (*path, name))


def helps() -> Iterator[tuple[str, str]]:
    """Every command's words, and what its --help prints."""
    names = [name for name, entry in COMMANDS.items() if main._exists(entry)]
    for path in [(), *(path for name in names for path in paths(main.load_command(name), (name,)))]:
        result = CliRunner().invoke(main.app, [*path, "--help"])
        assert result.exit_code == 0, path
        yield " ".join(path), result.stdout


def test_no_help_loses_a_name_in_brackets_or_another_part_of_a_sentence() -> None:
    told = dict(helps())
    assert len(told) > len(COMMANDS)
    assert "[catalog] keeps" in told["db vacuum"]
    assert "[guards.<name>] tables" in " ".join(told["scan"].split())
    # What goes on far to the right belongs to the line before; a column begins after two spaces, a sentence has one.
    hole = re.compile(r"[a-z,;:.]  [a-z]|Default: *$|\(\)", re.MULTILINE)
    for path, text in told.items():
        lines = re.sub(r"\n {8,}", " ", text).splitlines()
        sentences = "\n".join(re.split(r" {2,}", line.strip(), maxsplit=1)[-1] for line in lines)
        assert not hole.search(sentences), (path, hole.findall(sentences))
    for name, source in sources().items():
        for words in re.findall(r"\[[a-z_]+(?:\.<name>)?\] [a-z_]+", source):
            assert any(words in " ".join(text.split()) for path, text in told.items() if path.startswith(name)), words


def sources() -> dict[str, str]:
    """The help texts that hold a name in brackets, by command."""
    found: dict[str, str] = {}
    for name, entry in COMMANDS.items():
        if main._exists(entry):
            module = Path(main.__file__).with_name(f"{entry.module}.py").read_text("utf-8")
            found[name] = "\n".join(re.findall(r'help="([^"]*)"', module))
    return found
