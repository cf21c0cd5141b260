"""Read a bundle without trust in it: sizes before bytes, digests before meaning, one type of error."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar, cast

import numpy as np
import safetensors.numpy
import safetensors.torch
import torch
from numpy.typing import NDArray

from checkengine.guards.finding import Finding, Severity
from checkengine.guards.step import SequenceStart
from checkengine.replay.bundle import layout, plain
from checkengine.replay.bundle.access import AccessLog
from checkengine.replay.bundle.check import check_blocks, check_header, check_image, check_undo, check_window
from checkengine.replay.bundle.columns import Cutter
from checkengine.replay.bundle.encryption import DataKey, unwrap
from checkengine.replay.bundle.expiry import refuse_expired
from checkengine.replay.bundle.files import Entry, read_inside, read_verified, replace_durably
from checkengine.replay.bundle.identity import PublicKey, identities
from checkengine.replay.bundle.layout import BundleError
from checkengine.replay.capture import Capture
from checkengine.replay.levels import LEVELS, Level
from checkengine.replay.memory import MemoryImage, UndoEntry
from checkengine.replay.recorded import RecordedWindow

T = TypeVar("T")
MALFORMED = (ValueError, KeyError, TypeError, IndexError, AttributeError, OverflowError, RuntimeError)


class BundleReader:
    """An opened bundle: marker and manifest are read and agree. BundleError where they do not.

    `level` is "full", "core" (written without content), "erased" (its content or its key was removed since), or
    "exported without content" (the bundle that this one is a copy of may still have it).
    `purpose` stands in the access log beside each opening of the content.
    """

    def __init__(self, path: Path | str, purpose: str = "read") -> None:
        self.path = Path(path)
        self.purpose = purpose
        self._key: DataKey | None = None
        marker = self._marker()
        self.manifest = self._manifest(marker)
        self.identifier = str(self.manifest.get("identifier", ""))
        self.files = self._entries(self.manifest, layout.MANIFEST)
        content = self.manifest.get("content")
        self._content = None if content is None else Entry.from_json(content, layout.CONTENT_MANIFEST)
        self.level = self._level()

    @property
    def findings(self) -> tuple[Finding, ...]:
        """The triggers; sequence names are keyed hashes."""
        return self._guard(lambda: tuple(finding_of(value) for value in self.manifest["findings"]), layout.MANIFEST)

    def json(self, path: str) -> Any:
        """A verified JSON file of the core, for example `env.json`."""
        return plain.decode(self._read(path), str(self.path / path))

    def verify(self) -> None:
        """Read everything that the manifests name; BundleError names the first file that is not as written."""
        for path in self.files:
            self._read(path)
        if self.level == "full":
            for path, entry in self.content_files().items():
                read_verified(self.path, path, entry)

    def window(self, *, content: bool = True) -> RecordedWindow:
        """The records; without `content`, or where it cannot be read here: token ids 0, keyed prints and names."""
        self._refuse_call()
        ring = self._arrays(layout.RING, self._read(layout.RING))
        opened = content and self.opens()
        if opened:
            tokens = self._arrays(layout.TOKENS, self._read_content(layout.TOKENS))
        else:
            tokens = self._guard(lambda: blank_tokens(ring), layout.RING)
        cutter = Cutter(ring, tokens)
        return self._guard(lambda: self._assemble(cutter, opened), layout.RING)

    def finding_names(self) -> tuple[str, ...]:
        """Sequences of `findings` by name: content."""
        self._open_content()
        return self._guard(lambda: tuple(str(name) for name in self._sequences()["findings"]), layout.SEQUENCES)

    def opens(self) -> bool:
        """Whether the content can be read here and now."""
        try:
            self._open_content()
        except BundleError:
            return False
        return True

    def capture(self) -> Capture:
        """Everything, bit for bit as it was captured. BundleError where the bundle holds no content, or none that may
        be read here."""
        self._refuse_call()
        if self.level != "full":
            raise BundleError(f"{self.path} holds no content ({self.level}), so it can be shown and verified but not "
                              'replayed; capture with [capture] content = "full" to replay')  # fmt: skip
        self._open_content()
        window = self.window()
        ring = self._arrays(layout.RING, self._read(layout.RING))
        cutter = Cutter(ring, self._arrays(layout.TOKENS, self._read_content(layout.TOKENS)))
        image = self._guard(self._image, layout.KV)
        self._guard(lambda: check_window(window, image.block_size), layout.RING)
        names = self.finding_names()
        return self._guard(
            lambda: Capture(
                window=window,
                memory=image,
                involved=frozenset(ring["involved"].tolist()),
                histories=cutter.histories(),
                undo=self._undo(image),
                environment=self.json(layout.ENVIRONMENT),
                findings=tuple(finding_of(v, name) for v, name in zip(self.manifest["findings"], names, strict=True)),
                incident=self.manifest["incident"],
                identifier=self.identifier,
                time=float(self.manifest["time"]),
                level=level_of(self.manifest),
            ),
            layout.MANIFEST,
        )

    def _refuse_call(self) -> None:
        if layout.CALL in self.files:
            raise BundleError(f"{self.path} holds one op's call and no window: judge it with `checkengine replay`")

    def call_tensors(self) -> dict[str, torch.Tensor]:
        """Recorded tensors of a call bundle. BundleError where its content may not be read here."""
        self._open_content()
        return self._tensors(layout.CALL_TENSORS)

    def _marker(self) -> dict[str, Any]:
        try:
            data = read_inside(self.path, layout.MARKER, most=layout.MOST_MARKER_BYTES)
        except FileNotFoundError:
            if not self.path.exists():
                raise BundleError(f"there is nothing at {self.path}: give the path of a bundle's folder") from None
            raise BundleError(f"{self.path} is no whole bundle: its marker BUNDLE is missing, since the writer did not "
                              "finish or this is another folder; use another bundle") from None  # fmt: skip
        except NotADirectoryError:
            raise BundleError(f"{self.path} is no folder: give the path of a bundle's folder") from None
        try:
            marker = plain.decode(data, layout.MARKER)
        except BundleError:
            marker = None
        if not isinstance(marker, dict) or marker.get("magic") != layout.MAGIC or marker.get("ok") is not True:
            raise BundleError(f"{self.path} is no whole bundle: its marker BUNDLE is damaged or half written; "
                              "use another bundle")  # fmt: skip
        self._refuse_version(marker.get("version"))
        return marker

    def _refuse_version(self, version: Any) -> None:
        if not isinstance(version, list) or [type(number) for number in version] != [int, int]:
            raise BundleError(f"{self.path / layout.MARKER} names no version: the bundle is damaged")
        if version[0] != layout.VERSION[0]:
            raise BundleError(f"{self.path} has format {version[0]}.{version[1]}, and this checkengine reads "
                              f"{layout.VERSION[0]}.x: use the checkengine that wrote it")  # fmt: skip

    def _manifest(self, marker: dict[str, Any]) -> dict[str, Any]:
        entry = Entry.from_json(marker.get("manifest"), layout.MARKER)
        if entry.size > layout.MOST_JSON_BYTES:
            raise BundleError(f"{self.path / layout.MANIFEST} is too large: not a bundle of this format")
        manifest = plain.decode(read_verified(self.path, layout.MANIFEST, entry), str(self.path / layout.MANIFEST))
        if not isinstance(manifest, dict):
            raise BundleError(f"{self.path / layout.MANIFEST} is no object: the bundle is damaged")
        return manifest

    def _entries(self, manifest: Any, where: str) -> dict[str, Entry]:
        files = manifest.get("files") if isinstance(manifest, dict) else None
        if not isinstance(files, dict) or len(files) > layout.MOST_FILES:
            raise BundleError(f"{self.path / where} lists no files: the bundle is damaged")
        return {path: Entry.from_json(value, f"{self.path / where}: {path!r}") for path, value in files.items()}

    def _level(self) -> str:
        if self._content is None:
            return "core"
        whole = (self.path / layout.CONTENT).exists() and (self.path / layout.KEYS).exists()
        if whole:
            return "full"
        return layout.WITHOUT_CONTENT if (self.path / layout.EXPORTED).exists() else "erased"

    @property
    def encrypted(self) -> bool:
        """Format 1.0 wrote content in the clear, and keys.json into the manifest."""
        return layout.KEYS not in self.files

    def share(self, recipient: PublicKey) -> None:
        """Let one more read the content; durable when this returns. BundleError where it cannot be read here."""
        self._open_content()
        if self._key is None:
            raise BundleError(f"{self.path} is of format 1.0, whose content is not encrypted")
        AccessLog.of_this_deployment().add("share", self.path.name, recipient.id)
        data = read_inside(self.path, layout.KEYS, most=layout.MOST_JSON_BYTES)
        keys = plain.decode(data, str(self.path / layout.KEYS))
        try:
            replace_durably(self.path / layout.KEYS, plain.encode(self._key.shared(keys, recipient)))
        except OSError as error:
            raise BundleError(f"{self.path} cannot be changed: {error.strerror}; copy it to a writable place") from None

    def _open_content(self) -> None:
        """Unwrap the key, once, and log it. BundleError where the content may not be read here."""
        if self._key is not None:
            return
        if self.level != "full":
            raise BundleError(f"{self.path} holds no content ({self.level})")
        refuse_expired(self.path, self.manifest)
        if not self.encrypted:
            return
        data = read_inside(self.path, layout.KEYS, most=layout.MOST_JSON_BYTES)
        where = str(self.path / layout.KEYS)
        key = unwrap(plain.decode(data, where), self.identifier, identities(), where)
        AccessLog.of_this_deployment().add("open", self.path.name, self.purpose)
        self._key = key

    def _read(self, path: str) -> bytes:
        if path not in self.files:
            raise BundleError(f"{self.path / layout.MANIFEST} does not list {path}: the bundle is damaged")
        return read_verified(self.path, path, self.files[path])

    def content_files(self) -> dict[str, Entry]:
        """What the content's own manifest lists; readable without a key."""
        if self._content is None:
            raise BundleError(f"{self.path} holds no content")
        data = read_verified(self.path, layout.CONTENT_MANIFEST, self._content)
        return self._entries(plain.decode(data, str(self.path / layout.CONTENT_MANIFEST)), layout.CONTENT_MANIFEST)

    def _read_content(self, path: str) -> bytes:
        files = self.content_files()
        if path not in files:
            raise BundleError(f"{self.path / layout.CONTENT_MANIFEST} does not list {path}: the bundle is damaged")
        data = read_verified(self.path, path, files[path])
        return data if self._key is None else self._key.decrypt(data, path)

    def _arrays(self, path: str, data: bytes) -> dict[str, NDArray[Any]]:
        check_header(data, str(self.path / path))
        return self._guard(lambda: safetensors.numpy.load(data), path)

    def _tensors(self, path: str) -> dict[str, torch.Tensor]:
        data = self._read_content(path)
        check_header(data, str(self.path / path))
        return self._guard(lambda: safetensors.torch.load(data), path)

    def _sequences(self) -> Any:
        return plain.decode(self._read_content(layout.SEQUENCES), str(self.path / layout.SEQUENCES))

    def _assemble(self, cutter: Cutter, opened: bool) -> RecordedWindow:
        step = self.json(layout.STEP)
        told = self._sequences()["sequences"] if opened else step["sequences"]
        prompts = {
            handle: tuple(prompt.tolist()) if opened else cast(tuple[int, ...], Blank(len(prompt)))
            for handle, prompt in cutter.prompts().items()
        }
        sampling = self.json(layout.SAMPLING)
        starts = {
            handle: start_of(handle, prompt, told[str(handle)], sampling[str(handle)])
            for handle, prompt in prompts.items()
        }
        window = cutter.window(starts, step["kernels"], int(step["dropped"]))
        check_blocks(window)
        return window

    def _image(self) -> MemoryImage:
        pages = self.json(layout.PAGES)
        image = MemoryImage(
            block_size=pages["block_size"],
            blocks=np.array(pages["blocks"], np.int32),
            tensors=self._tensors(layout.KV),
            layers=pages["layers"],
        )
        check_image(image)
        return image

    def _undo(self, image: MemoryImage) -> list[UndoEntry]:
        tensors = self._tensors(layout.UNDO)
        counts, slots = tensors["counts"].tolist(), tensors["slots"].numpy()
        if min(counts, default=0) < 0 or sum(counts) != len(slots):
            raise ValueError("the undo counts do not fit its slots")
        entries, end = [], 0
        for step, count in zip(tensors["steps"].tolist(), counts, strict=True):
            begin, end = end, end + count
            held = {name: tensors[f"undo.{name}"][begin:end] for name in image.tensors}
            check_undo(held, count, image)
            entries.append(UndoEntry(step, slots[begin:end], held))
        return entries

    def _guard(self, read: Callable[[], T], where: str) -> T:
        try:
            return read()
        except BundleError:
            raise
        except (*MALFORMED, safetensors.SafetensorError) as error:
            raise BundleError(f"{self.path / where} is not as the format says ({type(error).__name__}: {error}): "
                              "the bundle is damaged; fetch it again") from None  # fmt: skip


