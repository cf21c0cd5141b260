"""What may stand in the clear: keyed hashes, and rows of others as stand-ins without content."""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

KEY_BYTES = 32


class DeploymentKey:
    """Hashes of content that leave memory are keyed with it, so that nobody outside can test a guess."""

    def __init__(self, key: bytes) -> None:
        if len(key) != KEY_BYTES:
            raise ValueError(f"a deployment key has {KEY_BYTES} bytes, not {len(key)}")
        self._key = key

    @classmethod
    def random(cls) -> DeploymentKey:
        return cls(secrets.token_bytes(KEY_BYTES))

    def name(self, text: str) -> str:
        """Stands for a name: 16 hexadecimal digits."""
        return self._digest(b"name", text.encode("utf-8", "surrogatepass")).hex()[:16]

    def digest(self, use: str, text: str) -> str:
        """Of a text for one use: 32 hexadecimal digits."""
        return self._digest(use.encode(), text.encode("utf-8", "surrogatepass")).hex()[:32]

    def fingerprints(self, values: NDArray[np.uint64]) -> NDArray[np.uint64]:
        """One keyed hash each, shape as given."""
        keyed = b"".join(self._digest(b"fingerprint", value.tobytes())[:8] for value in values)
        return np.frombuffer(keyed, np.uint64).reshape(values.shape)

    def _digest(self, use: bytes, message: bytes) -> bytes:
        return hmac.digest(self._key, use + b"\0" + message, hashlib.sha256)


def state_directory() -> Path:
    """Where this user's checkengine keeps what must outlive a process: CHECKENGINE_STATE, else the XDG place."""
    chosen = os.environ.get("CHECKENGINE_STATE")
    if chosen:
        return Path(chosen)
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "checkengine"


def deployment_key(directory: Path | None = None) -> DeploymentKey:
    """The key of this deployment, made at first use with mode 0600; of this process only where no place is writable."""
    path = (directory or state_directory()) / "deployment.key"
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        return DeploymentKey(read_or_create(path))
    except (OSError, ValueError):
        return PROCESS_KEY


PROCESS_KEY = DeploymentKey.random()


def read_or_create(path: Path) -> bytes:
    """Two processes that come at once end with the same key: the link succeeds for one of them."""
    if not path.exists():
        draft = path.with_name(f"{path.name}.{secrets.token_hex(8)}")
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(secrets.token_bytes(KEY_BYTES))
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(draft, path)
        except FileExistsError:
            pass
        finally:
            draft.unlink()
    return path.read_bytes()
