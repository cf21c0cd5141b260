"""One request through the proxy: in, upstream, back, and a clean end whatever happens on either side."""

from __future__ import annotations

import asyncio
import logging
import math
from dataclasses import replace
from typing import Any

import msgspec

from checkengine.engine_shim.proxy import errors
from checkengine.engine_shim.proxy.answering import Answering
from checkengine.engine_shim.proxy.client import Answer
from checkengine.engine_shim.proxy.connection import (
    ClosedBeforeError,
    ConnectError,
    CutOffError,
    ExhaustedError,
    GarbageError,
    UpstreamError,
)
from checkengine.engine_shim.proxy.errors import ProxyError
from checkengine.engine_shim.proxy.headers import header, to_upstream
from checkengine.engine_shim.proxy.parts import ProxyParts
from checkengine.engine_shim.proxy.requests import OPERATIONS, Operation, RequestFacts, facts_of
from checkengine.engine_shim.proxy.routing.continuation import CannotContinue, Seam, continued_body
from checkengine.engine_shim.proxy.upstream import Ending, NoUpstream, RoutedRequest, Upstream

logger = logging.getLogger("checkengine.proxy")
CONTINUE = b"x-checkengine-continue"
GONE, STALLED, SLOW = "client_gone", "stalled", "client_slow"
BUSY = {429: Ending.BUSY, 503: Ending.BUSY}