def level_of(manifest: dict[str, Any]) -> Level:
    """Format 1.0 knew the whole only."""
    level = manifest.get("capture_level", "L3")
    if level not in LEVELS:
        raise ValueError(f"a capture of level {level!r}")
    return cast(Level, level)


def blank_tokens(ring: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    def blank(name: str) -> NDArray[np.int32]:
        # However many tokens the counts tell of, they take no memory.
        return np.broadcast_to(np.int32(0), (int(ring[name].sum()),))

    return {
        "token_ids": blank("token_ids_counts"),
        "sampled": blank("sampled_counts"),
        "fingerprints": ring["fingerprints_keyed"],
        "prompts": blank("prompt_counts"),
        "histories": blank("histories_counts"),
    }


class Blank(Sequence[int]):
    """As many zeros as there were tokens."""

    def __init__(self, length: int) -> None:
        self._length = length

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: Any) -> Any:
        places = range(self._length)[index]
        return Blank(len(places)) if isinstance(places, range) else 0


def start_of(handle: int, prompt: tuple[int, ...], told: dict[str, Any], sampling: dict[str, Any]) -> SequenceStart:
    return SequenceStart(
        handle,
        str(told["name"]),
        prompt,
        told.get("sampling", sampling),
        tuple(told.get("stop_tokens", ())),
        bool(told.get("ignores_stop", False)),
        told.get("language"),
    )


def finding_of(value: dict[str, Any], sequence: str | None = None) -> Finding:
    return Finding(
        kind=str(value["kind"]),
        sequence=str(value["sequence"]) if sequence is None else str(sequence),
        severity=Severity(value["severity"]),
        step=int(value["step"]),
        token=int(value["token"]),
        guard=str(value["guard"]),
        version=int(value["version"]),
        evidence=MappingProxyType(dict(value["evidence"])),
    )
