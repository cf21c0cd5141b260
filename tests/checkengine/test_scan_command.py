"""`checkengine scan`: findings as lines of JSON, exit codes, and nothing that ends in a traceback."""

from __future__ import annotations

import gzip
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from checkengine.commands import scan
from checkengine.guards.errors import UserError
from checkengine.guards.finding import Severity
from checkengine.guards.settings import GuardsSettings
from checkengine.guards.text import Conversation, TextFinding, TextStart
from checkengine.scanning import registry
from checkengine.scanning.registry import ENTRIES, Entry

COMMAND = [sys.executable, "-m", "checkengine", "scan"]
SALT = "grain of salt"
BROKEN = {"id": "broken", "completion": "x", "logprobs": {"content": [{"logprob": float("nan")}]}}
"""A record with a finding from guards that need no language."""


class WordGuard:
    """Finds the word "salt", reads its prompt, and raises on "pepper"."""

    name, version = "salad", 1

    def __init__(self, start: TextStart, settings: object) -> None:
        self.start, self.pieces = start, [""]

    def push(self, piece: str) -> Iterator[TextFinding]:
        self.pieces.append(piece)
        if "pepper" in piece:
            raise ValueError(piece)
        return iter(())

    def end(self) -> Iterator[TextFinding]:
        text = "".join(self.pieces)
        if "salt" in text:
            evidence: dict[str, Any] = {"prompt": len(self.start.prompt), "share": float("nan")}
            at = {"char": text.index("salt")}
            yield TextFinding("text.salad", self.start.id, Severity.WARNING, self.name, at, 1, evidence)


class TurnsGuard:
    name, version = "tool_calls", 1

    def __init__(self, settings: object) -> None:
        self.settings = settings

    def read(self, conversation: Conversation) -> Iterator[TextFinding]:
        if len(conversation.messages) > 2:
            yield TextFinding("tool_call.loop", conversation.id, Severity.ERROR, self.name, {"message": 2})


class LevelGuard:
    """Finds values above 10; raises on 13."""

    name, version = "drift", 1

    def __init__(self, series: str, settings: object) -> None:
        self.series, self.seen = series, 0

    def push(self, value: float | str, t: float | None = None) -> Iterable[TextFinding]:
        self.seen += 1
        if value == 13:
            raise ArithmeticError
        if isinstance(value, float) and value > 10:
            at = {"t": self.seen - 1 if t is None else t}
            return [TextFinding("drift.level", self.series, Severity.WARNING, self.name, at)]
        return []

    def end(self) -> Iterable[TextFinding]:
        return []


