"""An upstream's answer on its way to the client: as it is, or under guard."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import msgspec

from checkengine.engine_shim.proxy import actions
from checkengine.engine_shim.proxy.client import Answer
from checkengine.engine_shim.proxy.conversation import told_of_conversation
from checkengine.engine_shim.proxy.dialects import DONE, as_event, usage_of
from checkengine.engine_shim.proxy.errors import ProxyError
from checkengine.engine_shim.proxy.headers import header, to_client
from checkengine.engine_shim.proxy.inspecting import Inspector
from checkengine.engine_shim.proxy.judging import Note
from checkengine.engine_shim.proxy.parts import ExchangeEnd, ExchangeStart
from checkengine.engine_shim.proxy.rescoring import Flagged
from checkengine.engine_shim.proxy.routing.continuation import Seam
from checkengine.engine_shim.proxy.stopped import stopped_answer
from checkengine.engine_shim.proxy.stream import EventFramer, payload_of
from checkengine.engine_shim.proxy.upstream import Ending, NoUpstream, Outcome, RoutedRequest, Upstream
from checkengine.engine_shim.proxy.watch import MOST_KEPT, AnswerWatch
from checkengine.engine_shim.proxy.whole import WholeAnswer
from checkengine.guards.finding import Severity

if TYPE_CHECKING:
    from checkengine.engine_shim.proxy.exchange import Exchange

logger = logging.getLogger("checkengine.proxy")
EVENTS, JSON = b"text/event-stream", b"application/json"
RESCORED = frozenset({"repetition.loop", "text.salad", "language.switch", "logits.nonfinite", "logits.uniform"})
"""Kinds of which a sibling's probabilities tell whether it was a habit of the model."""
NO_BODY = (204, 304)
TRACE_HEADERS = (b"traceparent", b"tracestate")


