"""Hostile bundles by the million: whatever was done to one, its reader gives an error of ours or reads it.

The bundle lies in memory, so that a case costs a reading and no disk; a share of the cases goes through exported files.
Content is in the clear in half of the cases: then changes reach what a stranger could have encrypted for us.
"""

from __future__ import annotations

import contextlib
import copy
import io
import json
import random
import resource
import tempfile
import tracemalloc
import zipfile
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import safetensors.numpy

from checkengine.benchmarks.bundle_samples import small_capture
from checkengine.replay.bundle import (
    BundleError,
    BundleReader,
    DeploymentKey,
    Identity,
    import_bundle,
    layout,
    write_bundle,
)
from checkengine.replay.bundle import files as files_module
from checkengine.replay.bundle import read as read_module
from checkengine.replay.bundle.files import SAFE_PATH, Entry
from checkengine.replay.capture import Capture

Files = dict[str, bytes]
FEW_BYTES = 64 << 20
"""What one case may take of address space beyond what the process had: a count from a file used as a size shows."""
ARCHIVES = 0.02
"""Share of the cases that go through an exported file."""
HOSTILE: tuple[Any, ...] = (
    *(None, True, -1, 0, 2**31, 2**63, 2**70, 1e308, 0.5, "", "\u0000", "../x", "/etc/passwd", "\ud800", [], {}, [[]]),
    *({"$f64": "zz"}, {"$f64": "7ff0000000000000"}, {"$tuple": [1]}, {"$tuple": []}, "9" * 5000, [0] * 3000),
)
SAFETENSORS = (layout.RING, layout.TOKENS, layout.KV, layout.UNDO)


@dataclass(slots=True)
class Fuzzed:
    """What became of the cases."""

    cases: int = 0
    read: int = 0
    refused: int = 0
    untyped: list[str] = field(default_factory=list)
    """Anything but BundleError: type, message, and the seed of the case."""
    kinds: Counter[str] = field(default_factory=Counter)
    largest_ratio: float = 0.0
    """Of memory that a case took at its peak to what the bundle declares."""


class MemoryReader(BundleReader):
    """Reads from a mapping; `clear` content is not encrypted."""

    def __init__(self, clear: bool, files: Mapping[str, bytes]) -> None:
        self.clear, self.held = clear, files
        super().__init__(Path("fuzzed"))

    def _level(self) -> str:
        if self._content is None:
            return "core"
        return "full" if layout.CONTENT_MANIFEST in self.held and layout.KEYS in self.held else "erased"

    @property
    def encrypted(self) -> bool:
        return not self.clear


class Samples:
    """A bundle as files in memory, encrypted and in the clear."""

    def __init__(self, capture: Capture | None = None) -> None:
        self.identity = Identity(bytes(range(32)))
        with tempfile.TemporaryDirectory() as folder, self.known():
            path = write_bundle(
                capture or small_capture(),
                folder,
                content="full",
                key=DeploymentKey(bytes(32)),
                recipients=[self.identity.public],
            )
            self.encrypted = {
                file.relative_to(path).as_posix(): file.read_bytes() for file in path.rglob("*") if file.is_file()
            }
            reader = BundleReader(path)
            reader._open_content()
            content = {name: reader._read_content(name) for name in layout.CONTENT_FILES}
        self.clear = signed(self.encrypted | content, set(content))

    @contextlib.contextmanager
    def known(self) -> Iterator[None]:
        """The bundle is for an identity of this run, and no reading is logged."""
        with (
            mock.patch.object(read_module, "identities", return_value=[self.identity]),
            mock.patch.object(read_module, "AccessLog", mock.MagicMock()),
        ):
            yield


def signed(files: Files, changed: set[str]) -> Files:
    """Sizes and digests in manifests and marker made right again for what was changed; a manifest that can no longer
    be edited stays as it is."""
    made = dict(files)
    try:
        edited = json.loads(made[layout.CONTENT_MANIFEST])
        for name in changed & edited["files"].keys():
            edited["files"][name] = Entry.of(made[name]).to_json()
        if changed & edited["files"].keys():
            made[layout.CONTENT_MANIFEST] = json.dumps(edited).encode()
        whole = json.loads(made[layout.MANIFEST])
        for name in changed & whole["files"].keys():
            whole["files"][name] = Entry.of(made[name]).to_json()
        whole["content"] = Entry.of(made[layout.CONTENT_MANIFEST]).to_json()
        made[layout.MANIFEST] = json.dumps(whole).encode()
        marker = json.loads(made[layout.MARKER])
        marker["manifest"] = Entry.of(made[layout.MANIFEST]).to_json()
        made[layout.MARKER] = json.dumps(marker).encode()
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        pass
    return made


