"""Which requests belong to one conversation, and what was told of it before."""

from __future__ import annotations

import secrets
from collections import OrderedDict
from collections.abc import Hashable
from hashlib import blake2b

from checkengine.engine_shim.proxy.headers import Headers, header
from checkengine.engine_shim.proxy.requests import RequestFacts
from checkengine.guards.prompts import text_of

MOST_TOLD = 64
"""Of one conversation."""
KEY_BYTES = 12
MOST_READ = 1 << 14
"""Characters of a message that tell conversations apart, with its length."""


class Sessions:
    """The `most` conversations that were used last. Keys are digests under a key of this process: a header's or a
    user's name is never kept (design rule 13)."""

    def __init__(self, header_name: str, most: int) -> None:
        self._header = header_name.lower().encode("ascii")
        self._most = most
        self._secret = secrets.token_bytes(16)
        self._told: OrderedDict[str, set[Hashable]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._told)

    def key_of(self, headers: Headers, facts: RequestFacts) -> str:
        """By the header, else by `user` and the conversation's beginning; empty where there is none of these."""
        if named := header(headers, self._header):
            return self._digest(b"header", named)
        first = _beginning(facts)
        if not first and not facts.user:
            return ""
        return self._digest(b"begin", facts.user.encode("utf-8", "surrogatepass"), first)

    def is_news(self, key: str, what: Hashable) -> bool:
        """True the first time. Without a key everything is news."""
        if not key:
            return True
        told = self._told.get(key)
        if told is None:
            told = self._told[key] = set()
            while len(self._told) > self._most:
                self._told.popitem(last=False)
        self._told.move_to_end(key)
        if what in told:
            return False
        if len(told) < MOST_TOLD:
            told.add(what)
        return True

    def _digest(self, *parts: bytes) -> str:
        made = blake2b(digest_size=KEY_BYTES, key=self._secret)
        for part in parts:
            made.update(len(part).to_bytes(8, "little"))
            made.update(part)
        return made.hexdigest()


def _beginning(facts: RequestFacts) -> bytes:
    """Up to the first user turn: what all later requests of a conversation begin with."""
    parts = []
    for message in facts.turns:
        text = text_of(message.get("content"))
        parts.append(text if len(text) <= MOST_READ else f"{text[:MOST_READ]}{len(text)}")
        if message.get("role") == "user":
            break
    return "\0".join(parts).encode("utf-8", "surrogatepass")
