"""Nothing on standard error for a while, not even from libraries that are no Python."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

STDERR = 2


@contextmanager
def silent_stderr() -> Iterator[None]:
    """Of the whole process, all threads. Where there is no standard error nothing is done."""
    try:
        kept = os.dup(STDERR)
    except OSError:
        yield
        return
    nowhere = os.open(os.devnull, os.O_WRONLY)
    sys.stderr.flush()
    os.dup2(nowhere, STDERR)
    try:
        yield
    finally:
        os.dup2(kept, STDERR)
        os.close(kept)
        os.close(nowhere)
