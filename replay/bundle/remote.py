"""Bundles in an object store or on another file system, by fsspec URL (s3://…, gs://…, file:///…, memory://…).

An object store has no rename: files go up one by one and the marker last, so that a bundle which is there in part is
torn like any other. What comes down is checked against its manifest before it gets its name.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from checkengine.replay.bundle import layout, plain
from checkengine.replay.bundle.archive import COPY_BYTES, LEFT_OUT, RESULT, files_of, leaves_out
from checkengine.replay.bundle.draft import arriving
from checkengine.replay.bundle.files import SAFE_PATH
from checkengine.replay.bundle.layout import BundleError
from checkengine.replay.bundle.read import BundleReader

T = TypeVar("T")


class BundleStore:
    """One URL under which bundles lie, each a folder. BundleError where the store cannot be reached or refuses.

    Needs `fsspec`, and for a given protocol the package that fsspec names (s3fs for s3://).
    """

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")
        self._files, self._root = self._told(lambda: _file_system(self.url))

    def names(self) -> list[str]:
        """Of whole bundles, oldest first (their names begin with the time)."""

        def find() -> list[str]:
            if not self._files.exists(self._root):
                return []
            markers = self._files.glob(f"{self._root}/*/{layout.MARKER}")
            return sorted(str(marker).rsplit("/", 2)[-2] for marker in markers)

        return [name for name in self._told(find) if is_name(name)]

    def push(self, bundle: Path | str, *, content: bool = True) -> str:
        """Copy a bundle up and return its URL. A bundle that is there already, in part or whole, is written anew, and
        is not whole in between."""
        folder = Path(bundle).resolve()
        if not is_name(folder.name):
            raise BundleError(
                f"{folder} has a name that stores do not take back: rename it to letters, digits, dots and hyphens"
            )
        reader = BundleReader(folder)
        reader.verify()
        place = f"{self._root}/{folder.name}"
        self._told(lambda: self._remove_marker(place))
        if leaves_out(reader, content):
            self._told(lambda: self._files.makedirs(place, exist_ok=True))
            self._told(lambda: self._files.pipe_file(f"{place}/{layout.EXPORTED}", LEFT_OUT))
        for path in files_of(folder, reader, content):
            self._told(partial(self._put, folder / path, f"{place}/{path}"))
        return f"{self.url}/{folder.name}"

    def pull(self, name: str, directory: Path | str) -> Path:
        """Fetch a bundle into `directory` and return its folder; the one that is there already where it is."""
        if not is_name(name):
            raise BundleError(f"{name[:200]!r} is no name of a bundle")
        directory = Path(directory)
        target = directory / name
        if target.exists():
            return target
        try:
            with arriving(target) as draft:
                self._download(f"{self._root}/{name}", draft)
                BundleReader(draft).verify()
        except FileExistsError:
            return target  # Another process was quicker.
        except OSError as error:
            raise BundleError(
                f"{self.url}/{name} cannot be fetched to {directory}: {error.strerror or error}"
            ) from None
        return target

    def of_incident(self, incident: str) -> list[str]:
        """Names of the bundles that were captured for this incident, oldest first."""
        return [name for name in self.names() if self._manifest(name).get("incident") == incident]

    def _manifest(self, name: str) -> dict[str, Any]:
        """Of a bundle up there, as far as it can be read; it is not verified yet."""
        path = f"{self._root}/{name}/{layout.MANIFEST}"
        with self._told(lambda: self._files.open(path, "rb")) as file:
            data = self._told(lambda: file.read(layout.MOST_JSON_BYTES + 1))
        try:
            manifest = plain.decode(data, path)
        except BundleError:
            return {}
        return manifest if isinstance(manifest, dict) else {}

    def remove(self, name: str) -> None:
        """Keys and marker first."""
        place = f"{self._root}/{name}"
        for path in (layout.KEYS, layout.MARKER):
            if self._told(partial(self._files.exists, f"{place}/{path}")):
                self._told(partial(self._files.rm_file, f"{place}/{path}"))
        self._told(lambda: self._files.rm(place, recursive=True))

    def _download(self, place: str, draft: Path) -> None:
        """Marker and manifests first: they tell which files there are, and how large."""
        found = self._told(lambda: self._files.find(place, detail=True))
        if not found:
            raise BundleError(f"there is no bundle at {self.url}/{place.rsplit('/', 1)[-1]}")
        if len(found) > layout.MOST_FILES:
            raise BundleError(f"{place} holds {len(found)} files: not a bundle")
        sizes = {str(remote)[len(place) :].lstrip("/"): int(facts.get("size") or 0) for remote, facts in found.items()}
        for path in sizes:
            if not SAFE_PATH.fullmatch(path):
                raise BundleError(f"{place} holds {path[:200]!r}, which no bundle holds: it was tampered with")

        def take(path: str, size: int) -> None:
            if sizes[path] != size:
                raise BundleError(f"{place}/{path} has {sizes[path]} bytes where {size} are right: it is damaged")
            self._copy_down(f"{place}/{path}", draft / path, size)

        def take_small(path: str) -> None:
            take(path, min(sizes[path], layout.MOST_JSON_BYTES))

        for path in (layout.MARKER, layout.MANIFEST):
            if path in sizes:
                take_small(path)
        reader = BundleReader(draft)
        listed = dict(reader.files)
        if layout.CONTENT_MANIFEST in sizes:
            take_small(layout.CONTENT_MANIFEST)
            listed |= reader.content_files()
        for path in sizes.keys() & listed.keys():
            take(path, listed[path].size)
        for path in sizes.keys() - listed.keys():
            if path in (layout.KEYS, layout.EXPORTED, layout.ATTEST) or RESULT.fullmatch(path):
                take_small(path)
        (draft / layout.RESULTS).mkdir(exist_ok=True)

    def _copy_down(self, remote: str, local: Path, size: int) -> None:
        """Never more than the store told, whatever it sends."""
        local.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with self._told(lambda: self._files.open(remote, "rb")) as source, open(local, "xb") as sink:
            left = size
            while left and (piece := self._told(partial(source.read, min(COPY_BYTES, left)))):
                sink.write(piece)
                left -= len(piece)
            sink.flush()
            os.fsync(sink.fileno())

    def _remove_marker(self, place: str) -> None:
        if self._files.exists(f"{place}/{layout.MARKER}"):
            self._files.rm_file(f"{place}/{layout.MARKER}")

    def _put(self, local: Path, remote: str) -> None:
        """Local file systems want the folder, object stores know none."""
        self._files.makedirs(remote.rsplit("/", 1)[0], exist_ok=True)
        self._files.put_file(str(local), remote)

    def _told(self, act: Callable[[], T]) -> T:
        """Whatever a store's library raises becomes one error that names the store."""
        try:
            return act()
        except BundleError:
            raise
        except Exception as error:
            words = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise BundleError(f"{self.url}: {words[:300]}; check the URL, the rights and the connection") from None


def is_name(name: str) -> bool:
    """Of a bundle in a store."""
    return bool(SAFE_PATH.fullmatch(name)) and "/" not in name


def is_url(text: str) -> bool:
    return "://" in text


def fetch(url: str, directory: Path | str) -> Path:
    """The bundle at this URL, in `directory`."""
    store, _, name = url.rstrip("/").rpartition("/")
    return BundleStore(store).pull(name, directory)


def _file_system(url: str) -> tuple[Any, str]:
    import fsspec

    files, root = fsspec.core.url_to_fs(url)
    # Listings are small, and one that is remembered hides what another process wrote.
    files.use_listings_cache = False
    files.invalidate_cache()
    return files, str(root).rstrip("/")
