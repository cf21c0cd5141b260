"""The name of this process among its siblings."""

from __future__ import annotations

import os
import socket


def replica_name() -> str:
    """What tells this process from its siblings: host name and process id."""
    return os.environ.get("CHECKENGINE_REPLICA") or f"{socket.gethostname()}:{os.getpid()}"