def resigned_manifest(files: Files) -> Files:
    """The marker made right for a changed manifest."""
    made = dict(files)
    with contextlib.suppress(ValueError, KeyError, TypeError, AttributeError, RecursionError):
        marker = json.loads(made[layout.MARKER])
        marker["manifest"] = Entry.of(made[layout.MANIFEST]).to_json()
        made[layout.MARKER] = json.dumps(marker).encode()
    return made


def mutated(files: Files, chance: random.Random) -> tuple[str, Files]:
    """One kind of attack, and the files after it."""
    kind = chance.choice(("bytes", "json", "json", "columns", "columns", "header", "files", "keys"))
    match kind:
        case "bytes":
            name = chance.choice(sorted(files))
            changed = files | {name: scrambled(files[name], chance)}
        case "json":
            name = chance.choice([name for name in files if name.endswith(".json")] + [layout.MARKER])
            changed = files | {name: hostile_json(files[name], chance)}
        case "keys":
            name = layout.KEYS
            changed = files | {name: hostile_json(files[name], chance)}
        case "columns":
            name = chance.choice(SAFETENSORS)
            changed = files | {name: hostile_columns(files[name], chance)}
        case "header":
            name = chance.choice(SAFETENSORS)
            changed = files | {name: hostile_header(files[name], chance)}
        case _:
            name = chance.choice(sorted(files))
            changed = {other: data for other, data in files.items() if other != name}
            if chance.random() < 0.5:
                changed |= {name: files[chance.choice(sorted(files))]}
    if chance.random() < 0.15:
        return kind, changed
    again = resigned_manifest(changed) if name == layout.MANIFEST else changed
    return kind, again if name in (layout.MARKER, layout.MANIFEST) else signed(changed, {name} & changed.keys())


def scrambled(data: bytes, chance: random.Random) -> bytes:
    changed = bytearray(data)
    for _ in range(chance.choice([1, 1, 4])):
        kind, at = chance.randrange(5), chance.randrange(len(changed) + 1)
        if kind == 0 and at < len(changed):
            changed[at] ^= 1 << chance.randrange(8)
        elif kind == 1:
            del changed[at : at + chance.randrange(1, 40)]
        elif kind == 2:
            changed[at:at] = chance.randbytes(chance.randrange(1, 40))
        elif kind == 3:
            del changed[at:]
        else:
            changed[at : at + 8] = chance.choice([b"\xff" * 8, b"\x00" * 8, b"\x7f" * 8])
    return bytes(changed)


def hostile_json(data: bytes, chance: random.Random) -> bytes:
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return data
    for _ in range(chance.choice([1, 1, 3])):
        found = places(value)
        if not found:
            break
        target, key = chance.choice(found)
        if chance.random() < 0.2:
            del target[key]
        else:
            target[key] = copy.deepcopy(chance.choice(HOSTILE))
    if chance.random() < 0.05:
        return b"[" * chance.choice([33, 3000, 100_000])
    return json.dumps(value).encode("utf-8", "surrogatepass")


def places(value: Any) -> list[tuple[Any, Any]]:
    found: list[tuple[Any, Any]] = []
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in inner:
        found.append((value, key))
        found += places(item)
    return found


