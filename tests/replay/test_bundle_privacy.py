"""Content is encrypted for those named, read on record, gone after its time, and erasable."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from naive_engine import NaiveEngine
from plain_bundle import as_format_1_0

from checkengine.replay.bundle import (
    AccessLog,
    BundleError,
    BundleReader,
    BundleStore,
    Identity,
    PublicKey,
    bundles_in,
    collect,
    erase_content,
    erase_subject,
    export_bundle,
    fetch,
    held,
    hold,
    import_bundle,
    keep_newest,
    own_identity,
    release,
    write_bundle,
)
from checkengine.replay.bundle.encryption import CHUNK_BYTES, DataKey, unwrap
from checkengine.replay.bundle.privacy import DeploymentKey
from checkengine.replay.capture import Capture
from checkengine.replay.settings import CaptureSettings


@pytest.fixture(autouse=True)
def _own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHECKENGINE_STATE", str(tmp_path / "state"))
    monkeypatch.delenv("CHECKENGINE_IDENTITY", raising=False)


def captured(name: str = "request-1") -> Capture:
    engine = NaiveEngine()
    sequence = engine.join(name=name, prompt=[1, 2, 3])
    for _ in range(3):
        engine.step()
    return replace(engine.capture(sequence), time=time.time())


def actions() -> list[str]:
    return [row["action"] for row in AccessLog.of_this_deployment().read()]


@given(st.binary(max_size=300), st.text(max_size=20))
@settings(max_examples=50, deadline=None)
def test_what_is_encrypted_comes_back_and_only_under_its_path_and_bundle(data: bytes, path: str) -> None:
    key = DataKey(b"k" * 32, "bundle")
    sealed = key.encrypt(data, path)
    assert key.decrypt(sealed, path) == data
    for other, place in ((key, path + "x"), (DataKey(b"k" * 32, "other"), path), (DataKey(b"l" * 32, "bundle"), path)):
        with pytest.raises(BundleError, match="changed or belongs to another"):
            other.decrypt(sealed, place)


def test_chunks_can_be_neither_dropped_nor_reordered_nor_changed() -> None:
    key = DataKey.new("bundle")
    data = os.urandom(2 * CHUNK_BYTES + 5)
    sealed = key.encrypt(data, "f")
    step = CHUNK_BYTES + 16
    first, second = sealed[32 : 32 + step], sealed[32 + step : 32 + 2 * step]
    assert key.decrypt(sealed, "f") == data
    hostile = [
        sealed[: 32 + 2 * step],
        sealed[:32] + second + first + sealed[32 + 2 * step :],
        sealed[:-1],
        sealed + b"x",
        sealed[:40] + bytes([sealed[40] ^ 1]) + sealed[41:],
        b"",
        sealed[:32],
    ]
    for bad in hostile:
        with pytest.raises(BundleError):
            key.decrypt(bad, "f")


def test_a_bundle_opens_for_its_recipients_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    secret, stranger = tmp_path / "friend.key", tmp_path / "stranger.key"
    secret.write_bytes(b"f" * 32)
    stranger.write_bytes(b"s" * 32)
    capture = captured()
    path = write_bundle(capture, tmp_path, content="full", recipients=[Identity(b"f" * 32).public])
    reader = BundleReader(path)
    reader.verify()
    assert reader.level == "full"
    assert not reader.opens()
    with pytest.raises(BundleError, match=r"encrypted for [0-9a-f]{16}.*CHECKENGINE_IDENTITY"):
        reader.capture()
    monkeypatch.setenv("CHECKENGINE_IDENTITY", str(stranger))
    assert not BundleReader(path).opens()
    monkeypatch.setenv("CHECKENGINE_IDENTITY", f"{stranger}{os.pathsep}{secret}")
    assert BundleReader(path).capture().identifier == capture.identifier


def test_a_bundle_is_shared_with_one_more_and_unknown_fields_survive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_bundle(captured(), tmp_path, content="full")
    keys = json.loads((path / "keys.json").read_text())
    (path / "keys.json").write_text(json.dumps({**keys, "of the future": [1]}))
    friend = Identity(b"f" * 32)
    assert friend.public.id not in keys["recipients"]
    BundleReader(path).share(friend.public)
    shared = json.loads((path / "keys.json").read_text())
    assert shared["of the future"] == [1]
    assert set(shared["recipients"]) == {own_identity().public.id, friend.public.id}
    assert actions() == ["open", "share"]
    (tmp_path / "friend.key").write_bytes(b"f" * 32)
    monkeypatch.setenv("CHECKENGINE_STATE", str(tmp_path / "elsewhere"))
    monkeypatch.setenv("CHECKENGINE_IDENTITY", str(tmp_path / "friend.key"))
    assert BundleReader(path).capture()
    BundleReader(path).verify()


def test_a_bundle_that_cannot_be_read_here_cannot_be_shared(tmp_path: Path) -> None:
    path = write_bundle(captured(), tmp_path, content="full", recipients=[Identity(b"f" * 32).public])
    before = (path / "keys.json").read_bytes()
    with pytest.raises(BundleError, match="encrypted for"):
        BundleReader(path).share(own_identity().public)
    assert (path / "keys.json").read_bytes() == before


def test_a_bundle_that_cannot_be_opened_here_still_shows_its_window_without_content(tmp_path: Path) -> None:
    capture = captured()
    path = write_bundle(capture, tmp_path, content="full", recipients=[Identity(b"f" * 32).public])
    window = BundleReader(path).window()
    assert len(window) == len(capture.window)
    assert all(not record.token_ids.any() for record in window.records)


def test_every_opening_is_a_row_of_the_access_log_and_verifying_is_none(tmp_path: Path) -> None:
    path = write_bundle(captured(), tmp_path, content="full")
    BundleReader(path).verify()
    assert actions() == []
    reader = BundleReader(path, "a question of 3 a.m.")
    reader.capture()
    reader.capture()
    rows = AccessLog.of_this_deployment().read()
    assert [(row["action"], row["bundle"], row["purpose"]) for row in rows] == [
        ("open", path.name, "a question of 3 a.m.")
    ]


def test_content_is_not_opened_where_the_opening_cannot_be_logged(tmp_path: Path) -> None:
    path = write_bundle(captured(), tmp_path, content="full")
    log = AccessLog.of_this_deployment().path
    log.mkdir()
    with pytest.raises(BundleError, match=r"access log .* cannot be written"):
        BundleReader(path).capture()


def test_a_changed_removed_or_reordered_row_breaks_the_access_log(tmp_path: Path) -> None:
    log = AccessLog(tmp_path / "log", DeploymentKey(b"d" * 32))
    for action in ("open", "hold", "erase"):
        log.add(action, "bundle é\u202e\ud800")
    lines = log.path.read_bytes().splitlines(keepends=True)
    assert len(log.read()) == 3
    changed = lines[1].replace(b'"hold"', b'"open"')
    for bad in ([lines[0], changed, lines[2]], [lines[0], lines[2]], [lines[1], lines[0], lines[2]], [b"[]\n"]):
        log.path.write_bytes(b"".join(bad))
        with pytest.raises(BundleError, match="chain is broken"):
            log.read()
    log.path.write_bytes(b"".join(lines))
    with pytest.raises(BundleError, match="line 1"):
        AccessLog(log.path, DeploymentKey(b"e" * 32)).read()


def test_a_row_that_a_crash_cut_short_is_dropped_and_the_chain_goes_on(tmp_path: Path) -> None:
    log = AccessLog(tmp_path / "log", DeploymentKey(b"d" * 32))
    log.add("open", "one")
    with open(log.path, "ab") as file:
        file.write(b'{"action": "op')
    log.add("open", "two")
    assert [row["bundle"] for row in log.read()] == ["one", "two"]


def test_threads_and_processes_that_log_at_once_leave_one_chain(tmp_path: Path) -> None:
    log = AccessLog(tmp_path / "log", DeploymentKey(b"d" * 32))
    code = (
        "import sys; from pathlib import Path; from checkengine.replay.bundle.access import AccessLog;"
        "from checkengine.replay.bundle.privacy import DeploymentKey;"
        "[AccessLog(Path(sys.argv[1]), DeploymentKey(b'd' * 32)).add('open', 'p') for _ in range(20)]"
    )
    processes = [subprocess.Popen([sys.executable, "-c", code, str(log.path)]) for _ in range(2)]
    threads = [threading.Thread(target=lambda: [log.add("open", "t") for _ in range(20)]) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [process.wait() for process in processes] == [0, 0]
    assert len(log.read()) == 80


def test_content_whose_time_is_over_is_not_opened_and_is_erased(tmp_path: Path) -> None:
    old = replace(captured(), time=time.time() - 7200)
    path = write_bundle(old, tmp_path, content="full", content_hours=1)
    with pytest.raises(BundleError, match=r"could be read until .*content_hours"):
        BundleReader(path).capture()
    fresh = write_bundle(captured("two"), tmp_path, content="full", content_hours=1)
    assert collect(tmp_path).erased == [path.name]
    assert BundleReader(path).level == "erased"
    assert not (path / "keys.json").exists()
    assert BundleReader(fresh).capture()
    assert collect(tmp_path).erased == []


def test_a_held_bundle_outlives_its_time_and_the_number_to_keep(tmp_path: Path) -> None:
    path = write_bundle(replace(captured(), time=time.time() - 7200), tmp_path, content="full", content_hours=1)
    hold(path, "case 7")
    hold(path, "again")
    newer = write_bundle(captured("two"), tmp_path)
    assert BundleReader(path).capture()
    assert collect(tmp_path, keep=0).held == [path.name]
    assert bundles_in(tmp_path) == [path]
    assert newer not in bundles_in(tmp_path)
    assert release(path)
    assert not release(path)
    assert not held(path)
    assert collect(tmp_path).erased == [path.name]


@pytest.mark.parametrize("when", [True, "tomorrow", [1], float("-inf")])
def test_an_expiry_that_is_no_time_counts_as_over(tmp_path: Path, when: object) -> None:
    from checkengine.replay.bundle.expiry import expired

    assert expired(tmp_path, {"content_expires": when})


def test_deleting_the_key_alone_erases_the_content(tmp_path: Path) -> None:
    path = write_bundle(captured(), tmp_path, content="full")
    (path / "keys.json").unlink()
    reader = BundleReader(path)
    assert reader.level == "erased"
    reader.verify()
    with pytest.raises(BundleError, match="holds no content"):
        reader.capture()


def test_a_subject_is_erased_from_every_bundle_that_holds_it_and_from_no_other(tmp_path: Path) -> None:
    mine = write_bundle(captured("kim-4711"), tmp_path, content="full")
    held_one = write_bundle(captured("kim-4711"), tmp_path, content="full")
    hold(held_one)
    other = write_bundle(captured("lee-4712"), tmp_path, content="full")
    assert set(erase_subject(tmp_path, "kim-4711")) == {mine.name, held_one.name}
    assert [BundleReader(path).level for path in (mine, held_one, other)] == ["erased", "erased", "full"]
    assert erase_subject(tmp_path, "kim-4711") == []
    assert "kim" not in AccessLog.of_this_deployment().path.read_text()


def test_a_removed_bundle_leaves_nothing_that_reads_as_one(tmp_path: Path) -> None:
    paths = [write_bundle(captured(str(n)), tmp_path / "d") for n in range(3)]
    assert len(keep_newest(tmp_path / "d", 1)) == 2
    assert sum(path.exists() for path in paths) == 1


def test_wrapped_keys_of_another_bundle_do_not_open_this_one(tmp_path: Path) -> None:
    one = write_bundle(captured("one"), tmp_path, content="full")
    two = write_bundle(captured("two"), tmp_path, content="full")
    (one / "keys.json").write_bytes((two / "keys.json").read_bytes())
    with pytest.raises(BundleError, match="wrapped key is damaged or of another bundle"):
        BundleReader(one).capture()


@pytest.mark.parametrize(
    "keys",
    [
        b"",
        b"[]",
        b'{"content": "plain"}',
        b'{"content": "aes-256-gcm", "recipients": []}',
        b'{"content": "aes-256-gcm", "recipients": {"a": 1}}',
    ],
)
def test_damaged_keys_are_one_clear_error(tmp_path: Path, keys: bytes) -> None:
    path = write_bundle(captured(), tmp_path, content="full")
    (path / "keys.json").write_bytes(keys)
    with pytest.raises(BundleError):
        BundleReader(path).capture()


def test_hostile_entries_for_the_own_identity_are_one_clear_error() -> None:
    me = Identity(b"m" * 32)
    for entry in (7, {}, {"ephemeral": "zz", "wrapped": ""}, {"ephemeral": "00" * 32, "wrapped": "00" * 48}):
        with pytest.raises(BundleError, match="wrapped key"):
            unwrap({"content": "aes-256-gcm", "recipients": {me.public.id: entry}}, "b", [me], "keys.json")


def test_public_keys_are_one_line_of_text_and_a_mistyped_one_is_refused() -> None:
    public = Identity(b"p" * 32).public
    assert PublicKey.parse(f"  {public}\n") == public
    text = str(public)
    for bad in ("", "x", text[:-1], text[:-2] + ("AA" if not text.endswith("AA") else "BB"), text + "A", "é" * 40):
        with pytest.raises(BundleError, match="no public key"):
            PublicKey.parse(bad)
    with pytest.raises(ValueError, match="no public key"):
        CaptureSettings(recipients=("nonsense",))


def test_no_content_is_written_where_there_is_nobody_to_encrypt_it_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("CHECKENGINE_STATE", str(tmp_path / "file" / "state"))
    with pytest.raises(BundleError, match="no identity at"):
        write_bundle(captured(), tmp_path / "bundles", content="full")
    assert bundles_in(tmp_path / "bundles") == []


def test_a_bundle_that_went_through_a_file_is_the_same(tmp_path: Path) -> None:
    capture = captured()
    path = write_bundle(capture, tmp_path / "a", content="full")
    file = export_bundle(path, tmp_path / "x.checkengine", content=True)
    again = import_bundle(file, tmp_path / "b")
    assert again.name == "x"
    assert BundleReader(again).capture().window.records[-1].token_ids.tolist() == (
        BundleReader(path).capture().window.records[-1].token_ids.tolist()
    )
    with pytest.raises(BundleError, match="there already"):
        import_bundle(file, tmp_path / "b")
    with pytest.raises(BundleError, match="there already"):
        export_bundle(path, file)


def test_an_export_without_content_holds_neither_content_nor_keys(tmp_path: Path) -> None:
    path = write_bundle(captured(), tmp_path / "a", content="full")
    file = export_bundle(path, tmp_path / "x.checkengine")
    with zipfile.ZipFile(file) as archive:
        names = archive.namelist()
    assert not [name for name in names if name.startswith("content/") or name == "keys.json"]
    assert names[-1] == "BUNDLE"
    copy = import_bundle(file, tmp_path / "b")
    assert BundleReader(copy).level == "exported without content"
    with pytest.raises(BundleError, match=r"holds no content \(exported without content\)"):
        BundleReader(copy).capture()


def hostile_archive(tmp_path: Path, change: str) -> Path:
    path = write_bundle(captured(), tmp_path / "a")
    good = export_bundle(path, tmp_path / "good")
    bad = tmp_path / "bad"
    kind = zipfile.ZIP_DEFLATED if change == "compressed" else zipfile.ZIP_STORED
    with zipfile.ZipFile(good) as source, zipfile.ZipFile(bad, "w", kind) as sink:
        for entry in source.infolist():
            data = source.read(entry)
            if change == "changed" and entry.filename == "env.json":
                data = b"{}"
            sink.writestr(entry.filename, data)
        if change == "outside":
            sink.writestr("../outside", b"x")
        if change == "absolute":
            sink.writestr("/tmp/outside", b"x")
        if change == "link":
            link = zipfile.ZipInfo("results/link")
            link.external_attr = 0o120777 << 16
            sink.writestr(link, "/etc/passwd")
    if change == "torn":
        bad.write_bytes(bad.read_bytes()[:-40])
    if change == "text":
        bad.write_bytes(b"not a bundle")
    return bad


@pytest.mark.parametrize("change", ["compressed", "changed", "outside", "absolute", "link", "torn", "text"])
def test_a_hostile_file_is_refused_and_leaves_nothing(tmp_path: Path, change: str) -> None:
    bad = hostile_archive(tmp_path, change)
    with pytest.raises(BundleError):
        import_bundle(bad, tmp_path / "b")
    assert [p for p in (tmp_path / "b").rglob("*") if p.is_file()] == []
    assert not (tmp_path / "outside").exists()


def test_format_1_0_with_content_in_the_clear_is_read_and_erased_as_ever(tmp_path: Path) -> None:
    """Made from a bundle of today: decrypted content, keys.json in the manifest, version 1.0."""
    path = write_bundle(captured(), tmp_path / "a", content="full")
    as_format_1_0(path)
    reader = BundleReader(path)
    assert not reader.encrypted
    reader.verify()
    assert reader.capture()
    assert actions() == ["open"]
    assert erase_content(path)
    assert BundleReader(path).level == "erased"
    BundleReader(path).verify()


def command(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "checkengine", "bundles", *arguments], capture_output=True, text=True, cwd=cwd
    )


def test_the_bundles_command_lists_shows_exports_holds_and_erases(tmp_path: Path) -> None:
    home = tmp_path / "bundles"
    path = write_bundle(captured("kim"), home, content="full", content_hours=24)
    listed = json.loads(command("ls", "-d", str(home), "--json", cwd=tmp_path).stdout)
    assert [(row["bundle"], row["level"], row["encrypted"]) for row in listed] == [(path.name, "full", True)]
    shown = command("show", str(path), "--json", cwd=tmp_path).stdout
    assert "kim" not in shown
    assert json.loads(shown)["step"]["steps"] == len(BundleReader(path).window())
    assert command("hold", str(path), "--reason", "case", cwd=tmp_path).returncode == 0
    refused = command("rm", str(path), cwd=tmp_path)
    assert refused.returncode == 129
    assert "is held" in refused.stderr
    erased = command("erase", "--subject", "kim", "-d", str(home), cwd=tmp_path).stdout
    assert erased == f"{path.name} (was held: case)\ncontent of 1 bundles erased\n"
    log = command("access", cwd=tmp_path)
    assert log.returncode == 0
    assert "erase" in log.stdout
    assert str(own_identity().public) == command("identity", cwd=tmp_path).stdout.strip()
    assert command("erase", cwd=tmp_path).returncode == 2
    assert command("show", str(tmp_path), cwd=tmp_path).returncode == 129


def test_a_held_bundle_is_erased_only_by_force_and_the_reason_of_the_hold_is_told(tmp_path: Path) -> None:
    path = write_bundle(captured("kim"), tmp_path / "bundles", content="full")
    hold(path, "case 7\x1b[2J of the court")
    refused = command("erase", str(path), cwd=tmp_path)
    assert refused.returncode == 129
    assert "is held (case 7" in refused.stderr
    assert "\x1b" not in refused.stderr
    assert BundleReader(path).level == "full"
    forced = command("erase", str(path), "--force", cwd=tmp_path)
    assert forced.returncode == 0
    assert "(was held: case 7" in forced.stdout
    assert BundleReader(path).level == "erased"


def test_a_bundle_that_does_not_come_leaves_no_folder(tmp_path: Path) -> None:
    home = tmp_path / "some" / "bundles"
    with pytest.raises(BundleError, match="cannot be imported"):
        import_bundle(tmp_path / "nope", home)
    (tmp_path / "torn.checkengine").write_bytes(b"PK")
    with pytest.raises(BundleError, match="no exported bundle"):
        import_bundle(tmp_path / "torn.checkengine", home)
    with pytest.raises(BundleError, match="no bundle at"):
        fetch(f"file://{tmp_path}/store/nope", home)
    assert sorted(path.name for path in tmp_path.iterdir() if path.name != "state") == ["torn.checkengine"]


def test_a_copy_without_content_says_so_wherever_it_goes_and_an_erased_one_stays_erased(tmp_path: Path) -> None:
    path = write_bundle(captured(), tmp_path / "a", content="full")
    store = BundleStore(f"file://{tmp_path}/store")
    store.push(path, content=False)
    pulled = store.pull(path.name, tmp_path / "b")
    again = import_bundle(export_bundle(pulled, tmp_path / "x.checkengine"), tmp_path / "c")
    for copy in (pulled, again):
        assert BundleReader(copy).level == "exported without content"
        BundleReader(copy).verify()
    assert "exported without content" in command("ls", "-d", str(tmp_path / "b"), cwd=tmp_path).stdout
    erase_content(path)
    gone = import_bundle(export_bundle(path, tmp_path / "y.checkengine"), tmp_path / "d")
    assert BundleReader(gone).level == "erased"
    bare = write_bundle(captured(), tmp_path / "e", content="none")
    assert BundleReader(import_bundle(export_bundle(bare, tmp_path / "z.checkengine"), tmp_path / "f")).level == "core"
