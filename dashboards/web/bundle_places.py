"""Where bundles lie. A path in the catalog was told by an engine: it is followed only inside the folders that the
operator named."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from checkengine.replay.bundle import BundleError, BundleReader
from checkengine.replay.catalog.models import BundleRow

NAME = re.compile(r"[0-9A-Za-z][0-9A-Za-z._@+:-]{0,254}")


@dataclass(frozen=True, slots=True)
class BundlePlaces:
    roots: tuple[Path, ...]

    def find(self, row: BundleRow) -> Path | None:
        """The bundle's folder; None where it is not on this machine, or the name is not one of a bundle."""
        if NAME.fullmatch(row.id) is None or row.erased is not None:
            return None
        for root in self.roots:
            base = root.resolve()
            path = (base / row.id).resolve()
            if path.parent == base and path.is_dir():
                return path
        return None

    def open(self, row: BundleRow, purpose: str) -> BundleReader:
        """BundleError where it is not here, or no whole bundle."""
        path = self.find(row)
        if path is None:
            told = "removed by retention" if row.erased is not None else "not on this machine"
            raise BundleError(f"the bundle {row.id} is {told}")
        return BundleReader(path, purpose)


def folder_size(path: Path) -> int:
    """Bytes of its files; links are not followed."""
    return sum(file.lstat().st_size for file in path.rglob("*") if file.is_file() and not file.is_symlink())


def places(roots: Sequence[Path]) -> BundlePlaces:
    return BundlePlaces(tuple(dict.fromkeys(roots)))
