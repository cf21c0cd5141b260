"""Bundles in object stores: a memory and a local file system, and a real S3 protocol against a local server."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from pathlib import Path

import fsspec
import pytest
from naive_engine import NaiveEngine

from checkengine.replay.bundle import BundleError, BundleReader, BundleStore, fetch, write_bundle
from checkengine.replay.bundle.layout import MARKER


@pytest.fixture(scope="module")
def s3() -> Iterator[str]:
    import boto3
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    chosen = {
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_ENDPOINT_URL": f"http://{host}:{port}",
        "AWS_DEFAULT_REGION": "us-east-1",
    }
    before = {name: os.environ.get(name) for name in chosen}
    os.environ.update(chosen)
    boto3.client("s3").create_bucket(Bucket="bundles")
    yield "s3://bundles/deep/er"
    server.stop()
    for name, value in before.items():
        if value is None:
            os.environ.pop(name)
        else:
            os.environ[name] = value


@pytest.fixture(params=["memory", "file", "s3"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "s3":
        return f"{request.getfixturevalue('s3')}/{uuid.uuid4().hex}"
    return f"memory://{uuid.uuid4().hex}" if request.param == "memory" else f"file://{tmp_path}/store"


def written(folder: Path, content: str = "full") -> Path:
    engine = NaiveEngine()
    sequence = engine.join(prompt=[1, 2, 3])
    for _ in range(3):
        engine.step()
    return write_bundle(engine.capture(sequence), folder, content=content)  # type: ignore[arg-type]


def test_a_bundle_goes_up_and_comes_down_whole(url: str, tmp_path: Path) -> None:
    path = written(tmp_path / "a")
    store = BundleStore(url)
    assert store.names() == []
    assert store.push(path) == f"{url}/{path.name}"
    assert store.names() == [path.name]
    again = fetch(f"{url}/{path.name}", tmp_path / "b")
    assert BundleReader(again).capture().identifier == BundleReader(path).identifier
    assert fetch(f"{url}/{path.name}", tmp_path / "b") == again
    assert store.push(path, content=False)
    store.remove(path.name)
    assert store.names() == []


def test_a_bundle_is_found_by_its_incident(url: str, tmp_path: Path) -> None:
    path = written(tmp_path / "a")
    store = BundleStore(url)
    store.push(path)
    incident = BundleReader(path).manifest["incident"]
    assert store.of_incident(incident) == [path.name]
    assert store.of_incident("another") == []


def test_an_upload_that_stops_in_the_middle_is_no_bundle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path / "a")
    store = BundleStore(f"memory://{uuid.uuid4().hex}")
    files = fsspec.filesystem("memory")
    whole, sent = type(files).put_file, []

    def breaks(self: object, local: str, remote: str, **more: object) -> None:
        sent.append(remote)
        if len(sent) == 5:
            raise ConnectionError("the line is cut")
        whole(self, local, remote, **more)

    monkeypatch.setattr(type(files), "put_file", breaks)
    with pytest.raises(BundleError, match="the line is cut"):
        store.push(path)
    assert store.names() == []
    with pytest.raises(BundleError, match="no whole bundle"):
        store.pull(path.name, tmp_path / "b")
    assert not (tmp_path / "b").exists()
    monkeypatch.undo()
    store.push(path)
    assert BundleReader(store.pull(path.name, tmp_path / "b")).capture()


def test_what_was_changed_in_the_store_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path / "a")
    root = uuid.uuid4().hex
    store = BundleStore(f"memory://{root}")
    store.push(path)
    files = fsspec.filesystem("memory")
    for name, data in (("env.json", b"{}"), ("a/../../outside", b"x"), (MARKER, b"")):
        files.pipe_file(f"/{root}/{path.name}/{name}", data)
        with pytest.raises(BundleError):
            store.pull(path.name, tmp_path / "b")
        store.push(path)
        files.rm("/", recursive=True) if ".." in name else None
    assert not (tmp_path / "outside").exists()


@pytest.mark.parametrize("name", ["", "..", "a/b", "/etc", ".hidden", "é"])
def test_a_name_that_is_none_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(BundleError, match="no name of a bundle"):
        BundleStore("memory://x").pull(name, tmp_path)


@pytest.mark.parametrize("bad", ["nonsense://x", "memory://nowhere/bundle", "://"])
def test_a_store_that_cannot_be_reached_is_one_clear_error(bad: str, tmp_path: Path) -> None:
    with pytest.raises(BundleError) as told:
        fetch(f"{bad}/name", tmp_path)
    assert "\n" not in str(told.value)
