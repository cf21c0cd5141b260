"""One bundle as one file: an uncompressed ZIP64 of the same tree (KV bytes do not compress, and encrypted ones never).

What comes from a stranger is checked before a byte is written: sizes, counts, names, and that no entry is compressed, a
link or twice there. Extraction goes into a draft that is renamed once the bundle in it verifies.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import stat
import zipfile
from collections.abc import Iterable
from pathlib import Path

from checkengine.replay.bundle import layout, plain
from checkengine.replay.bundle.draft import arriving
from checkengine.replay.bundle.files import SAFE_PATH, open_inside
from checkengine.replay.bundle.layout import BundleError
from checkengine.replay.bundle.read import BundleReader

SUFFIX = ".checkengine"
COPY_BYTES = 1 << 20
LEFT_OUT = plain.encode({"content": False})
RESULT = re.compile(rf"{layout.RESULTS}/[0-9]+\.json")
EPOCH = (1980, 1, 1, 0, 0, 0)


def export_bundle(bundle: Path | str, target: Path | str, *, content: bool = False) -> Path:
    """Write the bundle as one file and return its path. Content, and the keys to it, go along only where asked for: the
    receiver can read it only with an identity for which it was encrypted. BundleError where that is impossible."""
    folder = Path(bundle)
    reader = BundleReader(folder, "export")
    reader.verify()
    if content and reader.level != "full":
        raise BundleError(f"{folder} holds no content ({reader.level}): export it without --content")
    target = Path(target)
    draft = target.with_name(f".{target.name}-{secrets.token_hex(4)}")
    try:
        with zipfile.ZipFile(draft, "x", zipfile.ZIP_STORED, allowZip64=True) as archive:
            if leaves_out(reader, content):
                archive.writestr(entry_of(layout.EXPORTED), LEFT_OUT)
            for path in files_of(folder, reader, content):
                add(archive, folder, path)
        with open(draft, "rb+") as file:
            os.fsync(file.fileno())
        os.link(draft, target)
    except FileExistsError:
        raise BundleError(f"{target} is there already: choose another name or remove it") from None
    except OSError as error:
        raise BundleError(f"{folder} cannot be exported to {target}: {error.strerror or error}") from None
    finally:
        draft.unlink(missing_ok=True)
    return target


def leaves_out(reader: BundleReader, content: bool) -> bool:
    """Whether the copy lacks what was never erased: whoever receives it is told so."""
    return reader.level == layout.WITHOUT_CONTENT or (reader.level == "full" and not content)


def files_of(folder: Path, reader: BundleReader, content: bool) -> list[str]:
    """What belongs to the bundle and nothing that somebody laid beside it; marker last, as it was written."""
    paths = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if is_plain(path))
    chosen = {*reader.files, layout.MANIFEST, layout.ATTEST}
    if content:
        chosen |= {layout.KEYS, layout.CONTENT_MANIFEST, *reader.content_files()}
    return [*(path for path in paths if path in chosen or RESULT.fullmatch(path)), layout.MARKER]


def is_plain(path: Path) -> bool:
    """A link leads out of the bundle, to what its owner may read and whoever made the link may not."""
    return stat.S_ISREG(path.lstat().st_mode)


def entry_of(path: str) -> zipfile.ZipInfo:
    entry = zipfile.ZipInfo(path, EPOCH)
    entry.external_attr = (stat.S_IFREG | 0o600) << 16
    return entry


def add(archive: zipfile.ZipFile, folder: Path, path: str) -> None:
    entry = entry_of(path)
    with os.fdopen(open_inside(folder, path), "rb") as source:
        entry.file_size = os.fstat(source.fileno()).st_size
        with archive.open(entry, "w", force_zip64=True) as sink:
            shutil.copyfileobj(source, sink, COPY_BYTES)


def import_bundle(file: Path | str, directory: Path | str, name: str | None = None) -> Path:
    """Unpack into `directory` and return the bundle's folder. BundleError where it is no bundle, or one is there."""
    file, directory = Path(file), Path(directory)
    target = directory / usable_name(file.name.removesuffix(SUFFIX) if name is None else name)
    if target.exists():
        raise BundleError(f"{target} is there already: give --name")
    try:
        with arriving(target) as draft:
            with zipfile.ZipFile(file) as archive:
                unpack(archive, checked(archive.infolist(), file.stat().st_size, file), draft, file)
            (draft / layout.RESULTS).mkdir(exist_ok=True)
            BundleReader(draft, "import").verify()
    except FileExistsError:
        raise BundleError(f"{target} is there already: give --name") from None
    except (zipfile.BadZipFile, zipfile.LargeZipFile, NotImplementedError, RuntimeError, EOFError, ValueError) as error:
        raise BundleError(f"{file} is no exported bundle ({error}): fetch it again") from None
    except OSError as error:
        raise BundleError(f"{file} cannot be imported into {directory}: {error.strerror or error}") from None
    return target


def usable_name(name: str) -> str:
    """Of a folder in the directory of bundles; those that begin with a dot are drafts."""
    if not name or name.startswith(".") or "/" in name or "\0" in name:
        raise BundleError(f"{name!r} is no name for a bundle's folder: give --name, without a slash or a dot in front")
    return name


def checked(entries: Iterable[zipfile.ZipInfo], size: int, file: Path) -> list[zipfile.ZipInfo]:
    found = list(entries)
    names = [entry.filename for entry in found]
    if len(found) > layout.MOST_FILES or len(set(names)) != len(names):
        raise BundleError(f"{file} holds {len(found)} entries, or one of them twice: not a bundle")
    if sum(entry.file_size for entry in found) > size:
        raise BundleError(f"{file} tells of more bytes than it has: it was tampered with")
    for entry in found:
        refuse(entry, file)
    return found


def refuse(entry: zipfile.ZipInfo, file: Path) -> None:
    kind = stat.S_IFMT(entry.external_attr >> 16)
    plain_file = entry.compress_type == zipfile.ZIP_STORED and not entry.flag_bits & 1 and kind in (0, stat.S_IFREG)
    if not plain_file or not SAFE_PATH.fullmatch(entry.filename) or entry.file_size > layout.MOST_FILE_BYTES:
        raise BundleError(f"{file} holds {entry.filename[:200]!r}, which no bundle holds: it was tampered with")


def unpack(archive: zipfile.ZipFile, entries: list[zipfile.ZipInfo], draft: Path, file: Path) -> None:
    for entry in entries:
        if entry.filename == layout.HOLD:
            continue  # Whether it is kept here is decided here.
        path = draft / entry.filename
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        with os.fdopen(descriptor, "wb") as sink, archive.open(entry) as source:
            shutil.copyfileobj(source, sink, COPY_BYTES)
            sink.flush()
            os.fsync(sink.fileno())
