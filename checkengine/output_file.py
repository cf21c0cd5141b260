"""Files that a command was asked to write: whole or as they were before, and one clear error."""

from __future__ import annotations

import contextlib
import os
import secrets
from pathlib import Path

from checkengine.guards.errors import UserError


def write_output(path: Path, text: str, what: str, error_kind: type[UserError] = UserError) -> None:
    """`text` as UTF-8, what cannot be encoded escaped. Raises `error_kind`: what cannot be written, where and why.

    What is no ordinary file (a device, a pipe) is written to as it is.
    """
    data = text.encode("utf-8", "backslashreplace")
    try:
        if path.exists() and not path.is_file():
            path.write_bytes(data)
        else:
            _replace(path.resolve(), data)
    except OSError as error:
        raise error_kind(f"{what} cannot be written to {path}: {error.strerror or error}") from error


def _replace(path: Path, data: bytes) -> None:
    draft = path.with_name(f".{secrets.token_hex(8)}.part")
    try:
        draft.write_bytes(data)
        if path.exists():
            draft.chmod(path.stat().st_mode & 0o777)
        os.replace(draft, path)
    finally:
        with contextlib.suppress(OSError):
            draft.unlink(missing_ok=True)
