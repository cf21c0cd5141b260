"""How identifiers are shown: not at all, as keyed hashes, or as they are."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from checkengine.guards.errors import one_line
from checkengine.replay.bundle.privacy import DeploymentKey, deployment_key

Confidential = Literal["none", "default", "full"]
"""`none`: no identifier and no per-token number; `default`: keyed hashes, numbers, scripts; `full`: names and text."""

MOST_CHARACTERS = 400
KEYED = 16
"""Hexadecimal digits of a name in a bundle's core."""


@dataclass(slots=True)
class Names:
    """Replaces the known identifiers in everything that a report shows. A name and its keyed hash are the same."""

    level: Confidential
    known: Iterable[str]
    key: DeploymentKey = field(default_factory=deployment_key)
    _shown: dict[str, str] = field(default_factory=dict)
    _pattern: re.Pattern[str] | None = None

    def __post_init__(self) -> None:
        numbers: dict[str, int] = {}
        for name in dict.fromkeys(name for name in self.known if name):
            keyed = self.keyed(name)
            number = numbers.setdefault(keyed, len(numbers) + 1)
            self._shown[name] = f"sequence-{number}" if self.level == "none" else f"id-{keyed[:8]}"
        # In one pass, the longest first: a name may be a part of another one.
        patterns = [re.escape(name) for name in sorted(self._shown, key=len, reverse=True)]
        self._pattern = re.compile("|".join(patterns)) if patterns and self.level != "full" else None

    def keyed(self, name: str) -> str:
        """As the bundle's core names it."""
        is_keyed = len(name) == KEYED and all(letter in "0123456789abcdef" for letter in name)
        return name if is_keyed else self.key.name(name)

    def shown(self, name: str) -> str:
        if self.level == "full":
            return plain(name)
        return self._shown.get(name) or ("(hidden)" if self.level == "none" else f"id-{self.keyed(name)[:8]}")

    def clean(self, value: Any) -> Any:
        """The value with every known identifier replaced, and with nothing that does not print, at any depth."""
        if isinstance(value, str):
            if self._pattern is not None:
                value = self._pattern.sub(lambda found: self._shown[found[0]], value)
            return plain(value)
        if isinstance(value, Mapping):
            return {self.clean(str(key)): self.clean(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.clean(item) for item in value]
        return value


def plain(text: str, most: int = MOST_CHARACTERS) -> str:
    """At most `most` characters, and every one that does not print (controls, directions, zero widths) escaped."""
    if len(text) > most:
        text = f"{text[:most]}… ({len(text):,} characters)"
    return one_line(text)
