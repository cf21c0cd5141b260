"""Flagged answers, scored on another upstream than wrote them."""

from __future__ import annotations

import asyncio
import json
import threading

from checkengine.engine_shim.proxy.requests import RequestFacts
from checkengine.engine_shim.proxy.rescoring import FAILURES, Flagged, Rescoring, score_on_sibling
from checkengine.engine_shim.proxy.upstream import NoUpstream, Upstream
from checkengine.guards.errors import UserError


class Pair:
    """Requests go to the first one; it has a sibling."""

    def __init__(self, places):
        self.places = places

    def choose(self, request):
        for place in self.places:
            if place.name not in request.excluded:
                return place
        raise NoUpstream("none")

    def started(self, upstream, request): ...

    def finished(self, upstream, request, outcome): ...

    def upstreams(self):
        return tuple(self.places)


def sibling(say, logprob):
    """Cuts text into characters; finds all tokens as likely as it is told."""

    async def answer(seen, writer):
        body = json.loads(seen.body)
        if seen.target == b"/tokenize":
            text = body.get("prompt") or "".join(message["content"] for message in body["messages"])
            found = {"tokens": [ord(letter) for letter in text]}
        else:
            own = {"logprob": logprob, "rank": 1 if logprob > -1 else 20_000}
            rows = [{str(token): own, "7": {"logprob": -0.01, "rank": 1}} for token in body["prompt"]]
            found = {"choices": [{"prompt_logprobs": [None, *rows[1:]]}]}
        await say.whole(json.dumps(found).encode())(seen, writer)

    return answer


def verdict_of(rig, story, say, chat, logprob):
    told = []

    async def scene():
        done, loop = asyncio.Event(), asyncio.get_running_loop()

        def note(flagged, verdict):
            told.append((flagged.sequence, flagged.text, verdict))
            loop.call_soon_threadsafe(done.set)

        answer = say.whole(say.body("all LOOP now"))
        async with rig(answer, upstreams=[sibling(say, logprob)], router=Pair) as proxy:
            proxy.parts.rescoring = rescoring = Rescoring(score_on_sibling(None), note, 600)
            assert (await proxy.ask(chat)).status == 200
            await asyncio.wait_for(done.wait(), 10)
            await asyncio.to_thread(rescoring.close)
            assert rescoring.scored == 1

    story(scene())
    (_, text, verdict) = told[0]
    assert text == "all LOOP now"
    return verdict


def test_a_habit_of_the_model_is_told_from_corruption(rig, story, say, chat):
    assert verdict_of(rig, story, say, chat, -0.01) == "habit"
    assert verdict_of(rig, story, say, chat, -25.0) == "corruption"


def test_no_text_is_kept_where_nothing_is_scored(rig, story, say, chat):
    async def scene():
        async with rig(say.whole(say.body("LOOP"))) as proxy:
            offered = []
            proxy.parts.rescoring = type("Open", (), {"is_open": False, "offer": offered.append})()
            await proxy.ask(chat)
            await proxy.quiet()
            assert offered == []

    story(scene())


FLAGGED = Flagged("s", "inc", RequestFacts(), "text", Upstream("x", "http://x"))


def test_the_rate_is_bounded():
    now, seen, done = [0.0], [], threading.Event()

    def score(flagged):
        seen.append(flagged)
        done.set()
        raise UserError("cannot")

    rescoring = Rescoring(score, lambda *_: None, per_minute=6, clock=lambda: now[0])
    assert rescoring.offer(FLAGGED)
    assert not rescoring.offer(FLAGGED)
    now[0] = 10.0
    assert rescoring.offer(FLAGGED)
    rescoring.close()
    assert (len(seen), rescoring.dropped, rescoring.failed) == (2, 1, 2)


def test_after_failures_in_a_row_nobody_is_asked_any_more():
    now = [0.0]

    def score(flagged):
        raise ConnectionError

    rescoring = Rescoring(score, lambda *_: None, per_minute=60, clock=lambda: now[0])
    for _ in range(FAILURES):
        assert rescoring.offer(FLAGGED)
        now[0] += 1.0
    rescoring.close()
    assert not rescoring.is_open
    assert not rescoring.offer(FLAGGED)
