"""`checkengine scan`: closed and full streams, tokenizers that are none, and records made to be slow."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest

from checkengine.commands import scan as command
from checkengine.guards.prompts import PROMPT_END
from checkengine.guards.settings import GuardsSettings
from checkengine.guards.text import Conversation
from checkengine.scanning.reader import assistant_turns
from checkengine.scanning.records import Chat, Measurement
from checkengine.scanning.series import SeriesReader

COMMAND = [sys.executable, "-m", "checkengine", "scan", "--guards", "logits"]
BROKEN = {"id": "broken", "completion": "x", "logprobs": {"content": [{"logprob": float("nan")}]}}


@pytest.fixture
def log(tmp_path: Path) -> str:
    """A finding between two bad lines."""
    path = tmp_path / "log.jsonl"
    path.write_text(f"{{\n{json.dumps(BROKEN)}\n[]\n")
    return str(path)


def closing(descriptor: int) -> Callable[[], None]:
    return lambda: os.close(descriptor)


def test_a_closed_or_full_stderr_loses_no_finding_and_changes_no_exit_code(log: str) -> None:
    with open("/dev/full", "wb") as full:
        onto_full = subprocess.run([*COMMAND, "--summary", log], stdout=subprocess.PIPE, stderr=full, check=False)
    closed = subprocess.run(
        [*COMMAND, "--summary", log], stdout=subprocess.PIPE, preexec_fn=closing(2), close_fds=False, check=False
    )
    for done in (onto_full, closed):
        assert json.loads(done.stdout)["id"] == "broken"
        assert done.returncode == 0


@pytest.mark.parametrize(("descriptor", "said"), [(0, b"standard input (-) is closed"), (1, b"output is closed")])
def test_a_standard_stream_that_is_closed_is_one_clear_error(descriptor: int, said: bytes) -> None:
    done = subprocess.run([*COMMAND, "-"], stderr=subprocess.PIPE, preexec_fn=closing(descriptor), check=False)
    assert said in done.stderr
    assert done.stderr.count(b"\n") == 1
    assert done.returncode == 2


def test_an_input_without_a_name_is_told_as_such() -> None:
    done = subprocess.run([*COMMAND, ""], stderr=subprocess.PIPE, check=False)
    assert b"name is empty" in done.stderr
    assert done.returncode == 2


def test_a_tokenizer_that_is_none_is_the_same_one_line_with_any_number_of_processes(log: str, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")
    options = ["--tokenizer", str(tmp_path), log]
    told = []
    for workers in ("1", "2"):
        done = subprocess.run([*COMMAND, "--workers", workers, *options], stderr=subprocess.PIPE, check=False)
        assert done.returncode == 2
        told.append(done.stderr)
    assert told[0] == told[1]
    assert told[0].count(b"\n") == 1
    assert b"holds no tokenizer" in told[0]


def test_ctrl_c_while_the_guards_are_made_is_130_and_no_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "prepare", interrupted)
    with pytest.raises(command.typer.Exit) as stop:
        command.scan(["log"], "", None, None, None, False, 1)
    assert stop.value.exit_code == 130


def test_a_conversation_of_many_turns_does_not_copy_all_that_came_before_for_each_of_them() -> None:
    turn = [{"role": "system", "content": "s" * PROMPT_END}, {"role": "user", "content": "begin" + "u" * (1 << 20)}]
    record = Chat("a", Conversation("a", tuple([*turn, {"role": "assistant", "content": "x"}] * 50), ()))
    prompts = [start.prompt for _, start, _ in assistant_turns(record)]
    assert len(prompts) == 50
    assert max(map(len, prompts)) <= 4 * PROMPT_END + 10
    assert prompts[-1].startswith("sss")
    assert "\n\nbegin" in prompts[-1]
    assert prompts[-1].endswith("uuu")


def test_a_series_of_values_beyond_single_precision_warns_of_nothing_and_fails_nothing() -> None:
    reader = SeriesReader(("drift",), GuardsSettings())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        told = [reader.read(Measurement("s", value)) for value in (1e308, -1e308, 1e39, 1.0) * 200]
    assert all(not hasattr(event, "reason") for each in told for event in each)