class Exchange:
    """`run` never raises but for a cancellation that is not its own."""

    def __init__(self, parts: ProxyParts, identity: str, scope: Any, receive: Any, send: Any) -> None:
        self.parts, self.identity = parts, identity
        self.deadline = math.inf
        self.facts = RequestFacts()
        self.headers = scope["headers"]
        self._scope, self._receive = scope, receive
        self._operation = (
            OPERATIONS.get(scope["path"], Operation.OTHER) if scope["method"] == "POST" else Operation.OTHER
        )
        self._task = asyncio.current_task()
        self._cut = ""
        """Why this exchange cancelled itself."""
        self._waits_for_client = False
        self._excluded: frozenset[str] = frozenset()
        self._resent = self._retried = False
        self._seam: Seam | None = None
        self._continued = b""
        self.wants_continuation = header(self.headers, CONTINUE) in (b"1", b"true")
        self._answering = Answering(self, send)

    async def run(self) -> None:
        parts = self.parts
        parts.running += 1
        parts.deadlines.add(self)
        try:
            await self._run()
        except asyncio.CancelledError:
            if not self._cut or self._task is None:
                raise
            self._task.uncancel()
            await self._end_of_cut()
        except ProxyError as error:
            await self._fail(error)
        except Exception:
            logger.exception("request %s failed inside the proxy", self.identity)
            await self._fail(errors.internal())
        finally:
            parts.running -= 1
            parts.deadlines.remove(self)
            self._answering.close()

    # What others do to it

    def expire(self) -> None:
        self.cut(SLOW if self._waits_for_client else STALLED)

    def cut(self, why: str) -> None:
        if not self._cut and self._task is not None:
            self._cut = why
            self.deadline = math.inf
            self._task.cancel()

    def waits(self, seconds: float, *, for_client: bool = False) -> float:
        """From now on, for so long at most. Returns the time."""
        now = self.parts.clock()
        self.deadline, self._waits_for_client = now + seconds, for_client
        return now

    def waits_since(self, now: float, seconds: float) -> None:
        """For the client, from `now` on."""
        self.deadline, self._waits_for_client = now + seconds, True

    # The request

    async def _run(self) -> None:
        body = await self._body()
        watcher = asyncio.ensure_future(self._until_gone())
        try:
            await self._forward(body)
        finally:
            watcher.cancel()

    async def _body(self) -> bytes:
        limit, pieces, size = self.parts.settings.max_body_bytes, [], 0
        length = header(self._scope["headers"], b"content-length")
        if length.isdigit() and int(length) > limit:
            raise errors.too_large(limit)
        while True:
            self.waits(self.parts.settings.client_seconds, for_client=True)
            message = await self._receive()
            if message["type"] == "http.disconnect":
                self._cut = GONE
                raise errors.client_too_slow()
            pieces.append(message.get("body", b""))
            size += len(pieces[-1])
            if size > limit:
                raise errors.too_large(limit)
            if not message.get("more_body", False):
                return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    async def _until_gone(self) -> None:
        """What a client sends after its request is not read; when it leaves, so do we."""
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self.cut(GONE)

    async def _forward(self, body: bytes) -> None:
        if self._operation is not Operation.OTHER:
            self.facts = facts_of(self._operation, body)
        request = self._routed()
        self._answering.begin(request)
        if (note := self._answering.looked_back()) is not None:
            await self._answering.stop_before(note)
            return
        upstream: Upstream | None = self._choose(request)
        while upstream is not None:
            upstream = await self._attempt(upstream, request, self._continued or body)

    def _routed(self) -> RoutedRequest:
        facts, scope = self.facts, self._scope
        session = self.parts.sessions.key_of(scope["headers"], facts)
        return RoutedRequest(
            self.identity, scope["path"], facts.model, facts.stream, facts.body, session, tokens=facts.limit
        )

    def _choose(self, request: RoutedRequest) -> Upstream:
        try:
            return self.parts.router.choose(replace(request, excluded=self._excluded))
        except NoUpstream as error:
            raise errors.no_upstream(str(error)) from None

    def _another(self, failed: Upstream, request: RoutedRequest) -> Upstream | None:
        """Where to try again; None where that may not be, or where there is no other one."""
        self._excluded |= {failed.name}
        repeatable = self._operation is not Operation.OTHER or self._scope["method"] in ("GET", "HEAD")
        if self._answering.sent or not repeatable or len(self._excluded) > self.parts.settings.retries:
            return None
        try:
            return self._choose(request)
        except ProxyError:
            return None

    async def _attempt(self, upstream: Upstream, request: RoutedRequest, body: bytes) -> Upstream | None:
        """None where the answer was sent; else where to try again. Raises ProxyError where nothing is left to try."""
        router, began = self.parts.router, self.waits(self.parts.settings.first_byte_seconds)
        answering = self._answering
        answering.reset(upstream, began)
        router.started(upstream, request)
        try:
            async with await self._sent(upstream, body) as answer:
                return await self._answered(upstream, request, answer)
        except asyncio.CancelledError:
            if self._cut != STALLED or self._task is None:
                answering.ending = Ending.CLIENT_GONE
                raise
            self._task.uncancel()
            self._cut = ""
            answering.ending, error = Ending.STALLED, errors.stalled()
        except ProxyError:
            raise
        except ExhaustedError:
            # Not this upstream's fault, and no other one could be reached either.
            answering.ending = Ending.CLIENT_GONE
            raise errors.exhausted() from None
        except ConnectError:
            answering.ending, error = Ending.REFUSED, errors.unreachable()
        except ClosedBeforeError as failure:
            answering.ending, error = Ending.REFUSED, errors.broken()
            if failure.was_kept and not self._resent and self._operation is not Operation.OTHER:
                # The server closed it in the same moment: it is asked once more. Where the connection was new it was
                # this request, perhaps, that ended the server, and it is not to end it again.
                self._resent = True
                return upstream
        except UpstreamError as failure:
            garbage = isinstance(failure, GarbageError)
            answering.ending, error = Ending.BROKEN, errors.garbage() if garbage else errors.broken()
        finally:
            router.finished(upstream, request, answering.outcome())
        other = self._another(upstream, request) or self._continuation(request)
        if other is None:
            raise error
        return other

    def _continuation(self, request: RoutedRequest) -> Upstream | None:
        """Who carries on a stream that broke off, where the client asked for that and it can be done."""
        said = self._answering.said if self.wants_continuation and self._answering.sent else None
        if said is None or self._answering.inspector is None or len(self._excluded) > self.parts.settings.retries:
            return None
        try:
            self._continued = msgspec.json.encode(continued_body(request.path, self.facts.body, *said))
            other = self._choose(request)
        except (CannotContinue, ProxyError) as reason:
            logger.warning("request %s cannot be carried on: %s", self.identity, reason)
            return None
        self._seam = Seam(self._answering.inspector.first or {}, said[1])
        logger.warning("request %s is carried on by %s", self.identity, other.name)
        return other

    async def _sent(self, upstream: Upstream, body: bytes) -> Answer:
        scope, settings = self._scope, self.parts.settings
        assert self.parts.client is not None
        token = settings.upstream_token.get_secret_value() if settings.upstream_token is not None else None
        address = scope["client"][0] if scope["client"] else ""
        headers = to_upstream(self.headers, client=address, token=token, encoded=not self._operation.is_read)
        query = scope["query_string"]
        target = scope["raw_path"] + (b"?" + query if query else b"")
        return await self.parts.client.request(upstream, scope["method"], target, headers, body)

    async def _answered(self, upstream: Upstream, request: RoutedRequest, answer: Answer) -> Upstream | None:
        self._answering.answered = True
        status = answer.status
        self._answering.status = status
        if status >= 500 or status == 429:
            self._answering.ending = BUSY.get(status, Ending.SERVER_ERROR)
            if (other := self._another(upstream, request)) is not None:
                answer.close()
                return other
        if self._seam is not None:
            if status != 200:
                raise CutOffError("no other upstream carries the stream on")
            await self._answering.carry_on(answer, self._seam)
            return None
        if await self._answering.relay(answer, may_retry=not self._retried):
            return None
        self._retried = True
        other = self._another(upstream, request)
        # Where there is no other server, the same one may draw better.
        return other or upstream

    # Its end

    async def _end_of_cut(self) -> None:
        if self._cut == SLOW:
            await self._fail(errors.client_too_slow())
        else:
            self._answering.error = self._cut

    async def _fail(self, error: ProxyError) -> None:
        self.deadline = math.inf
        if self._cut != GONE:
            await self._answering.fail(error)
