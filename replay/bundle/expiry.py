"""How long content may be read: until it expires, unless somebody holds it."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from checkengine.guards.errors import one_line
from checkengine.replay.bundle import layout, plain
from checkengine.replay.bundle.access import AccessLog
from checkengine.replay.bundle.files import read_inside, sync_directory, write_durably
from checkengine.replay.bundle.layout import BundleError

LATEST = 253_402_300_799
"""The last second that a calendar of four digits knows: more is no time but an attack on whoever prints it."""


def hold(bundle: Path | str, reason: str = "") -> None:
    """Keep the bundle and its content beyond its time and beyond `maximum_bundles`. Holding twice is holding."""
    folder = Path(bundle)
    log = AccessLog.of_this_deployment()
    log.add("hold", folder.name, reason)
    try:
        write_durably(folder / layout.HOLD, plain.encode({"reason": reason, "time": time.time()}))
        sync_directory(folder)
    except FileExistsError:
        return
    except OSError as error:
        raise BundleError(f"{folder} cannot be held: {error.strerror}; copy it to a writable place") from None


def release(bundle: Path | str) -> bool:
    """End a hold; False where there was none."""
    folder = Path(bundle)
    try:
        os.unlink(folder / layout.HOLD)
    except FileNotFoundError:
        return False
    except OSError as error:
        raise BundleError(f"{folder} cannot be released: {error.strerror}") from None
    sync_directory(folder)
    AccessLog.of_this_deployment().add("release", folder.name)
    return True


def held(bundle: Path | str) -> bool:
    return (Path(bundle) / layout.HOLD).exists()


def hold_reason(bundle: Path | str) -> str:
    """Why it is held, in the words of whoever holds it; empty where none were given or they cannot be read."""
    try:
        data = read_inside(Path(bundle), layout.HOLD, most=layout.MOST_MARKER_BYTES)
        return one_line(str(plain.decode(data, layout.HOLD)["reason"]))
    except (OSError, BundleError, KeyError, TypeError):
        return ""


def expires(manifest: Mapping[str, Any]) -> float | None:
    """Unix seconds; None where the content does not expire. What is no number has expired long ago."""
    when = manifest.get("content_expires")
    if when is None:
        return None
    if not isinstance(when, int | float) or isinstance(when, bool) or when != when:
        return 0.0
    return float(min(max(when, 0), LATEST))


def expired(bundle: Path | str, manifest: Mapping[str, Any], now: float | None = None) -> bool:
    when = expires(manifest)
    return when is not None and (time.time() if now is None else now) >= when and not held(bundle)


def refuse_expired(bundle: Path, manifest: Mapping[str, Any]) -> None:
    if expired(bundle, manifest):
        when = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(expires(manifest) or 0.0))
        raise BundleError(
            f"{bundle}: its content could be read until {when} ([capture] content_hours); `checkengine bundles hold` "
            "keeps it longer where that is lawful"
        )
