from __future__ import annotations

import errno
import json
import os
import resource
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from naive_engine import NaiveEngine, served

from checkengine.replay.bundle import (
    BundleError,
    BundleReader,
    DeploymentKey,
    append_result,
    bundles_in,
    erase_content,
    keep_newest,
    layout,
    results_of,
    write_bundle,
)
from checkengine.replay.bundle import write as write_module
from checkengine.replay.bundle.draft import held, remove_leftovers
from checkengine.replay.bundle.layout import CONTENT_FILES
from checkengine.replay.bundle.privacy import deployment_key
from checkengine.replay.capture import Capture
from checkengine.replay.involve import redact_uninvolved
from checkengine.replay.memory import MemoryImage
from checkengine.replay.recorded import RecordedWindow

KEY = DeploymentKey(bytes(range(32)))
ARRAYS = ("handles", "query_lengths", "starts", "samples", "token_ids", "block_changes", "fingerprints", "sampled")


@pytest.fixture(autouse=True)
def state(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Keys are made here and not in the home of whoever runs the tests."""
    directory = tmp_path_factory.mktemp("state")
    monkeypatch.setenv("CHECKENGINE_STATE", str(directory))
    return directory


def raw(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().view(torch.uint8).numpy().tobytes()


def assert_same(read: Capture, written: Capture) -> None:
    for name in ("involved", "incident", "identifier", "time", "findings"):
        assert getattr(read, name) == getattr(written, name), name
    assert read.environment == written.environment
    assert read.window.starts == written.window.starts
    assert read.window.dropped == written.window.dropped
    assert len(read.window) == len(written.window)
    for mine, theirs in zip(read.window.records, written.window.records, strict=True):
        for name in ARRAYS:
            assert getattr(mine, name).dtype == getattr(theirs, name).dtype, name
            assert np.array_equal(getattr(mine, name), getattr(theirs, name)), name
        for name in ("step", "time_ns", "begun", "ended", "kernel"):
            assert getattr(mine, name) == getattr(theirs, name), name
    for (_, mine_tables), (_, their_tables) in zip(read.window.walk(), written.window.walk(), strict=True):
        assert {h: t.tolist() for h, t in mine_tables.items()} == {h: t.tolist() for h, t in their_tables.items()}
    assert {h: t.tolist() for h, t in read.histories.items()} == {h: t.tolist() for h, t in written.histories.items()}
    assert read.memory.block_size == written.memory.block_size
    assert read.memory.blocks.tolist() == written.memory.blocks.tolist()
    assert {g: list(x) for g, x in read.memory.layers.items()} == {g: list(x) for g, x in written.memory.layers.items()}
    assert_same_tensors(read.memory.tensors, written.memory.tensors)
    for mine_entry, their_entry in zip(read.undo, written.undo, strict=True):
        assert mine_entry.step == their_entry.step
        assert mine_entry.slots.tolist() == their_entry.slots.tolist()
        assert_same_tensors(dict(mine_entry.tensors), dict(their_entry.tensors))


def assert_same_tensors(read: dict[str, torch.Tensor], written: dict[str, torch.Tensor]) -> None:
    assert read.keys() == written.keys()
    for name, tensor in written.items():
        assert read[name].dtype == tensor.dtype
        assert read[name].shape == tensor.shape
        assert raw(read[name]) == raw(tensor)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float8_e4m3fn])
def test_a_full_bundle_gives_back_every_bit_of_its_capture(tmp_path: Path, dtype: torch.dtype) -> None:
    engine, sequence = served(2, dtype=dtype)
    capture = engine.capture(sequence)
    path = write_bundle(capture, tmp_path, content="full", key=KEY)
    reader = BundleReader(path)
    reader.verify()
    assert reader.level == "full"
    read = reader.capture()
    assert_same(read, redact_uninvolved(capture))
    assert read.first_exact_step == capture.first_exact_step
    assert reader.json(layout.STEP)["first_exact_step"] == capture.first_exact_step


def test_a_window_out_of_the_middle_gives_back_every_bit_too(tmp_path: Path) -> None:
    engine, sequence = served(4)
    capture = engine.capture(sequence, 13)
    assert_same(BundleReader(write_bundle(capture, tmp_path, content="full")).capture(), redact_uninvolved(capture))


def test_an_empty_capture_makes_a_whole_bundle(tmp_path: Path) -> None:
    memory = MemoryImage(4, np.empty(0, np.int32), {}, {})
    capture = Capture(RecordedWindow(), memory, frozenset())
    reader = BundleReader(write_bundle(capture, tmp_path, content="full"))
    reader.verify()
    assert_same(reader.capture(), capture)


def test_a_huge_batch_and_a_long_prompt_survive(tmp_path: Path) -> None:
    engine = NaiveEngine()
    engine.free = list(range(64))
    sequence = engine.join(prompt=list(range(200)))
    for _ in range(45):
        engine.step()
    capture = engine.capture(sequence)
    capture.window.starts[0] = replace(capture.window.starts[0], prompt_tokens=tuple(range(300_000)))
    assert_same(BundleReader(write_bundle(capture, tmp_path, content="full")).capture(), redact_uninvolved(capture))


def planted(tmp_path: Path, content: str) -> tuple[Path, list[bytes]]:
    """A bundle whose content is made of patterns that a byte scan finds."""
    engine = NaiveEngine(9)
    prompt = [0x5EC2E701 % 2**31, 0x5EC2E702 % 2**31, 0x5EC2E703 % 2**31, 0x5EC2E704 % 2**31]
    sequence = engine.join(name="user-Ängström-secret", prompt=prompt)
    for tensor in engine.memory.values():
        tensor.fill_(1234.5678)
    for _ in range(4):
        engine.step()
    capture = engine.capture(sequence)
    hidden = [np.array([token], np.int32).tobytes() for token in prompt]
    hidden += [json.dumps(text)[1:-1].encode() for text in ("user-Ängström-secret", "schlusswort")] + [b"secret"]
    hidden += [np.array([1234.5678], np.float32).tobytes()]
    fingerprints = [record.fingerprints.tobytes() for record in capture.window.records if len(record.fingerprints)]
    assert fingerprints
    hidden += fingerprints + [str(token).encode() for token in prompt]
    return write_bundle(capture, tmp_path, content=content, key=KEY), hidden  # type: ignore[arg-type]


def everything(path: Path, without: str | None = None) -> bytes:
    files = [file for file in sorted(path.rglob("*")) if file.is_file() and without not in file.relative_to(path).parts]
    return b"\n".join(file.read_bytes() for file in files)


def test_core_files_hold_no_token_no_name_no_text_and_no_kv_byte(tmp_path: Path) -> None:
    core, hidden = planted(tmp_path / "core", "none")
    full, _ = planted(tmp_path / "full", "full")
    for secret in hidden:
        assert secret not in everything(core)
        assert secret not in everything(full), "content on the disk is encrypted"
    assert not (core / "content").exists()


def test_a_byte_scan_of_the_decrypted_content_finds_what_was_planted(tmp_path: Path) -> None:
    """Shows that the scan of the test above can fail."""
    full, hidden = planted(tmp_path, "full")
    reader = BundleReader(full)
    reader.capture()
    opened = b"\n".join(reader._read_content(path) for path in CONTENT_FILES)
    assert sum(secret in opened for secret in hidden) >= 8


def test_a_core_bundle_opens_shows_and_verifies_and_says_that_it_holds_no_content(tmp_path: Path) -> None:
    engine, sequence = served(2)
    capture = engine.capture(sequence)
    reader = BundleReader(write_bundle(capture, tmp_path, key=KEY))
    reader.verify()
    assert reader.level == "core"
    window = reader.window()
    assert len(window) == len(capture.window)
    assert [finding.kind for finding in reader.findings] == ["logits.nonfinite"]
    assert reader.findings[0].sequence == KEY.name(sequence.start.name)
    with pytest.raises(BundleError, match=r'holds no content.*content = "full"'):
        reader.capture()


def test_content_can_be_erased_later_and_the_rest_still_verifies(tmp_path: Path) -> None:
    engine, sequence = served(2)
    path = write_bundle(engine.capture(sequence), tmp_path, content="full")
    assert erase_content(path)
    assert not erase_content(path)
    assert [file.name for file in path.rglob("*") if "content" in file.name] == []
    reader = BundleReader(path)
    reader.verify()
    assert reader.level == "erased"
    assert len(reader.window()) == 20
    with pytest.raises(BundleError, match="erased"):
        reader.capture()


def test_files_are_readable_by_their_owner_only(tmp_path: Path) -> None:
    engine, sequence = served(2)
    path = write_bundle(engine.capture(sequence), tmp_path, content="full")
    assert all(file.stat().st_mode & 0o077 == 0 for file in path.rglob("*") if file.is_file())


def test_a_torn_bundle_is_refused_with_one_clear_error(tmp_path: Path) -> None:
    engine, sequence = served(2)
    path = write_bundle(engine.capture(sequence), tmp_path, content="full")
    (path / "BUNDLE").unlink()
    with pytest.raises(BundleError, match=r"no whole bundle.*BUNDLE is missing"):
        BundleReader(path)


def test_another_major_version_is_refused_and_a_minor_one_is_read(tmp_path: Path) -> None:
    engine, sequence = served(2)
    path = write_bundle(engine.capture(sequence), tmp_path)
    marker = json.loads((path / "BUNDLE").read_text())
    for version, works in (([1, 7], True), ([2, 0], False), ("1", False), ([1, True], False)):
        (path / "BUNDLE").write_text(json.dumps(marker | {"version": version}))
        if works:
            BundleReader(path).verify()
        else:
            with pytest.raises(BundleError, match=r"format 2\.0|names no version"):
                BundleReader(path)


@pytest.mark.parametrize("place", ["env.json", "content/kv.safetensors", "content"])
def test_symbolic_links_are_refused(tmp_path: Path, place: str) -> None:
    engine, sequence = served(2)
    path = write_bundle(engine.capture(sequence), tmp_path, content="full")
    moved = tmp_path / "elsewhere"
    os.rename(path / place, moved)
    (path / place).symlink_to(moved)
    with pytest.raises(BundleError, match="plain files only"):
        BundleReader(path).verify()


def rewrite_manifest(path: Path, change: dict[str, object]) -> None:
    """As an attacker who can recompute digests."""
    from checkengine.replay.bundle.files import Entry

    manifest = json.loads((path / "manifest.json").read_text())
    manifest["files"] |= change
    data = json.dumps(manifest).encode()
    (path / "manifest.json").write_bytes(data)
    marker = json.loads((path / "BUNDLE").read_text()) | {"manifest": Entry.of(data).to_json()}
    (path / "BUNDLE").write_text(json.dumps(marker))


@pytest.mark.parametrize("name", ["../outside", "/etc/passwd", "a/../../b", "results/\u0000", "a//b", ".hidden", "~/x"])
def test_a_manifest_that_points_outside_is_refused(tmp_path: Path, name: str) -> None:
    engine, sequence = served(2)
    path = write_bundle(engine.capture(sequence), tmp_path)
    (tmp_path / "outside").write_bytes(b"x")
    rewrite_manifest(path, {name: {"bytes": 1, "sha256": "0" * 64}})
    with pytest.raises(BundleError, match="lies outside"):
        BundleReader(path).verify()


def test_a_file_larger_than_its_manifest_says_is_refused_before_it_is_read(tmp_path: Path) -> None:
    engine, sequence = served(2)
    path = write_bundle(engine.capture(sequence), tmp_path, content="full")
    with open(path / "content/kv.safetensors", "r+b") as file:
        file.truncate(1 << 40)
    with pytest.raises(BundleError, match="where at most"):
        BundleReader(path).capture()


def test_json_bombs_are_refused(tmp_path: Path) -> None:
    engine, sequence = served(2)
    path = write_bundle(engine.capture(sequence), tmp_path)
    for bomb in (b"[" * 100_000, b'{"a":' * 50 + b"1" + b"}" * 50, b"9" * 10_000, b'{"a":1,"a":2}', b"NaN", b"\xff"):
        (path / "BUNDLE").write_bytes(bomb[:4000])
        with pytest.raises(BundleError):
            BundleReader(path)


def test_a_full_disk_leaves_no_bundle_and_one_clear_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine, sequence = served(2)
    capture = engine.capture(sequence)
    room = 0
    real = write_module.write_durably

    def until_full(path: Path, data: bytes) -> None:
        nonlocal room
        if room == 0:
            real(path, data[: len(data) // 2])
            raise OSError(errno.ENOSPC, "No space left on device")
        room -= 1
        real(path, data)

    monkeypatch.setattr(write_module, "write_durably", until_full)
    for limit in range(16):
        room = limit
        with pytest.raises(BundleError, match=r"No space left on device; make room"):
            write_bundle(capture, tmp_path, content="full")
        assert list(tmp_path.iterdir()) == []


def test_a_file_size_limit_of_the_system_leaves_no_bundle(tmp_path: Path) -> None:
    engine, sequence = served(2)
    capture = engine.capture(sequence)
    whole = write_bundle(capture, tmp_path / "roomy", content="full")
    largest = max(file.stat().st_size for file in whole.rglob("*") if file.is_file())
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    for limit in (0, largest // 2, largest - 1):
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
        try:
            with pytest.raises(BundleError, match="File too large; make room"):
                write_bundle(capture, tmp_path / "tight", content="full")
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert list((tmp_path / "tight").iterdir()) == []
    BundleReader(write_bundle(capture, tmp_path / "tight", content="full")).verify()


def test_an_unwritable_directory_is_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    engine, sequence = served(2)
    with pytest.raises(BundleError, match="choose a writable"):
        write_bundle(engine.capture(sequence), tmp_path / "file" / "bundles")


def test_an_environment_that_json_cannot_carry_is_named(tmp_path: Path) -> None:
    engine, sequence = served(2)
    capture = replace(engine.capture(sequence), environment={"kernel": {"picked": object()}})
    with pytest.raises(BundleError, match=r"value\.kernel\.picked is a object"):
        write_bundle(capture, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_leftovers_of_dead_writers_are_removed_and_young_ones_left(tmp_path: Path) -> None:
    old, young, other = (tmp_path / name for name in (".writing-a-1", ".writing-b-2", "keep"))
    for folder in (old, young, other):
        folder.mkdir()
    os.utime(old, (1, 1))
    os.utime(other, (1, 1))
    assert remove_leftovers(tmp_path) == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == [".writing-b-2", "keep"]


def test_the_draft_of_a_living_writer_is_left_however_old_it_is(tmp_path: Path) -> None:
    draft = tmp_path / ".writing-a-1"
    draft.mkdir()
    os.utime(draft, (1, 1))
    with held(draft):
        assert remove_leftovers(tmp_path) == 0
        assert draft.exists()
    assert remove_leftovers(tmp_path) == 1
    assert list(tmp_path.iterdir()) == []


def test_unicode_and_hostile_names_make_safe_paths(tmp_path: Path) -> None:
    engine, sequence = served(2)
    capture = engine.capture(sequence)
    hostile = replace(capture.findings[0], kind="../../../etc/пароль\n", sequence="\ud800 名前")
    capture = replace(capture, findings=(hostile,), incident="инцидент \udcff")
    path = write_bundle(capture, tmp_path, content="full")
    assert path.parent == tmp_path
    assert path.name.isascii()
    assert BundleReader(path).capture().findings == (hostile,)
    assert BundleReader(path).capture().incident == "инцидент \udcff"


def test_an_environment_too_deep_or_too_large_is_refused_when_it_is_written(tmp_path: Path) -> None:
    engine, sequence = served(2)
    capture = engine.capture(sequence)
    deep: list[object] = []
    for _ in range(40):
        deep = [deep]
    endless: list[object] = []
    endless.append(endless)
    for value, words in ((deep, "deeper"), (endless, "holds itself"), ("x" * (9 << 20), "more than a bundle")):
        with pytest.raises(BundleError, match=words):
            write_bundle(replace(capture, environment={"value": value}), tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_the_oldest_bundles_give_way_and_torn_ones_are_not_counted(tmp_path: Path) -> None:
    engine, sequence = served(2)
    capture = engine.capture(sequence)
    paths = [
        write_bundle(replace(capture, time=capture.time + second, identifier=f"{second:016x}"), tmp_path)
        for second in range(4)
    ]
    (paths[2] / "BUNDLE").unlink()
    assert bundles_in(tmp_path) == [paths[0], paths[1], paths[3]]
    assert keep_newest(tmp_path, 2) == [paths[0]]
    assert bundles_in(tmp_path) == [paths[1], paths[3]]
    assert keep_newest(tmp_path / "nowhere", 2) == []


def test_results_are_added_and_never_replaced_and_the_bundle_still_verifies(tmp_path: Path) -> None:
    engine, sequence = served(2)
    path = write_bundle(engine.capture(sequence), tmp_path)
    for verdict in ("transient", "code defect"):
        append_result(path, {"verdict": verdict, "bound": float("nan")})
    assert [result["verdict"] for result in results_of(path)] == ["transient", "code defect"]
    BundleReader(path).verify()
    with pytest.raises(BundleError, match="no result can be added"):
        append_result(path / "BUNDLE", {})


def test_the_deployment_key_is_made_once_and_is_its_owners_alone(state: Path) -> None:
    first, second = deployment_key(), deployment_key()
    assert first.name("x") == second.name("x")
    assert (state / "deployment.key").stat().st_mode & 0o777 == 0o600
    assert DeploymentKey.random().name("x") != first.name("x")
    assert [path.name for path in state.iterdir()] == ["deployment.key"]


def test_without_a_writable_place_the_key_lives_as_long_as_the_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("CHECKENGINE_STATE", str(tmp_path / "file" / "state"))
    assert deployment_key().name("x") == deployment_key().name("x")


def test_fingerprints_in_the_core_are_keyed_and_follow_the_key(tmp_path: Path) -> None:
    engine, sequence = served(2)
    capture = redact_uninvolved(engine.capture(sequence))
    other = DeploymentKey(bytes(32))
    paths = [
        write_bundle(replace(capture, identifier=f"{i}"), tmp_path, key=key) for i, key in enumerate([KEY, KEY, other])
    ]
    prints = [[r.fingerprints.tolist() for r in BundleReader(path).window().records] for path in paths]
    assert prints[0] == prints[1]
    real = [record.fingerprints for record in capture.window.records]
    assert all(not np.isin(mine, theirs).any() for mine, theirs in zip(prints[0], real, strict=True))
    assert prints[0] != prints[2]
    assert np.array_equal(np.array(prints[0][3], np.uint64), KEY.fingerprints(real[3]))
