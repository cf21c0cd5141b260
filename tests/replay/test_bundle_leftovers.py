"""What is left of bundles when somebody dies, is late, or means harm: drafts, links, holds, strangers' numbers."""

from __future__ import annotations

import json
import os
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from checkengine.benchmarks.bundle_samples import small_capture
from checkengine.replay.bundle import (
    AccessLog,
    BundleError,
    BundleReader,
    BundleStore,
    bundles_in,
    collect,
    erase_content,
    export_bundle,
    hold,
    import_bundle,
    layout,
    plain,
    remove,
    results_of,
    write_bundle,
)
from checkengine.replay.bundle import archive as archive_module
from checkengine.replay.bundle import draft as draft_module
from checkengine.replay.bundle import files as files_module
from checkengine.replay.bundle import store as store_module
from checkengine.replay.bundle.draft import remove_leftovers
from checkengine.replay.bundle.expiry import expires
from checkengine.replay.bundle.files import write_durably


class Killed(BaseException):
    """Stands for SIGKILL: nothing that tidies up is run."""


@pytest.fixture(autouse=True)
def own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHECKENGINE_STATE", str(tmp_path / "state"))


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    return write_bundle(small_capture(), tmp_path / "bundles", content="full")


def rewritten(bundle: Path, **changed: object) -> None:
    """The manifest with other values, and the marker that goes with it."""
    manifest = json.loads((bundle / layout.MANIFEST).read_bytes()) | changed
    data = plain.encode(manifest)
    (bundle / layout.MANIFEST).write_bytes(data)
    marker = json.loads((bundle / layout.MARKER).read_bytes())
    marker["manifest"] = files_module.Entry.of(data).to_json()
    (bundle / layout.MARKER).write_bytes(plain.encode(marker))


