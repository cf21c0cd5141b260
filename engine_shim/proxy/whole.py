"""An answer that came whole, under guard: body in, body out."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from checkengine.engine_shim.proxy import actions, errors
from checkengine.engine_shim.proxy.channel import Told
from checkengine.engine_shim.proxy.dialects import NotReadError, body_of, chunk_of, with_field
from checkengine.engine_shim.proxy.errors import ProxyError
from checkengine.engine_shim.proxy.judging import Note, Verdict
from checkengine.engine_shim.proxy.requests import Operation
from checkengine.engine_shim.proxy.responses import stopped_response, take_whole_response
from checkengine.engine_shim.proxy.settings import ProxySettings
from checkengine.engine_shim.proxy.vectors import NAME as VECTORS
from checkengine.engine_shim.proxy.vectors import Vectors
from checkengine.engine_shim.proxy.watch import AnswerWatch, ChoiceWatch
from checkengine.guards.action import ActionKind
from checkengine.guards.text import TextFinding

logger = logging.getLogger("checkengine.proxy")
PLACED_IN_TEXT = frozenset({"repetition.loop", "text.salad", "language.switch", "stop.ignored"})


class WholeAnswer:
    """`retry` is set where a guard wants the request sent again: nothing of the answer was sent yet."""

    def __init__(self, watch: AnswerWatch, settings: ProxySettings) -> None:
        self.watch = watch
        self.retry: Note | None = None
        self.passed = ""
        """Why it passed without guards; empty where it did not."""
        self.refused: ProxyError | None = None
        """What to answer in its place: of vectors there is nothing that could be cut."""
        self._reason = settings.finish_reason
        self._tell_all = settings.annotate == "body"

    async def read_or_pass(self, body: bytes, *, may_retry: bool = False) -> bytes:
        """The body to send: the same bytes, where nobody asked for more than observing. Never raises."""
        try:
            return await self._read(body, may_retry=may_retry)
        except NotReadError:
            self.passed = "unread"
        except Exception:
            logger.exception("guards failed on an answer; it passes without them")
            self.passed = "failed"
        return body

    async def _read(self, body: bytes, *, may_retry: bool) -> bytes:
        stops = await self._stops(body, may_retry=may_retry)
        if self.retry is not None:
            return body
        if stops and self.watch.facts.operation is Operation.EMBEDDINGS:
            self.refused = errors.empty_vectors()
        elif stops:
            body = self._stopped(body, stops)
        notes = [note for note in self.watch.notes if self._tell_all or note.is_visible]
        return with_field(body, actions.FIELD, actions.extension(notes)) if notes else body

    async def _stops(self, body: bytes, *, may_retry: bool) -> dict[int, Verdict]:
        if self.watch.facts.operation is Operation.RESPONSE:
            return await self._stops_of_response(body, may_retry=may_retry)
        if self.watch.facts.operation is Operation.EMBEDDINGS:
            return self._stops_of_vectors(body, may_retry=may_retry)
        chunk = chunk_of(body)
        self.watch.usage = chunk.usage if isinstance(chunk.usage, dict) else {}
        stops: dict[int, Verdict] = {}
        for choice in chunk.choices or ():
            watched = self.watch.choice(choice.index)
            if watched is None:
                continue
            watched.take(choice)
            alone = self.watch.tokens if len(chunk.choices or ()) == 1 else None
            self._settle(stops, watched, [*await read_long(watched), *watched.end(alone)], may_retry=may_retry)
        return stops

    async def _stops_of_response(self, body: bytes, *, may_retry: bool) -> dict[int, Verdict]:
        watched = self.watch.choice(0)
        assert watched is not None
        self.watch.usage = take_whole_response(watched, body)
        stops: dict[int, Verdict] = {}
        told = [*await read_long(watched), *watched.end(self.watch.tokens)]
        self._settle(stops, watched, told, may_retry=may_retry)
        return stops

    def _stops_of_vectors(self, body: bytes, *, may_retry: bool) -> dict[int, Verdict]:
        vectors, watched = Vectors(body), self.watch.choice(0)
        assert watched is not None
        self.watch.usage, watched.is_over = vectors.usage, True
        told = self.watch.ask_own(VECTORS, lambda: vectors.findings(watched.sequence), max(1, len(vectors)))
        stops: dict[int, Verdict] = {}
        self._settle(stops, watched, told, may_retry=may_retry)
        return stops

    def _settle(
        self, stops: dict[int, Verdict], watched: ChoiceWatch, told: Sequence[Told], *, may_retry: bool
    ) -> None:
        verdict = self.watch.decide(watched, told)
        if verdict is None or verdict.action is None or verdict.note is None:
            return
        if verdict.action is ActionKind.RETRY and may_retry:
            self.retry = verdict.note
            return
        self.watch.stop(watched, verdict.note)
        stops[watched.index] = verdict

    def _stopped(self, body: bytes, stops: dict[int, Verdict]) -> bytes:
        if self.watch.facts.operation is Operation.RESPONSE:
            return stopped_response(body)
        answer = body_of(body)
        for choice in answer["choices"]:
            verdict = stops.get(choice.get("index", 0))
            if verdict is not None and verdict.finding is not None:
                choice["finish_reason"] = self._reason
                for holder, name in _texts(choice):
                    holder[name] = cut(holder[name], verdict.finding)
        return msgspec.json.encode(answer)


async def read_long(choice: ChoiceWatch) -> list[Told]:
    """All but the last slice of long texts; between two slices other requests go on."""
    told: list[Told] = []
    for channel in (choice.text, choice.thought, choice.calls):
        while channel is not None and channel.waiting > 1:
            told += channel.read(1)
            await asyncio.sleep(0)
    return told


def cut(text: str, finding: TextFinding) -> str:
    """What came before the first bad character; all of it where the finding is not placed in this text."""
    return text[: int(finding.at["char"])] if finding.kind in PLACED_IN_TEXT else text


def _texts(choice: dict[str, Any]) -> Iterator[tuple[dict[str, Any], str]]:
    message = choice.get("message")
    if isinstance(message, dict) and isinstance(message.get("content"), str):
        yield message, "content"
    if isinstance(choice.get("text"), str):
        yield choice, "text"
