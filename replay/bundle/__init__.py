"""Bundles: a capture on disk. The format is told in `layout`.

Names are imported when they are asked for: who needs a file written durably need not load torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from checkengine.replay.bundle.access import AccessLog
    from checkengine.replay.bundle.archive import export_bundle, import_bundle
    from checkengine.replay.bundle.expiry import expires, held, hold, hold_reason, release
    from checkengine.replay.bundle.identity import Identity, PublicKey, own_identity
    from checkengine.replay.bundle.layout import BundleError
    from checkengine.replay.bundle.privacy import DeploymentKey
    from checkengine.replay.bundle.read import BundleReader
    from checkengine.replay.bundle.remote import BundleStore, fetch, is_url
    from checkengine.replay.bundle.retention import Collected, collect, erase_logged, erase_subject
    from checkengine.replay.bundle.store import (
        append_result,
        bundles_in,
        erase_content,
        keep_newest,
        remove,
        results_of,
    )
    from checkengine.replay.bundle.write import write_bundle

__all__ = [
    "AccessLog",
    "BundleError",
    "BundleReader",
    "BundleStore",
    "Collected",
    "DeploymentKey",
    "Identity",
    "PublicKey",
    "append_result",
    "bundles_in",
    "collect",
    "erase_content",
    "erase_logged",
    "erase_subject",
    "expires",
    "export_bundle",
    "fetch",
    "held",
    "hold",
    "hold_reason",
    "import_bundle",
    "is_url",
    "keep_newest",
    "own_identity",
    "release",
    "remove",
    "results_of",
    "write_bundle",
]

_MODULES = {
    "access": ("AccessLog",),
    "archive": ("export_bundle", "import_bundle"),
    "expiry": ("expires", "held", "hold", "hold_reason", "release"),
    "identity": ("Identity", "PublicKey", "own_identity"),
    "layout": ("BundleError",),
    "privacy": ("DeploymentKey",),
    "read": ("BundleReader",),
    "remote": ("BundleStore", "fetch", "is_url"),
    "retention": ("Collected", "collect", "erase_logged", "erase_subject"),
    "store": ("append_result", "bundles_in", "erase_content", "keep_newest", "remove", "results_of"),
    "write": ("write_bundle",),
}
_HOME = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"checkengine.replay.bundle.{_HOME[name]}"), name)