def cut_short(call: Callable[[Path], object], bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process dies as it begins to delete."""

    def die(*_: object, **__: object) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(store_module.shutil, "rmtree", die)
        with pytest.raises(Killed):
            call(bundle)


def test_a_removal_that_is_cut_short_leaves_no_bundle_and_is_swept(
    bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cut_short(remove, bundle, monkeypatch)
    assert (bundles_in(bundle.parent), bundle.exists()) == ([], False)
    assert len(os.listdir(bundle.parent)) == 1
    collect(bundle.parent)
    assert os.listdir(bundle.parent) == []


def test_an_erasure_that_is_cut_short_is_finished_by_the_next_collection(
    bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cut_short(erase_content, bundle, monkeypatch)
    assert BundleReader(bundle).level == "erased"
    assert list(bundle.glob(".content-*"))
    rewritten(bundle, content_expires=1.0)
    collect(bundle.parent)
    assert not list(bundle.glob(".content-*"))


def test_content_that_is_erased_already_makes_no_further_row_of_the_access_log(bundle: Path) -> None:
    rewritten(bundle, content_expires=1.0)
    assert collect(bundle.parent).erased == [bundle.name]
    rows = len(AccessLog.of_this_deployment().read())
    assert collect(bundle.parent).erased == []
    assert len(AccessLog.of_this_deployment().read()) == rows


def test_the_draft_of_an_import_is_not_swept_while_it_is_written(
    bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However old it looks: a large file takes longer than a draft may be young."""
    file, swept = export_bundle(bundle, tmp_path / "one.checkengine", content=True), []
    unpack = archive_module.unpack

    def slow(*arguments: object) -> None:
        unpack(*arguments)  # type: ignore[arg-type]
        swept.append(remove_leftovers(tmp_path / "there", fresh=-1.0))

    monkeypatch.setattr(archive_module, "unpack", slow)
    assert BundleReader(import_bundle(file, tmp_path / "there")).level == "full"
    assert swept == [0]


def test_the_draft_of_an_import_that_died_is_swept_and_counts_as_no_torn_capture(bundle: Path, tmp_path: Path) -> None:
    draft = tmp_path / "there" / f"{draft_module.ARRIVING_PREFIX}0123"
    draft.mkdir(parents=True)
    (draft / layout.MANIFEST).write_bytes(b"{")
    assert remove_leftovers(draft.parent, fresh=-1.0) == 0
    assert os.listdir(draft.parent) == []


def test_of_two_imports_at_once_one_gets_the_name_and_the_other_is_told(
    bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = export_bundle(bundle, tmp_path / "one.checkengine")
    unpack, first = archive_module.unpack, []

    def other_first(*arguments: object) -> None:
        unpack(*arguments)  # type: ignore[arg-type]
        if not first:
            first.append(True)
            import_bundle(file, tmp_path / "there")

    monkeypatch.setattr(archive_module, "unpack", other_first)
    with pytest.raises(BundleError, match="is there already"):
        import_bundle(file, tmp_path / "there")
    assert [path.name for path in (tmp_path / "there").iterdir()] == ["one"]


def test_a_bundle_that_another_process_fetched_meanwhile_is_taken(
    bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = BundleStore((tmp_path / "store").as_uri())
    store.push(bundle)
    download, first = BundleStore._download, []

    def other_first(self: BundleStore, place: str, draft: Path) -> None:
        download(self, place, draft)
        if not first:
            first.append(True)
            self.pull(bundle.name, tmp_path / "there")

    monkeypatch.setattr(BundleStore, "_download", other_first)
    assert BundleReader(store.pull(bundle.name, tmp_path / "there")).level == "full"
    assert [path.name for path in (tmp_path / "there").iterdir()] == [bundle.name]


@pytest.mark.parametrize("place", ["results/000007.json", "notes.txt"])
def test_neither_a_link_nor_a_stray_file_of_a_bundle_is_exported(bundle: Path, tmp_path: Path, place: str) -> None:
    secret = tmp_path / "secret"
    secret.write_text("a key of this user")
    if place.startswith("results"):
        (bundle / place).symlink_to(secret)
    else:
        (bundle / place).write_text("a key of this user")
    with zipfile.ZipFile(export_bundle(bundle, tmp_path / "out.checkengine")) as archive:
        assert place not in archive.namelist()
        assert not any(b"a key" in archive.read(name) for name in archive.namelist())
    BundleStore((tmp_path / "store").as_uri()).push(bundle)
    assert not (tmp_path / "store" / bundle.name / place).exists()


def test_a_stranger_cannot_hold_a_bundle_here(bundle: Path, tmp_path: Path) -> None:
    """A hold keeps content beyond its time."""
    file = export_bundle(bundle, tmp_path / "one.checkengine", content=True)
    with zipfile.ZipFile(file, "a") as archive:
        archive.writestr(archive_module.entry_of(layout.HOLD), b"{}")
    assert not (import_bundle(file, tmp_path / "there") / layout.HOLD).exists()
    BundleStore((tmp_path / "store").as_uri()).push(bundle)
    (tmp_path / "store" / bundle.name / layout.HOLD).write_bytes(b"{}")
    store = BundleStore((tmp_path / "store").as_uri())
    assert not (store.pull(bundle.name, tmp_path / "pulled") / layout.HOLD).exists()


@pytest.mark.parametrize("name", ["", ".", "..", ".hidden", "../out", "/tmp/out", "a\0b"])
def test_an_imported_bundle_is_a_plain_folder_of_the_directory(bundle: Path, tmp_path: Path, name: str) -> None:
    file = export_bundle(bundle, tmp_path / "one.checkengine")
    with pytest.raises(BundleError, match="--name"):
        import_bundle(file, tmp_path / "there", name)
    assert not (tmp_path / "there").exists()


def test_a_name_that_a_store_would_not_give_back_is_refused_before_anything_is_sent(
    bundle: Path, tmp_path: Path
) -> None:
    named = bundle.rename(bundle.with_name("größe ☃"))
    with pytest.raises(BundleError, match="rename it"):
        BundleStore((tmp_path / "store").as_uri()).push(named)
    assert not (tmp_path / "store").exists()


def test_a_file_that_a_store_holds_larger_than_the_manifest_says_is_not_fetched(bundle: Path, tmp_path: Path) -> None:
    BundleStore((tmp_path / "store").as_uri()).push(bundle)
    with open(tmp_path / "store" / bundle.name / layout.KV, "r+b") as file:
        file.truncate(1 << 40)
    with pytest.raises(BundleError, match="bytes where"):
        BundleStore((tmp_path / "store").as_uri()).pull(bundle.name, tmp_path / "there")
    assert not (tmp_path / "there").exists()


def test_a_result_that_is_no_plain_file_is_one_error_and_is_not_waited_for(bundle: Path) -> None:
    os.mkfifo(bundle / layout.RESULTS / "000001.json")
    with pytest.raises(BundleError, match="regular file"):
        results_of(bundle)


@pytest.mark.parametrize("when", [1e300, float("inf"), -1e300, float("nan"), 10**400, True, "soon"])
def test_a_time_that_no_calendar_knows_is_a_time_all_the_same(when: object) -> None:
    assert 0 <= (expires({"content_expires": when}) or 0.0) < 2.6e11


def test_a_long_reason_does_not_break_the_chain_of_the_access_log(bundle: Path) -> None:
    hold(bundle, "\N{SNOWMAN}" * 100_000)
    AccessLog.of_this_deployment().add("open", bundle.name)
    assert [row["action"] for row in AccessLog.of_this_deployment().read()] == ["hold", "open"]


def test_a_file_that_could_not_be_written_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(files_module.os, "write", full)
        with pytest.raises(OSError, match="No space"):
            write_durably(tmp_path / "file", b"bytes")
    assert not (tmp_path / "file").exists()
