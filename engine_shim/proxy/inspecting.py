"""A stream of events under guard, bytes in and bytes out. A fault of ours ends the guarding and nothing else."""

from __future__ import annotations

import logging
from collections.abc import Callable

from checkengine.engine_shim.proxy.requests import Operation
from checkengine.engine_shim.proxy.responses import ResponseStreamWatch
from checkengine.engine_shim.proxy.settings import ProxySettings
from checkengine.engine_shim.proxy.stream import EventFramer
from checkengine.engine_shim.proxy.streaming import StreamWatch
from checkengine.engine_shim.proxy.watch import AnswerWatch

logger = logging.getLogger("checkengine.proxy")


class Inspector:
    """`unguarded` is told why, where the rest of a stream passes as it is."""

    def __init__(self, watch: AnswerWatch, settings: ProxySettings, unguarded: Callable[[str], None]) -> None:
        kind = ResponseStreamWatch if watch.facts.operation is Operation.RESPONSE else StreamWatch
        self._stream = kind(watch, settings, watch.facts.choices)
        self._framer = EventFramer(settings.max_answer_bytes)
        self._tell = unguarded
        self._is_guarding = True
        self._told_unread = False

    @property
    def is_over(self) -> bool:
        """A guard stopped it: nothing more is to be read."""
        return self._stream.is_over

    def push(self, data: bytes) -> bytes:
        """What to send in place of `data`."""
        if not self._is_guarding:
            return data
        events = self._framer.push(data)
        if len(events) == 1 and not self._framer.rest:
            return self._one(events[0])
        out: list[bytes] = []
        for number, event in enumerate(events):
            out.append(self._one(event))
            if self._stream.is_over:
                return b"".join(out)
            if not self._is_guarding:
                return b"".join([*out, *events[number + 1 :], self._framer.end()])
        if self._framer.is_too_long:
            self._give_up("event_too_long")
            out.append(self._framer.end())
        return b"".join(out)

    @property
    def first(self) -> dict[str, object] | None:
        """What all chunks of the stream have in common; None where it cannot be carried on by another upstream."""
        stream = self._stream
        if not self._is_guarding or not isinstance(stream, StreamWatch) or stream.is_done or stream.last is None:
            return None
        head = {"id": stream.last.id, "created": stream.last.created, "model": stream.last.model}
        return {name: value for name, value in head.items() if value is not None}

    def forget_rest(self) -> None:
        """Of an event that was cut off: what follows comes from another upstream."""
        self._framer.end()

    def end(self) -> bytes:
        """The upstream closed the stream: what is still to be sent."""
        rest = self._framer.end()
        if not self._is_guarding or self._stream.is_over:
            return rest
        try:
            return self._stream.end() + rest
        except Exception:
            logger.exception("guards failed at the end of a stream")
            return rest

    def _one(self, event: bytes) -> bytes:
        try:
            out = self._stream.push(event)
            if self._stream.unread and not self._told_unread:
                self._told_unread = True
                self._tell("unread")
            return out
        except Exception:
            logger.exception("guards failed on a stream; it goes on without them")
            self._give_up("failed")
            return event

    def _give_up(self, reason: str) -> None:
        self._is_guarding = False
        self._tell(reason)
