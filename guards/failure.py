"""Where something of ours failed, in words that may leave the process."""

from __future__ import annotations

import os
import traceback


def place(error: BaseException) -> str:
    """File and line where it was raised. Not the error's message: it may hold tokens or text."""
    frames = traceback.extract_tb(error.__traceback__)
    return f"at {os.path.basename(frames[-1].filename)}:{frames[-1].lineno}" if frames else "at an unknown place"