class Answering:
    """Of one exchange, over all its attempts."""

    def __init__(self, exchange: Exchange, send: Any) -> None:
        self.sent = False
        """The status line is out: nothing can be tried again."""
        self.answered = False
        """The upstream of this attempt began to answer."""
        self.status: int | None = None
        self.ending = Ending.DONE
        self.error: str | None = None
        self._exchange, self._parts = exchange, exchange.parts
        self._send_message = send
        self.inspector: Inspector | None = None
        self._watch: AnswerWatch | None = None
        self._inherited = 0
        """Notes that are none of this attempt's."""
        self._is_events = False
        self._request: RoutedRequest | None = None
        self._upstream: Upstream | None = None
        self._began = self._attempted = self._last = 0.0
        self._ttft: float | None = None

    def begin(self, request: RoutedRequest) -> None:
        self._request = request
        self._began = self._parts.clock()
        facts = self._exchange.facts
        headers = self._exchange.headers
        trace = {name.decode(): value.decode("latin-1") for name, value in headers if name in TRACE_HEADERS}
        sequences = tuple(f"{request.id}-{index}" for index in range(facts.choices))
        self._tell(
            self._parts.observer.started,
            ExchangeStart(request.id, sequences, facts.operation, facts.model, facts.stream, facts.sampling, trace),
        )

    def reset(self, upstream: Upstream, now: float) -> None:
        """Another attempt begins."""
        self._upstream, self._attempted = upstream, now
        self.answered, self.status, self.ending = False, None, Ending.DONE

    async def relay(self, response: Answer, *, may_retry: bool) -> bool:
        """False where the request is to be tried again: a guard wants that, and nothing was sent."""
        kind = header(response.headers, b"content-type").partition(b";")[0].strip().lower()
        self._is_events = kind == EVENTS
        if not self._is_guarded(response):
            await self._pass(response)
        elif kind == EVENTS:
            await self._pass_events(response)
        elif kind == JSON:
            return await self._pass_whole(response, may_retry=may_retry)
        else:
            await self._pass(response)
        return True

    def looked_back(self) -> Note | None:
        """Reads the conversation that the request brings along; a note where a guard stops it before it is sent."""
        parts, request, facts = self._parts, self._request, self._exchange.facts
        if parts.bench is None or not parts.enabled or request is None or not facts.operation.generates:
            return None
        try:
            told = told_of_conversation(request.session, request.id, facts, parts.bench, parts.sessions)
            if not told:
                return None
            self._watch = self._new_watch()
            choice = self._watch.choice(0)
            verdict = self._watch.decide(choice, told) if choice else None
        except Exception:
            logger.exception("guards failed on a conversation; its request goes on")
            return None
        if choice is None or verdict is None or verdict.note is None:
            return None
        self._watch.stop(choice, verdict.note)
        return verdict.note

    async def stop_before(self, note: Note) -> None:
        """An answer of the proxy's own: nothing was sent upstream."""
        self._is_events = self._exchange.facts.stream
        kind, body = stopped_answer(self._exchange.facts, self._exchange.identity, self._parts.settings, note)
        headers = [(b"content-type", kind), (b"content-length", str(len(body)).encode())]
        if (told := actions.findings_header([note])) and self._parts.settings.annotate != "off":
            headers.append(told)
        self.sent, self.status = True, 200
        await self._send_message({"type": "http.response.start", "status": 200, "headers": headers})
        await self._finish(body)

    async def fail(self, error: ProxyError) -> None:
        """In place of an answer, or in the middle of one; what is no stream of events ends without its end."""
        self.error = self.error or error.code
        if not self.sent:
            self.sent = True
            self.status = error.status
            await self._send_message(
                {"type": "http.response.start", "status": error.status, "headers": error.headers()}
            )
            await self._send_message({"type": "http.response.body", "body": error.body(), "more_body": False})
        elif self._is_events:
            await self._send_message({"type": "http.response.body", "body": error.event(), "more_body": True})

    def outcome(self) -> Outcome:
        """Of the attempt that has ended."""
        watch, now = self._watch, self._parts.clock()
        usage = self._usage()
        own = watch.notes[self._inherited :] if watch else ()
        kinds = {note.kind for note in own if note.severity is Severity.ERROR}
        return Outcome(
            self.ending,
            self.status,
            None,
            self._ttft,
            now - self._attempted,
            usage.get("prompt"),
            usage.get("cached"),
            usage.get("output"),
            self._finish_reasons(),
            tuple(sorted(kinds)),
        )

    def close(self) -> None:
        """The exchange is over."""
        watch = self._watch
        if watch is not None:
            watch.close()
            self._offer_to_sibling(watch)
        if self._request is None:
            return
        usage = self._usage()
        notes = tuple(watch.notes) if watch else ()
        end = ExchangeEnd(
            self._request.id,
            self._request.model,
            self._upstream.name if self._upstream else "",
            self.status,
            self._finish_reasons(),
            usage.get("prompt") or 0,
            usage.get("output") or (sum(choice.chunks for choice in watch.choices.values()) if watch else 0),
            usage.get("cached") or 0,
            usage.get("output") is not None,
            self._ttft,
            self._parts.clock() - self._began,
            self.error,
            notes[0] if notes else None,
            notes,
        )
        self._tell(self._parts.observer.ended, end)

    def _offer_to_sibling(self, watch: AnswerWatch) -> None:
        """A flagged answer, to be scored on another upstream where there is one."""
        parts, request = self._parts, self._request
        if parts.rescoring is None or request is None or self._upstream is None:
            return
        for note in watch.notes[self._inherited :]:
            choice = watch.choices.get(note.choice)
            if note.severity is Severity.ERROR and note.kind in RESCORED and choice is not None and choice.kept:
                try:
                    sibling = parts.router.choose(replace(request, excluded=frozenset({self._upstream.name})))
                except NoUpstream:
                    return
                text = "".join(choice.kept)
                parts.rescoring.offer(Flagged(choice.sequence, note.incident, watch.facts, text, sibling))
                return

    # As it is

    async def _pass(self, response: Answer) -> None:
        await self._start(response)
        while data := await self._next(response):
            await self._send(data)
        await self._finish()

    # Under guard

    def _is_guarded(self, response: Answer) -> bool:
        parts, operation = self._parts, self._exchange.facts.operation
        if parts.bench is None or not parts.enabled or response.status != 200 or not operation.is_read:
            return False
        if header(response.headers, b"content-encoding").lower() not in (b"", b"identity"):
            self._tell(parts.observer.unguarded, "encoded")
            return False
        before = self._watch
        self._watch = self._new_watch()
        if before is not None:
            # Of the conversation, or of another attempt: the client is told, but this upstream is not blamed.
            self._watch.notes = before.notes
            self._inherited = len(before.notes)
            before.close()
        return True

    async def _pass_whole(self, response: Answer, *, may_retry: bool) -> bool:
        """False where a guard wants it to be tried again, and nothing was sent."""
        assert self._watch is not None
        pieces: list[bytes] = []
        size = 0
        while data := await self._next(response):
            pieces.append(data)
            size += len(data)
            if size > self._parts.settings.max_answer_bytes:
                self._tell(self._parts.observer.unguarded, "too_large")
                await self._start(response)
                await self._send(b"".join(pieces))
                await self._rest(response)
                return True
        body = b"".join(pieces)
        answer = WholeAnswer(self._watch, self._parts.settings)
        out = await answer.read_or_pass(body, may_retry=may_retry)
        if answer.retry is not None:
            self.ending = Ending.STOPPED
            return False
        if answer.refused is not None:
            self.ending = Ending.STOPPED
            raise answer.refused
        if answer.passed:
            self._tell(self._parts.observer.unguarded, answer.passed)
        await self._start(response, length=len(out), told=self._parts.settings.annotate != "off")
        await self._finish(out)
        return True

    async def _pass_events(self, response: Answer) -> None:
        assert self._watch is not None
        tell = self._parts.observer.unguarded
        inspector = Inspector(self._watch, self._parts.settings, lambda reason: self._tell(tell, reason))
        self.inspector = inspector
        if len(self._parts.router.upstreams()) == 1:
            await self._start(response)
        while data := await self._next(response):
            out = inspector.push(data)
            if not self.sent:
                await self._start(response)
            if await self._put(inspector, out, response):
                return
        out = inspector.end()
        if not self.sent:
            await self._start(response)
        await self._finish(out)

    async def carry_on(self, response: Answer, seam: Seam) -> None:
        """The rest of a stream that another upstream began."""
        assert self.inspector is not None
        framer = EventFramer(self._parts.settings.max_answer_bytes)
        self.inspector.forget_rest()
        while data := await self._next(response):
            events = [seamed(seam, event) for event in framer.push(data)]
            out = b"".join(self.inspector.push(event) for event in events if event)
            if await self._put(self.inspector, out, response):
                return
        await self._finish(self.inspector.end())

    async def _put(self, inspector: Inspector, out: bytes, response: Answer) -> bool:
        """True where a guard ended the stream."""
        if inspector.is_over:
            self.ending = Ending.STOPPED
            response.close()
            await self._finish(out)
        elif out:
            await self._send(out)
        return inspector.is_over

    @property
    def said(self) -> tuple[str, int] | None:
        """Text and tokens of a stream that another upstream may carry on; None where it cannot be."""
        watch = self._watch
        if watch is None or self.inspector is None or self.inspector.first is None or list(watch.choices) != [0]:
            return None
        choice, text = watch.choices[0], "".join(watch.choices[0].kept)
        if choice.thought is not None or choice.calls is not None or choice.is_over or len(text) >= MOST_KEPT:
            return None
        return text, choice.chunks

    async def _rest(self, response: Answer) -> None:
        while data := await self._next(response):
            await self._send(data)
        await self._finish()

    def _new_watch(self) -> AnswerWatch:
        parts, request = self._parts, self._request
        assert parts.bench is not None
        assert request is not None
        batch = parts.settings.batch_chunks
        watch = AnswerWatch(request.id, self._exchange.facts, parts.bench, parts.judge, parts.first_tokens, batch)
        scored = parts.rescoring is not None and parts.rescoring.is_open
        watch.keeps_text = scored or self._exchange.wants_continuation
        return watch

    # Single steps

    async def _next(self, response: Answer) -> bytes:
        """What has come since; empty at the end."""
        exchange = self._exchange
        exchange.waits(self._parts.settings.stall_seconds)
        data = await response.read()
        now = self._parts.clock()
        if self._ttft is None:
            if data:
                self._ttft = now - self._began
        elif data:
            self._tell(self._parts.observer.waited, now - self._last)
        self._last = now
        return data

    async def _start(self, response: Answer, *, length: int | None = None, told: bool = False) -> None:
        # 304 tells the length of a body that does not come, and uvicorn would wait for it.
        without_length = length is not None or response.status in NO_BODY
        headers = to_client(response.headers, without_length=without_length)
        if length is not None:
            headers.append((b"content-length", str(length).encode()))
        if told and self._watch is not None and (found := actions.findings_header(self._watch.notes)):
            headers.append(found)
        self.sent = True
        await self._send_message({"type": "http.response.start", "status": response.status, "headers": headers})

    async def _send(self, data: bytes) -> None:
        # Read a moment ago: the clock is not asked once more for each chunk.
        self._exchange.waits_since(self._last, self._parts.settings.client_seconds)
        await self._send_message({"type": "http.response.body", "body": data, "more_body": True})

    async def _finish(self, data: bytes = b"") -> None:
        self._exchange.waits(self._parts.settings.client_seconds, for_client=True)
        await self._send_message({"type": "http.response.body", "body": data, "more_body": False})

    def _finish_reasons(self) -> tuple[str, ...]:
        if self._watch is None:
            return ()
        reasons = [
            self._parts.settings.finish_reason if choice.stopped else choice.finish_reason
            for choice in self._watch.choices.values()
        ]
        return tuple(reason for reason in reasons if reason)

    def _usage(self) -> dict[str, int]:
        return usage_of(self._watch.usage) if self._watch is not None else {}

    def _tell(self, tell: Any, what: Any) -> None:
        try:
            tell(what)
        except Exception:
            logger.exception("the observer of the proxy raised")


def seamed(seam: Seam, event: bytes) -> bytes:
    """An event as the rest of the first stream; empty where it says nothing new."""
    payload = payload_of(event)
    if not payload or payload == DONE:
        return event
    try:
        chunk = msgspec.json.decode(payload)
    except (msgspec.DecodeError, RecursionError):
        return event
    found = seam.chunk(chunk) if isinstance(chunk, dict) else chunk
    return b"" if found is None else as_event(found)
