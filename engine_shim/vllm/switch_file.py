"""Run-time switches of guarded vLLM engines: one small file in the spool's folder, read by every engine core there.

vLLM offers no way to reach a scheduler from outside; a file needs none. It says what is off, or has been armed again:
`{"sidecar": "disable", "salad": "rearm"}`. What is not named is as the engine was started.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Literal, get_args

from checkengine.guards.errors import UserError

Switch = Literal["disable", "enable", "rearm"]
NAME = "switches.json"
SIDECAR = "sidecar"
MOST_BYTES = 1 << 16
SECONDS = 1.0
"""Between two looks."""


class SwitchFile:
    """`changed` is cheap enough for every step: it looks at the file's date once a second."""

    def __init__(self, folder: Path | str, clock: Callable[[], float] = time.monotonic) -> None:
        self.path = Path(folder) / NAME
        self._clock = clock
        self._next = float("-inf")
        self._seen: tuple[int, int] | None = None

    def changed(self) -> Mapping[str, Switch] | None:
        """All switches, where the file is not what it was at the last look; None where it is, or is not there.
        Raises UserError for one that makes no sense."""
        now = self._clock()
        if now < self._next:
            return None
        self._next = now + SECONDS
        try:
            status = os.stat(self.path)
        except OSError:
            return None
        known, self._seen = self._seen, (status.st_mtime_ns, status.st_ino)
        return None if known == self._seen else self.read()

    def read(self) -> dict[str, Switch]:
        """Empty where there is no file. Raises UserError."""
        try:
            with self.path.open("rb") as opened:
                found = json.loads(opened.read(MOST_BYTES))
        except FileNotFoundError:
            return {}
        except (OSError, ValueError) as error:
            raise UserError(f"{self.path}: cannot be read: {error}") from error
        if not isinstance(found, dict) or not all(switch in get_args(Switch) for switch in found.values()):
            raise UserError(f"{self.path}: must name what is {', '.join(get_args(Switch))}")
        return found

    def put(self, name: str, switch: Switch) -> None:
        """Beside what the file says already; a reader sees the old file or the new one. Raises UserError."""
        try:
            switches = {**self.read(), name: switch}
            self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            draft = self.path.with_suffix(f".{os.getpid()}")
            draft.write_text(json.dumps(switches, indent=1))
            draft.replace(self.path)
        except OSError as error:
            raise UserError(f"{self.path}: cannot be written: {error.strerror}") from error
