"""Open cases on disk, so that a convicted upstream stays out through a restart of the proxy.

One JSON object, replaced as a whole: old or new, never half.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from checkengine.engine_shim.proxy.routing.fleet import Case, case_of_json
from checkengine.guards.errors import UserError, one_line
from checkengine.replay.bundle.files import replace_durably

logger = logging.getLogger("checkengine.proxy.routing")

VERSION = 1
MOST_BYTES = 1 << 22


class StateFile:
    """Written by a thread of its own, in order: a disk that is slow or full stops no request."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.failed = 0
        """Writes that did not succeed."""
        self._writer = ThreadPoolExecutor(1, "checkengine-routing-state")

    def load(self) -> dict[str, Case]:
        """Empty where there is no file yet. UserError where it is damaged: who is convicted is not guessed."""
        try:
            with self.path.open("rb") as file:
                data = file.read(MOST_BYTES + 1)
        except FileNotFoundError:
            folder = next(each for each in self.path.absolute().parents if each.exists())
            if not os.access(folder, os.W_OK | os.X_OK):
                raise UserError(
                    f"{self.path} cannot be written, and a restart would forget who is held out: {folder} is not "
                    "writable for this process; change its owner, or proxy.routing.state_file"
                ) from None
            return {}
        except OSError as error:
            raise UserError(f"{self.path} cannot be read: {one_line(str(error))}") from None
        try:
            return _cases(data)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise UserError(
                f"{self.path} is not a state of the routing ({one_line(str(error))}): it says which upstreams are held "
                "out; mend it, or delete it to let all serve"
            ) from None

    def save(self, cases: Mapping[str, Case]) -> None:
        """Returns at once."""
        value = {"version": VERSION, "upstreams": {name: case.to_json() for name, case in sorted(cases.items())}}
        self._writer.submit(self._write, json.dumps(value, indent=2).encode() + b"\n")

    def close(self) -> None:
        """What was saved is on the disk when this returns."""
        self._writer.shutdown()

    def _write(self, data: bytes) -> None:
        try:
            replace_durably(self.path, data)
        except OSError as error:
            self.failed += 1
            logger.error("%s cannot be written, a restart would forget: %s", self.path, one_line(str(error)))


def _cases(data: bytes) -> dict[str, Case]:
    if len(data) > MOST_BYTES:
        raise ValueError(f"more than {MOST_BYTES} bytes")
    value = json.loads(data)
    if value["version"] != VERSION:
        raise ValueError(f"version {value['version']!r}, not {VERSION}")
    return {name: case_of_json(case) for name, case in value["upstreams"].items()}