@pytest.fixture
def simple_guards(monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards that are easily told, in place of the real ones."""
    fake = ModuleType("checkengine.guards.fake")
    for guard in (WordGuard, TurnsGuard, LevelGuard):
        setattr(fake, guard.__name__, guard)
    monkeypatch.setitem(sys.modules, fake.__name__, fake)
    for name in ENTRIES:
        monkeypatch.setitem(ENTRIES, name, Entry(ENTRIES[name].settings))
    monkeypatch.setitem(ENTRIES, "salad", Entry("salad", text="fake:WordGuard"))
    monkeypatch.setitem(ENTRIES, "tool_calls", Entry("tool_calls", conversation="fake:TurnsGuard"))
    monkeypatch.setitem(ENTRIES, "drift", Entry("drift", series="fake:LevelGuard"))


def run(*arguments: object, input: bytes | None = None) -> Result:
    return CliRunner().invoke(scan.app, [str(each) for each in arguments], input=input)


def file_of(folder: Path, *rows: object, name: str = "log.jsonl") -> Path:
    path = folder / name
    path.write_bytes(b"".join(row if isinstance(row, bytes) else json.dumps(row).encode() + b"\n" for row in rows))
    return path


def found(result: Result) -> list[dict[str, Any]]:
    return [json.loads(line) for line in result.stdout.splitlines()]


@pytest.mark.usefixtures("simple_guards")
class TestFindings:
    def test_a_finding_is_one_line_of_strict_json_with_its_place_and_evidence(self, tmp_path: Path) -> None:
        result = run(file_of(tmp_path, {"id": 5, "completion": SALT, "prompt": "four"}, {"id": 6, "completion": "no"}))
        assert found(result) == [
            {
                "id": 5,
                "kind": "text.salad",
                "severity": "warning",
                "guard": "salad",
                "at": {"char": 9},
                "evidence": {"prompt": 4, "share": "nan"},
            }
        ]
        assert result.exit_code == 0

    def test_each_message_of_the_assistant_is_read_with_the_turn_that_it_answers(self, tmp_path: Path) -> None:
        messages = [
            {"role": "system", "content": "abc"},
            {"role": "user", "content": [{"type": "text", "text": "salt?"}]},
            {"role": "assistant", "content": "no"},
            {"role": "tool", "content": SALT},
            {"role": "assistant", "content": None, "tool_calls": []},
            {"role": "assistant", "content": SALT},
        ]
        result = run(file_of(tmp_path, {"id": "c", "messages": messages}))
        assert [(each["kind"], each["at"], each["evidence"]) for each in found(result)] == [
            ("tool_call.loop", {"message": 2}, {}),
            ("text.salad", {"message": 5}, {"prompt": 10, "share": "nan", "char": 9}),
        ]

    def test_measurements_go_to_one_guard_a_series_in_their_order(self, tmp_path: Path) -> None:
        rows = [{"series": name, "value": value} for name, value in (("a", 1), ("b", 11), ("a", 12))]
        result = run(file_of(tmp_path, *rows, {"series": "b", "value": 20, "t": 99.5}))
        assert [(each["series"], each["kind"], each["at"]) for each in found(result)] == [
            ("b", "drift.level", {"t": 0}),
            ("a", "drift.level", {"t": 1}),
            ("b", "drift.level", {"t": 99.5}),
        ]

    def test_only_the_guards_that_were_named_run(self, tmp_path: Path) -> None:
        messages = [{"role": "user"}] * 2 + [{"role": "assistant", "content": SALT}]
        path = file_of(tmp_path, {"id": "c", "messages": messages})
        assert [each["guard"] for each in found(run(path, "--guards", "salad, repetition"))] == ["salad"]
        assert [each["guard"] for each in found(run(path))] == ["tool_calls", "salad"]

    def test_a_guard_that_is_off_in_the_configuration_runs_only_when_named(self, tmp_path: Path) -> None:
        config = tmp_path / "c.toml"
        config.write_text('[guards.salad]\naction = "off"\n')
        path = file_of(tmp_path, {"id": 1, "completion": SALT})
        assert found(run(path, "--config", config)) == []
        assert len(found(run(path, "--config", config, "--guards", "salad"))) == 1

    def test_fail_on_decides_by_the_worst_finding(self, tmp_path: Path) -> None:
        path = file_of(tmp_path, {"id": 1, "completion": SALT})
        codes = [run(path, *more).exit_code for more in ((), ("--fail-on", "error"), ("--fail-on", "warning"))]
        assert codes == [0, 0, 1]

    def test_a_guard_that_raises_is_told_once_counted_and_the_others_go_on(self, tmp_path: Path) -> None:
        chat = {"id": "c", "messages": [{"role": "user"}] * 2 + [{"role": "assistant", "content": "pepper"}]}
        rows = [{"id": n, "completion": "pepper"} for n in range(5)]
        result = run(file_of(tmp_path, *rows, chat, {"id": 9, "completion": SALT}), "--summary")
        assert [each["guard"] for each in found(result)] == ["tool_calls", "salad"]
        assert result.stderr.count("guard salad raised ValueError at test_scan_command.py:") == 1
        assert "pepper" not in result.stderr
        assert "6 guard failures" in result.stderr

    def test_a_series_guard_that_raises_reads_no_more_of_that_series(self, tmp_path: Path) -> None:
        rows = [{"series": name, "value": value} for name, value in (("a", 13), ("a", 20), ("b", 20))]
        result = run(file_of(tmp_path, *rows))
        assert [each["series"] for each in found(result)] == ["b"]
        assert "raised ArithmeticError" in result.stderr

    def test_a_guard_that_cannot_be_loaded_is_told_once_and_the_others_go_on(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setitem(ENTRIES, "language", Entry("language", text="no_such_module:Guard"))
        monkeypatch.setitem(ENTRIES, "latency", Entry("latency", series="no_such_module:Guard"))
        result = run(file_of(tmp_path, *[{"id": 1, "completion": SALT}] * 3, {"series": "a", "value": 20}))
        assert [each["guard"] for each in found(result)] == ["salad"] * 3 + ["drift"]
        assert result.stderr.count("guard language cannot be loaded: ModuleNotFoundError") == 1
        assert "guard latency cannot be loaded" in result.stderr
        assert "4 guard failures" in result.stderr

    def test_a_bad_line_is_told_with_file_and_number_counted_and_skipped(self, tmp_path: Path) -> None:
        path = file_of(tmp_path, b"{oops\n", {"id": 1, "completion": SALT}, b'{"id": 3}\n')
        result = run(path, "--summary")
        assert len(found(result)) == 1
        assert f"{path}:1: not JSON" in result.stderr
        assert f"{path}:3: none of completion" in result.stderr
        assert "1 record, 1 finding, 2 bad lines" in result.stderr
        assert result.exit_code == 0

    def test_a_scan_in_which_every_line_was_bad_is_exit_code_two(self, tmp_path: Path) -> None:
        assert run(file_of(tmp_path, b"{oops\n", b"[]\n"), "--fail-on", "warning").exit_code == 2

    def test_an_empty_file_is_no_error(self, tmp_path: Path) -> None:
        result = run(file_of(tmp_path))
        assert (result.exit_code, result.stdout) == (0, "")
        assert "0 records" in result.stderr

    def test_standard_input_may_be_packed(self) -> None:
        row = json.dumps({"id": 1, "completion": SALT}).encode()
        assert len(found(run("-", input=gzip.compress(row)))) == 1

    def test_several_files_are_read_in_their_order(self, tmp_path: Path) -> None:
        paths = [file_of(tmp_path, {"id": n, "completion": SALT}, name=f"{n}.jsonl") for n in (2, 1, 3)]
        assert [each["id"] for each in found(run(*paths))] == [2, 1, 3]

    def test_a_cut_gzip_file_does_not_keep_the_next_file_from_being_read(self, tmp_path: Path) -> None:
        row = json.dumps({"id": 1, "completion": SALT}).encode() + b"\n"
        cut = file_of(tmp_path, gzip.compress(row * 500)[:-9], name="cut.gz")
        result = run(cut, file_of(tmp_path, {"id": "next", "completion": SALT}))
        assert "gzip that ends too early" in result.stderr
        assert found(result)[-1]["id"] == "next"
        assert len(found(result)) > 100

    def test_ids_and_texts_of_any_unicode_go_through(self, tmp_path: Path) -> None:
        row = rb'{"id": "\ud800\u0000\u2028", "completion": "\udfff\u0000 salt"}' + b"\r\n"
        result = run(file_of(tmp_path, b"\xef\xbb\xbf" + row))
        assert result.stdout.isascii()
        assert found(result)[0]["id"] == "\ud800\0\u2028"

    def test_a_line_of_a_hundred_megabytes_is_read(self, tmp_path: Path) -> None:
        path = file_of(tmp_path, {"id": 1, "completion": "a" * 100_000_000 + SALT})
        assert found(run(path))[0]["at"] == {"char": 100_000_009}


def test_an_unknown_guard_is_one_error_that_lists_all_twelve(tmp_path: Path) -> None:
    result = run(file_of(tmp_path), "--guards", "salad,sallad")
    assert isinstance(result.exception, UserError)
    assert str(result.exception) == (
        "there is no guard 'sallad'; there are logits, tokens, sampler, speculation, stop, repetition, salad, "
        "tool_calls, language, drift, latency, recurrence"
    )


def test_every_reader_in_the_registry_can_be_made() -> None:
    settings = GuardsSettings()
    for make_text in registry.text_makers(list(ENTRIES), settings).values():
        assert [*make_text(TextStart("a")).push("word "), *make_text(TextStart("a")).end()] == []
    for make_conversation in registry.conversation_makers(list(ENTRIES), settings).values():
        assert list(make_conversation().read(Conversation("a", ()))) == []
    for make_series in registry.series_makers(list(ENTRIES), settings).values():
        assert list(make_series("a").push(1.0)) == []


@pytest.mark.parametrize("what", ["a folder", "a missing file"])
def test_an_input_that_cannot_be_opened_is_told_before_anything_is_read(what: str, tmp_path: Path) -> None:
    good = file_of(tmp_path, BROKEN)
    done = subprocess.run(
        [*COMMAND, good, tmp_path if what == "a folder" else tmp_path / "none"], capture_output=True, check=False
    )
    assert (done.returncode, done.stdout) == (2, b"")
    assert done.stderr.startswith(b"checkengine: ")
    assert done.stderr.count(b"\n") == 1


def test_a_token_stream_without_a_tokenizer_is_a_bad_line(tmp_path: Path) -> None:
    result = run(file_of(tmp_path, {"id": 1, "token_ids": [1]}))
    assert "needs --tokenizer" in result.stderr
    assert result.exit_code == 2


@pytest.mark.parametrize("content", [None, b"{}", b"\xff"])
def test_a_tokenizer_that_cannot_be_loaded_is_one_clear_error(content: bytes | None, tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    if content is not None:
        path.write_bytes(content)
    result = run(file_of(tmp_path, {"id": 1, "token_ids": [1]}), "--tokenizer", path)
    assert isinstance(result.exception, UserError)
    assert "tokenizer.json" in str(result.exception)


def small_tokenizer(folder: Path) -> Path:
    from tokenizers import AddedToken, Tokenizer, models

    vocabulary = {f"Ġword{n}": n for n in range(200)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="Ġword0"))
    tokenizer.add_special_tokens([AddedToken("<|im_end|>", special=True)])
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


def test_a_token_stream_is_read_by_the_guards_of_engines(tmp_path: Path) -> None:
    small_tokenizer(tmp_path)
    loop = {"id": "loop", "token_ids": [*range(60, 80), *[1, 2, 3, 4, 5] * 30]}
    past = {"id": "past", "token_ids": [1, 2, 200, 3, 4]}
    wild = {"id": "wild", "token_ids": [1, -5, 2, 100_000]}
    result = run(file_of(tmp_path, loop, past, wild), "--tokenizer", tmp_path, "--guards", "repetition,stop,tokens")
    assert [(each["id"], each["kind"], each["guard"], each["at"]) for each in found(result)] == [
        ("loop", "repetition.loop", "repetition", {"token": 25}),
        ("past", "stop.ignored", "stop", {"token": 3}),
        ("wild", "token.impossible", "tokens", {"token": 1}),
    ]


def test_engines_guards_that_cannot_be_made_are_told_and_the_scan_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise LookupError

    monkeypatch.setattr("checkengine.guards.build.build_guards", broken)
    path = file_of(small_tokenizer(tmp_path), {"id": 1, "token_ids": [1]}, BROKEN)
    result = run(path, "--tokenizer", tmp_path, "--guards", "stop,logits")
    assert "guard stop cannot be loaded: LookupError" in result.stderr
    assert [each["guard"] for each in found(result)] == ["logits"]


def test_an_output_that_nobody_reads_any_more_ends_the_scan_quietly(tmp_path: Path) -> None:
    path = file_of(tmp_path, *[BROKEN] * 20_000)
    with subprocess.Popen(
        [*COMMAND, path, "--guards", "logits"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        # A slow scan tells how far it is; what it must not tell is that a pipe broke.
        told = process.stderr.read()
        assert b"Traceback" not in told
        assert b"rror" not in told
        assert b"pipe" not in told
        assert process.wait() == 141


def test_a_full_disk_is_one_line_and_two(tmp_path: Path) -> None:
    with open("/dev/full", "wb") as full:
        done = subprocess.run([*COMMAND, file_of(tmp_path, BROKEN)], stdout=full, stderr=subprocess.PIPE, check=False)
    assert done.returncode == 2
    assert b"Traceback" not in done.stderr
    assert b"No space left" in done.stderr


@pytest.mark.parametrize("workers", [1, 2])
def test_ctrl_c_ends_the_scan_with_130_and_no_traceback(workers: int, tmp_path: Path) -> None:
    """To the whole process group, as a terminal sends it, while the scan waits for its reader."""
    with subprocess.Popen(
        [*COMMAND, file_of(tmp_path, *[BROKEN] * 20_000), "--workers", str(workers)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
        # A shell's background job ignores the signal, and its children inherit that.
        preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert json.loads(process.stdout.readline())["kind"] == "logits.nonfinite"
        os.killpg(process.pid, signal.SIGINT)
        process.stdout.read()
        told = process.stderr.read()
        assert process.wait() == 130
        assert b"interrupted after" in told
        assert b"Traceback" not in told


@pytest.mark.usefixtures("simple_guards")
class TestWhatAPersonIsTold:
    def test_after_twenty_lines_of_one_reason_the_rest_is_counted(self, tmp_path: Path) -> None:
        rows = [b" " * n + b"{oops\n" for n in range(30)] + [b"[]\n"] * 3
        result = run(file_of(tmp_path, *rows, {"id": 1, "completion": SALT}))
        lines = result.stderr.splitlines()
        assert sum("not JSON" in line and line.endswith("; skipped") for line in lines) == 20
        assert [line for line in lines if "more" in line] == [
            "… and 10 more: not JSON: Expecting property name enclosed in double quotes at character N"
        ]
        assert sum("not an object but a list; skipped" in line for line in lines) == 3
        assert "33 bad lines" in result.stderr

    def test_the_table_counts_a_record_once_and_names_shapes_as_the_documents_do(self, tmp_path: Path) -> None:
        turns = [{"role": "user", "content": "salt?"}, {"role": "assistant", "content": "no"}] * 3
        rows = [{"id": n, "messages": turns} for n in range(4)]
        result = run(file_of(tmp_path, *rows, {"series": "a", "value": 1}), "--summary")
        rows_shown = [re.split(r"\s*[│┃]\s*", line)[1:] for line in result.stderr.splitlines() if line[0] in "│┃"]
        cells = {row[0]: row for row in rows_shown}
        assert cells["salad"][4] == "4"
        assert (cells["drift"][4], cells["drift"][5]) == ("1", "–")
        assert "4 conversations, 1 measurement; 5 lines, 0 bad" in " ".join(result.stderr.split())

    def test_a_named_guard_for_which_no_record_is_there_is_told(self, tmp_path: Path) -> None:
        path = file_of(tmp_path, {"id": 1, "completion": SALT})
        said = "guard drift read nothing: it reads measurements, and no record is one"
        assert said in run(path, "--guards", "drift").stderr
        assert "read nothing" not in run(path).stderr
        assert "read nothing" not in run(path, "--guards", "salad").stderr
