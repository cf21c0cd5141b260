"""Who may read content: X25519 key pairs, as one line of text each."""

from __future__ import annotations

import base64
import binascii
import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey

from checkengine.replay.bundle.layout import BundleError
from checkengine.replay.bundle.privacy import KEY_BYTES, read_or_create, state_directory

PUBLIC_PREFIX = "checkengine-public-"
VARIABLE = "CHECKENGINE_IDENTITY"


@dataclass(frozen=True, slots=True)
class PublicKey:
    """For whom content is encrypted; may be shown to anybody."""

    raw: bytes

    @property
    def id(self) -> str:
        return hashlib.sha256(self.raw).hexdigest()[:16]

    @classmethod
    def parse(cls, text: str) -> PublicKey:
        """BundleError where it is no public key of checkengine."""
        try:
            packed = base64.urlsafe_b64decode(text.strip().removeprefix(PUBLIC_PREFIX) + "=")
        except (binascii.Error, ValueError):
            packed = b""
        raw, check = packed[:KEY_BYTES], packed[KEY_BYTES:]
        if not text.strip().startswith(PUBLIC_PREFIX) or len(raw) != KEY_BYTES or check != _check(raw):
            raise BundleError(
                f"{text[:80]!r} is no public key: give the line that `checkengine bundles identity` prints"
            )
        return cls(raw)

    def __str__(self) -> str:
        return PUBLIC_PREFIX + base64.urlsafe_b64encode(self.raw + _check(self.raw)).decode().rstrip("=")


class Identity:
    """The secret half. It is made from 32 random bytes in a file that only its owner may read."""

    def __init__(self, secret: bytes) -> None:
        self._private = X25519PrivateKey.from_private_bytes(secret)
        self.public = PublicKey(self._private.public_key().public_bytes_raw())

    def exchange(self, ephemeral: bytes) -> bytes:
        """ValueError where `ephemeral` is no public key."""
        return self._private.exchange(X25519PublicKey.from_public_bytes(ephemeral))


def own_identity(directory: Path | None = None) -> Identity:
    """Of this user on this machine, made at first use. BundleError where it can be neither read nor made."""
    path = (directory or state_directory()) / "identity.key"
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        return Identity(read_or_create(path))
    except (OSError, ValueError) as error:
        words = error.strerror if isinstance(error, OSError) else "not 32 bytes"
        raise BundleError(
            f"no identity at {path} ({words}): content cannot be encrypted for this machine; make the folder writable "
            "(CHECKENGINE_STATE names another one) or name [capture] recipients"
        ) from None


def identities() -> list[Identity]:
    """All that may be tried: files named in CHECKENGINE_IDENTITY (separated as in PATH), then this machine's own if it
    has one already."""
    own = state_directory() / "identity.key"
    named = [Path(name) for name in os.environ.get(VARIABLE, "").split(os.pathsep) if name]
    found = [_read(path) for path in named]
    return [*found, Identity(own.read_bytes())] if _usable(own) else found


def _read(path: Path) -> Identity:
    try:
        return Identity(path.read_bytes())
    except OSError as error:
        raise BundleError(f"{VARIABLE} names {path}, which cannot be read: {error.strerror}") from None
    except ValueError:
        raise BundleError(f"{VARIABLE} names {path}, which is no identity: it has {KEY_BYTES} bytes") from None


def _usable(path: Path) -> bool:
    try:
        return len(path.read_bytes()) == KEY_BYTES
    except OSError:
        return False


def _check(raw: bytes) -> bytes:
    """Finds a mistyped key."""
    return hashlib.sha256(b"checkengine public key" + raw).digest()[:3]
