"""Run-time switches of guarded vLLM engines: one small file in the spool's folder, read by every engine core there.

vLLM offers no way to reach a scheduler from outside; a file needs none. It says what is off, or has been armed again:
`{"sidecar": "disable", "salad": "rearm"}`. What is not named is as the engine was started.
"""

from __future__ import annotations

import contextlib
import json
import os
import stat
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
        self._known: Mapping[str, Switch] = {}

    def changed(self) -> Mapping[str, Switch] | None:
        """What was switched since the last look, at the first one all that is there; None where the file is as it was,
        or is not there. What was put last is told in any case: it may be put twice. Raises UserError, once, for a
        file that makes no sense."""
        now = self._clock()
        if now < self._next:
            return None
        self._next = now + SECONDS
        try:
            status = os.stat(self.path)
        except OSError:
            self._seen, self._known = None, {}
            return None
        seen, self._seen = self._seen, (status.st_mtime_ns, status.st_ino)
        if seen == self._seen:
            return None
        known, self._known = self._known, self.read()
        last = next(reversed(self._known), None)
        return {name: to for name, to in self._known.items() if name == last or known.get(name) != to}

    def read(self) -> dict[str, Switch]:
        """Empty where there is no file. Raises UserError."""
        try:
            found = json.loads(self._bytes())
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, RecursionError) as error:
            raise UserError(f"{self.path}: cannot be read: {getattr(error, 'strerror', None) or error}") from error
        if not isinstance(found, dict) or not all(switch in get_args(Switch) for switch in found.values()):
            raise UserError(f"{self.path}: must name what is {', '.join(get_args(Switch))}")
        return found

    def put(self, name: str, switch: Switch) -> None:
        """Beside what the file says already, and last; a reader sees the old file or the new one. Raises UserError."""
        switches = self.read()
        switches.pop(name, None)
        draft = self.path.with_suffix(f".{os.getpid()}")
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            draft.write_text(json.dumps({**switches, name: switch}, indent=1))
            draft.replace(self.path)
        except OSError as error:
            with contextlib.suppress(OSError):
                draft.unlink(missing_ok=True)
            raise UserError(f"{self.path}: cannot be written: {error.strerror}") from error

    def _bytes(self) -> bytes:
        """Without waiting: a pipe of that name would hold up every step. Raises OSError, ValueError."""
        with open(os.open(self.path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as opened:
            if not stat.S_ISREG(os.fstat(opened.fileno()).st_mode):
                raise ValueError("it is no file")
            if len(data := opened.read(MOST_BYTES + 1)) > MOST_BYTES:
                raise ValueError(f"it has more than {MOST_BYTES} bytes")
        return data
