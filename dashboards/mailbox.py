"""Webhooks that wait, as files: what a process had not delivered when it was killed, the next one delivers.

Every process has a box of its own in the directory, a folder that it holds a lock on for as long as it lives; one whose
lock is free belongs to nobody any more, and whoever starts next takes what is in it. A message keeps its id. Limits:
files are not forced to the disk, so a power cut may cost the last seconds; a message that was sent and whose sender was
killed before it could take it out is sent again.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import os
import re
import secrets
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

logger = logging.getLogger("checkengine.webhooks")

BOX, LETTER = ".box", ".json"
IDENTIFIER = re.compile(r"msg_[0-9a-f]{32}")
MOST_LETTER_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Letter:
    identifier: str
    """`msg_` and 32 hexadecimal digits."""
    receiver: str
    """Its name: where it is and which secret it has, the configuration says."""
    body: bytes
    """JSON, as it is sent."""
    born: float
    """Unix seconds."""


class Mailbox:
    """Raises OSError where the directory cannot be made or written at the start; nothing later raises."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._box = directory / f"{secrets.token_hex(8)}{BOX}"
        draft = self._box.with_suffix(".new")
        draft.mkdir(mode=0o700)
        self._lock = os.open(draft, os.O_RDONLY | os.O_DIRECTORY)
        # Locked before it has its name, or another process could take it for a dead one's.
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        os.rename(draft, self._box)
        self._failed = False

    def put(self, letter: Letter) -> None:
        """Where the disk does not take it, the letter is in memory only."""
        words = {
            "receiver": letter.receiver,
            "born": letter.born,
            "body": letter.body.decode(),
        }
        path = self._box / (letter.identifier + LETTER)
        draft = path.with_suffix(".new")
        try:
            draft.write_text(json.dumps(words))
            os.rename(draft, path)
            self._failed = False
        except OSError as error:
            with contextlib.suppress(OSError):
                draft.unlink(missing_ok=True)
            if not self._failed:
                logger.error("webhooks cannot be kept in %s and would not survive a restart: %s", self._box, error)
            self._failed = True

    def remove(self, identifier: str) -> None:
        """It was delivered, or given up."""
        with contextlib.suppress(OSError):
            (self._box / (identifier + LETTER)).unlink(missing_ok=True)

    def inherit(self, most: int) -> list[Letter]:
        """Up to `most` letters of processes that are gone, the oldest first; they are in this box now."""
        letters: list[Letter] = []
        for box in sorted(self._directory.glob(f"*{BOX}")):
            if box != self._box:
                with contextlib.suppress(OSError), abandoned(box) as is_free:
                    if is_free:
                        letters += self._emptied(box, most - len(letters))
        return sorted(letters, key=lambda letter: letter.born)

    def close(self) -> None:
        """What is left waits for the next process."""
        with contextlib.suppress(OSError):
            self._box.rmdir()
        os.close(self._lock)

    def _emptied(self, box: Path, most: int) -> list[Letter]:
        taken: list[Letter] = []
        for path in sorted(box.glob(f"*{LETTER}")):
            if len(taken) >= most:
                return taken
            letter = read_letter(path)
            if letter is None:
                logger.error("%s is no webhook's message: it is deleted", path)
                path.unlink()
            else:
                os.rename(path, self._box / path.name)
                taken.append(letter)
        for draft in box.glob("*.new"):
            draft.unlink()
        box.rmdir()
        return taken


@contextlib.contextmanager
def abandoned(box: Path) -> Iterator[bool]:
    """Whether nobody holds the box; then nobody takes it meanwhile."""
    descriptor = os.open(box, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True
    finally:
        os.close(descriptor)


def read_letter(path: Path) -> Letter | None:
    """None for what is torn, too large, a link, or no letter."""
    if IDENTIFIER.fullmatch(path.stem) is None:
        return None
    try:
        with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW), "rb") as file:
            found = json.loads(file.read(MOST_LETTER_BYTES))
        # One from the future would never be given up.
        born = min(float(found["born"]), time.time())
        json.loads(found["body"])
        return Letter(path.stem, str(found["receiver"]), str(found["body"]).encode(), born)
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