def hostile_columns(data: bytes, chance: random.Random) -> bytes:
    try:
        columns = {key: column.copy() for key, column in safetensors.numpy.load(data).items()}
    except Exception:  # Encrypted: bytes are all that can be changed.
        return scrambled(data, chance)
    key = chance.choice(sorted(columns))
    column, kind = columns[key], chance.random()
    if column.size and kind < 0.7:
        whole = column.dtype.kind in "iu"
        limits = np.iinfo(column.dtype) if whole else None
        values = [limits.min, limits.max, limits.max // 2, 0, 1, 100] if limits else [np.nan, np.inf, -1e30]
        for _ in range(chance.choice([1, 1, column.size])):
            column.reshape(-1)[chance.randrange(column.size)] = chance.choice(values)
    elif kind < 0.8:
        columns.pop(key)
    elif kind < 0.9:
        columns[key] = column.reshape(-1)[: chance.randrange(column.size + 1)].copy()
    else:
        columns[key] = np.ascontiguousarray(column.astype(chance.choice([np.int8, np.float64, np.uint64]))[None])
    saved: bytes = safetensors.numpy.save(columns)
    return saved


def hostile_header(data: bytes, chance: random.Random) -> bytes:
    """The header itself: shapes, types, offsets, its length."""
    size = int.from_bytes(data[:8], "little")
    if not 0 < size <= len(data) - 8:
        return scrambled(data, chance)
    header = hostile_json(data[8 : 8 + size], chance)
    told = chance.choice([len(header), len(header), len(header), 0, 2**63, 2**32])
    return told.to_bytes(8, "little") + header + data[8 + size :]


def use(reader: BundleReader, shut: bool = True) -> None:
    """All that a reader does before an engine is there; `shut`: also without opening the content."""
    reader.verify()
    _ = reader.findings
    if shut:
        reader.window(content=False)
    capture = reader.capture()
    for step in capture.replay_steps(capture.window.first_step if len(capture.window) else None):
        capture.memory_at(step.record.step)
        break


def read_in_memory(files: Files, clear: bool, shut: bool = True) -> None:
    def inside(root: Path, path: str, *, most: int) -> bytes:
        if not SAFE_PATH.fullmatch(path):
            raise BundleError(f"{path!r} lies outside a bundle")
        if path not in files:
            raise FileNotFoundError(path)
        if len(files[path]) > most:
            raise BundleError(f"{path} is too large")
        return files[path]

    with (
        mock.patch.object(read_module, "read_inside", inside),
        mock.patch.object(files_module, "read_inside", inside),
    ):
        use(MemoryReader(clear, files), shut)


def read_archive(file: Path, chance: random.Random) -> None:
    """As an exported file, hostile as a whole too."""
    target = file.parent / "imported"
    with mock.patch("os.fsync", return_value=None):
        path = import_bundle(file, target, f"case-{chance.getrandbits(64):x}")
    use(BundleReader(path))


def hostile_archive(files: Files, chance: random.Random) -> bytes:
    data = io.BytesIO()
    method = chance.choice([zipfile.ZIP_STORED] * 6 + [zipfile.ZIP_DEFLATED])
    with zipfile.ZipFile(data, "w", method) as archive:
        for name, content in files.items():
            entry = zipfile.ZipInfo(chance.choice(["../" + name, "/" + name]) if chance.random() < 0.01 else name)
            entry.compress_type = method
            entry.external_attr = (0o120777 if chance.random() < 0.01 else 0o100600) << 16
            archive.writestr(entry, content)
    return scrambled(data.getvalue(), chance) if chance.random() < 0.7 else data.getvalue()


def fuzz(cases: int, seed: int = 0, samples: Samples | None = None, traced: float = 0.0) -> Fuzzed:
    """Run so many cases, and measure the memory of a share of them, which makes these slow. Untyped errors are kept
    with the seed that makes them again."""
    told, samples = Fuzzed(), samples or Samples()
    declared = sum(len(data) for data in samples.clear.values())
    with samples.known(), limited_address_space(), tempfile.TemporaryDirectory() as folder:
        for number in range(cases):
            one_case(seed * 1_000_000_007 + number, samples, told, declared, Path(folder), traced)
    return told


def one_case(seed: int, samples: Samples, told: Fuzzed, declared: int, folder: Path, share: float) -> None:
    chance = random.Random(seed)
    clear = chance.random() < 0.5
    kind, files = mutated(samples.clear if clear else samples.encrypted, chance)
    archived, traced = chance.random() < ARCHIVES, chance.random() < share
    told.cases += 1
    told.kinds["archive" if archived else kind] += 1
    exported = folder / "case.checkengine"
    if archived:
        exported.write_bytes(hostile_archive(files, chance))
    if traced:
        tracemalloc.start()
    try:
        if archived:
            read_archive(exported, chance)
        else:
            read_in_memory(files, clear, shut=chance.random() < 0.25)
        told.read += 1
    except BundleError as error:
        told.refused += 1
        if "\n" in str(error):
            told.untyped.append(f"an error of several lines, seed {seed}")
    except Exception as error:
        told.untyped.append(f"{type(error).__name__}: {str(error)[:200]}, {kind}, seed {seed}")
    if traced:
        told.largest_ratio = max(told.largest_ratio, tracemalloc.get_traced_memory()[1] / declared)
        tracemalloc.stop()


@contextlib.contextmanager
def limited_address_space() -> Iterator[None]:
    """Of this process: a case that asks for much more than it has fails."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + FEW_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (most, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def main() -> None:
    """`python -m checkengine.benchmarks.bundle_fuzz CASES [SEED]`: a line every 10,000 cases, as the log in docs."""
    import sys
    import time

    cases, seed = int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 0
    samples, began, all_told = Samples(), time.monotonic(), Fuzzed()
    for part in range(-(-cases // 10_000)):
        told = fuzz(min(10_000, cases - part * 10_000), seed + part, samples)
        all_told.cases, all_told.read = all_told.cases + told.cases, all_told.read + told.read
        all_told.untyped += told.untyped
        minutes = (time.monotonic() - began) / 60
        print(
            f"{all_told.cases} cases, {all_told.read} read, {len(all_told.untyped)} untyped, {minutes:.1f} min",
            flush=True,
        )
        for line in told.untyped[:5]:
            print(f"  {line}", flush=True)


if __name__ == "__main__":
    main()
