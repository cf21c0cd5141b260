"""What is known of each bundle, a file each, so that nothing is lost or counted twice whoever dies when."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
from collections import Counter
from pathlib import Path
from typing import Any

from checkengine.guards.errors import UserError

WORDS = {0: "not reproduced", 1: "reproduced", 125: "cannot be judged", 129: "damaged"}
"""Exit codes of `checkengine replay` that settle a bundle; any other is a failure of the machine."""


class Ledger:
    """A directory of results by bundle name. Raises UserError where it cannot be written."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        try:
            directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"results cannot be kept in {directory}: {error.strerror}") from None

    def has(self, name: str) -> bool:
        return self._path(name).exists()

    def settle(self, name: str, code: int, told: dict[str, Any]) -> bool:
        """Put a result down, durably. False where one was there: the first one counts."""
        draft = self.directory / f".{secrets.token_hex(8)}"
        try:
            with open(draft, "x", encoding="utf-8") as file:
                json.dump({"bundle": name, "exit_code": code, **told}, file)
                file.flush()
                os.fsync(file.fileno())
            os.link(draft, self._path(name))
        except FileExistsError:
            return False
        except OSError as error:
            raise UserError(f"the result of {name} cannot be kept in {self.directory}: {error.strerror}") from None
        finally:
            with contextlib.suppress(OSError):
                draft.unlink()
        return True

    def counts(self) -> dict[str, int]:
        """Bundles by outcome."""
        codes = [json.loads(path.read_text(encoding="utf-8"))["exit_code"] for path in self.directory.glob("*.json")]
        return dict(Counter(WORDS.get(code, "failed") for code in codes))

    def _path(self, name: str) -> Path:
        return self.directory / f"{name}.json"
