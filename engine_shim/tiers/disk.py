"""Blocks on disk, one encrypted file each, under names that tell nothing of their content.

A file appears whole or not at all (written beside, then renamed). Should it be torn all the same, by a crash of the
machine or of the disk, it does not decrypt (AES-256-GCM): a miss, never an answer. Several engines of one model may
share a directory: what one writes the others find.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import time
from pathlib import Path

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from checkengine.detectors.seal import SealError
from checkengine.engine_shim.tiers.payload import Payload
from checkengine.replay.bundle import DeploymentKey

logger = logging.getLogger("checkengine.tiers")

SUFFIX = ".kv"
DRAFT = ".part"
_NONCE = 12
MAXIMUM_FILE = 1 << 30


class DiskTier:
    """No call raises for what the disk does: a read that fails is a miss, a write that fails is counted."""

    def __init__(
        self, directory: Path, budget: int, key: DeploymentKey, namespace: str, keep_hours: float = 24
    ) -> None:
        """`namespace` names the model's weights and the blocks' form: another one's blocks are not found."""
        self.budget = budget
        self.torn = self.failed = 0
        self._told = False
        self._directory = directory / key.digest("kv namespace", namespace)
        self._key = key
        self._cipher = AESGCM(bytes.fromhex(key.digest("kv cipher", "0") + key.digest("kv cipher", "1")))
        self._keep_seconds = keep_hours * 3600
        self.used = 0
        try:
            self._directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            self._tell(error)
        self.sweep()

    def __contains__(self, identity: bytes) -> bool:
        return self._path(identity).exists()

    def get(self, identity: bytes) -> Payload | None:
        """None where it is not there, was torn, or is of another key; what is torn is deleted."""
        path = self._path(identity)
        try:
            if path.stat().st_size > MAXIMUM_FILE:
                return None
            data = path.read_bytes()
            os.utime(path)
        except OSError:
            return None
        try:
            return Payload.from_bytes(self._cipher.decrypt(data[:_NONCE], data[_NONCE:], path.name.encode()))
        except (InvalidTag, SealError, ValueError):
            self.torn += 1
            self._delete(path, len(data))
            return None

    def put(self, identity: bytes, payload: Payload) -> bool:
        path = self._path(identity)
        if path.exists():
            return True
        nonce = secrets.token_bytes(_NONCE)
        data = nonce + self._cipher.encrypt(nonce, payload.to_bytes(), path.name.encode())
        if len(data) > self.budget:
            return False
        if self.used + len(data) > self.budget:
            self._make_room(len(data))
        draft = path.with_name(f"{secrets.token_hex(8)}{DRAFT}")
        try:
            draft.write_bytes(data)
            draft.chmod(0o600)
            os.replace(draft, path)
        except OSError as error:
            self._tell(error)
            self.failed += 1
            with contextlib.suppress(OSError):
                draft.unlink(missing_ok=True)
            return False
        self.used += len(data)
        return True

    def forget(self, identity: bytes) -> None:
        path = self._path(identity)
        with contextlib.suppress(OSError):
            self._delete(path, path.stat().st_size)

    def _tell(self, error: OSError) -> None:
        """Once: every block would say the same."""
        if not self._told:
            self._told = True
            logger.warning(
                "tiers: %s takes no blocks (%s); those that memory has no room for are computed again",
                self._directory.parent,
                error.strerror or type(error).__name__,
            )

    def sweep(self) -> None:
        """Delete what nobody has asked for in time, drafts of processes that died, and what is over the budget."""
        self._make_room(0)

    def _make_room(self, wanted: int) -> None:
        """The directory may be shared, so what lies there is counted anew; the longest unused goes first."""
        files = sorted(self._files(), key=lambda each: each[1])
        self.used = sum(size for _, _, size in files)
        stale = time.time() - self._keep_seconds
        for path, touched, size in files:
            if touched >= stale and self.used + wanted <= self.budget:
                break
            self._delete(path, size)

    def _files(self) -> list[tuple[Path, float, int]]:
        found = []
        with contextlib.suppress(OSError):
            for entry in os.scandir(self._directory):
                with contextlib.suppress(OSError):
                    status = entry.stat(follow_symlinks=False)
                    if entry.name.endswith(SUFFIX):
                        found.append((Path(entry.path), status.st_mtime, status.st_size))
                    elif entry.name.endswith(DRAFT) and status.st_mtime < time.time() - 60:
                        os.unlink(entry.path)
        return found

    def _delete(self, path: Path, size: int) -> None:
        with contextlib.suppress(OSError):
            path.unlink()
            self.used -= size

    def _path(self, identity: bytes) -> Path:
        return self._directory / (self._key.digest("kv block", identity.hex()) + SUFFIX)
