"""Content under AES-256-GCM: one data key a bundle, wrapped to those who may read it.

A file is a random salt of 32 bytes and then chunks of 1 MiB, each with its tag. Its own key comes from the data key,
the salt and the file's path inside its bundle (HKDF-SHA256); the nonce of a chunk is its number and whether it is the
last one. So chunks can be neither reordered, dropped nor moved to another file or bundle (the construction is that of
age's payload: C2SP age.md, "payload").

The data key is wrapped to an X25519 public key with an ephemeral one (HKDF over the shared secret and both public
keys). Where keys.json is gone, nobody can read the content any more, backups of content/ included.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping
from typing import Any

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from checkengine.replay.bundle.identity import Identity, PublicKey
from checkengine.replay.bundle.layout import BundleError

SCHEME = "aes-256-gcm"
CHUNK_BYTES = 1 << 20
SALT_BYTES = 32
TAG_BYTES = 16
KEY_BYTES = 32
MOST_RECIPIENTS = 64


class DataKey:
    """The key of one bundle's content."""

    def __init__(self, key: bytes, bundle: str) -> None:
        self._key = key
        self._bundle = bundle

    @classmethod
    def new(cls, bundle: str) -> DataKey:
        return cls(secrets.token_bytes(KEY_BYTES), bundle)

    def encrypt(self, data: bytes, path: str) -> bytes:
        """`path`: of the file inside its bundle."""
        salt = secrets.token_bytes(SALT_BYTES)
        cipher = self._cipher(salt, path)
        out = bytearray(salt)
        view = memoryview(data)
        for number, first, last in _chunks(len(data), CHUNK_BYTES):
            out += cipher.encrypt(_nonce(number, last), view[first : first + CHUNK_BYTES], None)
        return bytes(out)

    def decrypt(self, data: bytes, path: str) -> bytes:
        """BundleError where the bytes are not what `encrypt` made of this path in this bundle."""
        cipher = self._cipher(data[:SALT_BYTES], path)
        view = memoryview(data)[SALT_BYTES:]
        step = CHUNK_BYTES + TAG_BYTES
        out = bytearray()
        try:
            for number, first, last in _chunks(len(view), step):
                out += cipher.decrypt(_nonce(number, last), view[first : first + step], None)
        except InvalidTag:
            raise BundleError(f"{path} cannot be decrypted: it was changed or belongs to another bundle") from None
        return bytes(out)

    def wrapped(self, recipients: Iterable[PublicKey]) -> dict[str, Any]:
        """What keys.json says."""
        return {
            "content": SCHEME,
            "recipients": {recipient.id: self._wrap_to(recipient) for recipient in recipients},
        }

    def shared(self, keys: Mapping[str, Any], recipient: PublicKey) -> dict[str, Any]:
        """What keys.json says once one more may read; what a newer checkengine wrote there stays."""
        return {**keys, "recipients": {**keys["recipients"], recipient.id: self._wrap_to(recipient)}}

    def _wrap_to(self, recipient: PublicKey) -> dict[str, str]:
        ephemeral = X25519PrivateKey.generate()
        own = ephemeral.public_key().public_bytes_raw()
        shared = ephemeral.exchange(X25519PublicKey.from_public_bytes(recipient.raw))
        sealed = AESGCM(_wrapping_key(shared, own, recipient.raw)).encrypt(bytes(12), self._key, self._bundle.encode())
        return {"ephemeral": own.hex(), "wrapped": sealed.hex()}

    def _cipher(self, salt: bytes, path: str) -> AESGCM:
        info = f"checkengine content 1\0{self._bundle}\0{path}".encode()
        return AESGCM(HKDF(SHA256(), KEY_BYTES, salt, info).derive(self._key))


def unwrap(keys: Any, bundle: str, identities: Iterable[Identity], where: str) -> DataKey:
    """The data key that one of the identities opens. BundleError where none does."""
    recipients = _recipients(keys, where)
    known = list(identities)
    for identity in known:
        entry = recipients.get(identity.public.id)
        if entry is not None:
            return DataKey(_unwrap_with(identity, entry, bundle, where), bundle)
    held = ", ".join(identity.public.id for identity in known) or "none"
    raise BundleError(
        f"{where}: the content is encrypted for {', '.join(recipients) or 'nobody'}, and the identities here are {held}"
        ": set CHECKENGINE_IDENTITY to the file of an identity that may read it"
    )


def _recipients(keys: Any, where: str) -> Mapping[str, Any]:
    recipients = keys.get("recipients") if isinstance(keys, dict) else None
    if not isinstance(recipients, dict) or keys.get("content") != SCHEME or len(recipients) > MOST_RECIPIENTS:
        raise BundleError(f"{where} tells no {SCHEME} keys: the bundle is damaged or of a newer checkengine")
    return recipients


def _unwrap_with(identity: Identity, entry: Any, bundle: str, where: str) -> bytes:
    try:
        own, sealed = bytes.fromhex(entry["ephemeral"]), bytes.fromhex(entry["wrapped"])
        shared = identity.exchange(own)
        key = _wrapping_key(shared, own, identity.public.raw)
        return AESGCM(key).decrypt(bytes(12), sealed, bundle.encode())
    except (InvalidTag, ValueError, KeyError, TypeError):
        raise BundleError(f"{where}: the wrapped key is damaged or of another bundle; fetch the bundle again") from None


def _wrapping_key(shared: bytes, ephemeral: bytes, recipient: bytes) -> bytes:
    return HKDF(SHA256(), KEY_BYTES, ephemeral + recipient, b"checkengine content key 1").derive(shared)


def _chunks(size: int, step: int) -> Iterable[tuple[int, int, bool]]:
    """Number, first byte, whether it is the last; one empty chunk where there is nothing."""
    count = max(1, -(-size // step))
    return ((number, number * step, number == count - 1) for number in range(count))


def _nonce(number: int, last: bool) -> bytes:
    return number.to_bytes(11, "big") + bytes([last])
