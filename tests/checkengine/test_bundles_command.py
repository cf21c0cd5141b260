"""`checkengine bundles`: what a person sees of bundles, and of strangers' ones."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from checkengine.benchmarks.bundle_samples import small_capture
from checkengine.commands import bundles
from checkengine.replay.bundle import BundleError, BundleReader, append_result, layout, plain, write_bundle
from checkengine.replay.bundle.calls import CallOrigin, StoredCall, write_call
from checkengine.replay.bundle.files import Entry
from checkengine.replay.minimise.values import Values
from checkengine.replay.op_call import OpCall


@pytest.fixture(autouse=True)
def own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHECKENGINE_STATE", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    return write_bundle(small_capture(), tmp_path / "bundles", content="full", content_hours=24)


def told(*arguments: object) -> Any:
    done = CliRunner().invoke(bundles.app, [str(each) for each in arguments])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done


def changed(bundle: Path, path: str, value: Any) -> None:
    """Another file of the core, with manifest and marker that go with it, as a stranger can make them."""
    manifest = json.loads((bundle / layout.MANIFEST).read_bytes())
    if path != layout.MANIFEST:
        (bundle / path).write_bytes(plain.encode(value))
        manifest["files"][path] = Entry.of((bundle / path).read_bytes()).to_json()
    else:
        manifest |= value
    (bundle / layout.MANIFEST).write_bytes(plain.encode(manifest))
    marker = json.loads((bundle / layout.MARKER).read_bytes())
    marker["manifest"] = Entry.of((bundle / layout.MANIFEST).read_bytes()).to_json()
    (bundle / layout.MARKER).write_bytes(plain.encode(marker))


def call_bundle(directory: Path) -> Path:
    call = OpCall(
        layer=0,
        row=0,
        kernel="paged",
        query=torch.ones(1, 1, 4),
        keys=torch.ones(2, 4, 1, 4),
        values=torch.ones(2, 4, 1, 4),
        blocks=np.arange(2, dtype=np.int32),
        table=np.zeros(1, np.int32),
        length=3,
        scaling=0.5,
    )
    stored = StoredCall(call, {"kind": "code defect"}, 3, Values.ONES)
    return write_call(stored, directory, CallOrigin({"engine": "embedded"}, time=time.time()))


def test_the_list_shows_how_much_memory_each_bundle_holds(bundle: Path) -> None:
    call_bundle(bundle.parent)
    (line, call) = told("ls", "-d", bundle.parent).stdout.splitlines()
    assert [word in line for word in (bundle.name, " L3 ", " full ", "until ")] == [True] * 4
    assert " -  " in call


def test_a_bundle_is_shown_on_one_screen_with_what_to_do_next(bundle: Path) -> None:
    append_result(bundle, {"verdict": {"sentence": "the model itself"}})
    lines = told("show", bundle).stdout.splitlines()
    assert len(lines) < 15
    facts = dict(line.split(maxsplit=1) for line in lines)
    assert facts["finding"].startswith("language.switch by language, step 7")
    assert facts["level"].startswith("L3, all pages")
    assert facts["content"].startswith("encrypted; readable until")
    assert facts["holds"] == "steps 0 to 7, bit-exact from step 0; 3 sequences, 2 of them captured; kernel paged"
    assert facts["results"] == "1; the last: the model itself"
    assert facts["next"] == f"checkengine replay {bundle}"


def test_all_of_a_bundle_is_one_json_object(bundle: Path) -> None:
    shown = json.loads(told("show", bundle, "--json").stdout)
    assert (shown["captured"], shown["level"], shown["step"]["steps"]) == ("L3", "full", 8)


def test_a_bundle_of_a_single_call_is_shown_too(tmp_path: Path) -> None:
    shown = told("show", call_bundle(tmp_path / "bundles")).stdout
    assert "one attention call, kernel paged" in shown
    assert "checkengine replay" in shown


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (layout.STEP, []),
        (layout.STEP, {"kernels": 7, "steps": "many", "sequences": [1], "first_exact_step": {}}),
        (layout.ENVIRONMENT, 3),
        (layout.ENVIRONMENT, {"engine": ["a"], "armed": "\x1b[2J\n" * 1000}),
        (layout.MANIFEST, {"time": 1e300, "content_expires": 1e300, "capture_level": ["L3"], "incident": {}}),
        (layout.MANIFEST, {"time": "now", "content_expires": [], "incident": "\x1b]0;x\x07\nbundle      another"}),
        (layout.MANIFEST, {"findings": 5}),
        (layout.MANIFEST, {"findings": [{"kind": 1}]}),
    ],
)
def test_a_strangers_values_are_shown_without_control_codes_or_refused(bundle: Path, path: str, value: Any) -> None:
    changed(bundle, path, value)
    try:
        lines = told("show", bundle).stdout.split("\n")
    except BundleError:
        lines = []
    lines += told("ls", "-d", bundle.parent).stdout.split("\n")
    assert all(line.isprintable() and len(line) < 500 for line in lines)
    assert sum(line.startswith("bundle ") for line in lines) <= 1


def test_a_damaged_result_does_not_hide_the_bundle(bundle: Path) -> None:
    (bundle / layout.RESULTS / "000001.json").write_bytes(b"{")
    assert "not as JSON" in told("show", bundle).stdout or "000001.json" in told("show", bundle).stdout


def test_holding_and_releasing_say_what_they_did(bundle: Path) -> None:
    assert told("hold", bundle).stdout.startswith(f"held {bundle.name}")
    assert told("release", bundle).stdout == "released\n"
    assert told("release", bundle).stdout == "was not held\n"


@pytest.mark.parametrize("command", ["ls", "gc"])
def test_a_folder_that_is_not_there_is_a_slip_and_not_an_empty_one(command: str, tmp_path: Path) -> None:
    with pytest.raises(BundleError, match="there is no folder"):
        told(command, "-d", tmp_path / "bundels")
    assert told(command).exit_code == 0


def test_releasing_what_is_no_bundle_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match="there is nothing at"):
        told("release", tmp_path / "bundle")


def test_removing_tells_the_name(bundle: Path) -> None:
    assert told("rm", bundle).stdout == f"removed {bundle.name}\n"
    with pytest.raises(BundleError):
        BundleReader(bundle)
