"""The proxy over several upstreams, with the router that it is shipped with."""

from __future__ import annotations

from checkengine.engine_shim.proxy.routing.fleet import Standing
from checkengine.engine_shim.proxy.routing.router import UpstreamRouter
from checkengine.engine_shim.proxy.upstream import Ending, Outcome, RoutedRequest


async def refused(seen, writer):
    """Closes the connection before a byte of an answer."""
    writer.close()


def asking(text):
    return {"model": "m", "messages": [{"role": "user", "content": text}]}


def long_text(number):
    return " ".join(f"w{number}x{index}" for index in range(400))


def test_requests_to_a_dead_upstream_are_answered_by_another_and_then_go_there_at_once(rig, story, say):
    good = say.whole(say.body("Hello."))

    async def check():
        async with rig(refused, upstreams=[good, good], router=UpstreamRouter) as proxy:
            dead = proxy.router.upstreams()[0].name
            for number in range(12):
                reply = await proxy.ask(asking(long_text(number)))
                assert reply.status == 200
            await proxy.quiet()
            assert proxy.router.fleet.standing(dead) is Standing.DOWN
            asked = len(proxy.upstream.seen)
            for number in range(12, 20):
                assert (await proxy.ask(asking(long_text(number)))).status == 200
            assert len(proxy.upstream.seen) == asked
            await proxy.quiet()
            assert all((load.running, load.waiting) == (0, 0) for load in proxy.router.loads.values())

    story(check())


def test_turns_of_a_conversation_go_to_the_upstream_that_has_their_prefix(rig, story, say):
    good = say.whole(say.body("Hello."))

    async def check():
        async with rig(good, upstreams=[good, good], router=UpstreamRouter) as proxy:
            firsts = []
            for number in range(6):
                before = len(proxy.upstream.seen)
                await proxy.ask(asking(long_text(number)))
                firsts.append(len(proxy.upstream.seen) - before)
            assert set(firsts) == {0, 1}
            for number in range(6):
                before = len(proxy.upstream.seen)
                await proxy.ask(asking(long_text(number) + " and what then?"))
                assert len(proxy.upstream.seen) - before == firsts[number]

    story(check())


def test_an_upstream_whose_logprobs_are_broken_is_held_out_until_a_person_releases_it(rig, story, say):
    above_one = [{"token": "x", "logprob": 5.0, "top_logprobs": []}]
    bad = say.whole(say.body("Hello.", choice={"logprobs": {"content": above_one}}))
    good = say.whole(say.body("Hello."))

    async def check():
        async with rig(bad, upstreams=[good], router=UpstreamRouter) as proxy:
            sick = proxy.router.upstreams()[0].name
            for number in range(6):
                await proxy.ask(asking(long_text(number)))
            await proxy.quiet()
            assert proxy.router.fleet.standing(sick) is Standing.HELD
            asked = len(proxy.upstream.seen)
            for number in range(6, 12):
                await proxy.ask(asking(long_text(number)))
            assert len(proxy.upstream.seen) == asked
            proxy.router.release(sick, "ada")
            assert proxy.router.fleet.standing(sick) is Standing.SERVING

    story(check())


def test_a_kept_connection_that_closes_in_the_same_moment_is_no_fault_of_its_server(rig, story, say):
    good = say.whole(say.body("Hello."))

    async def check():
        async with rig(good, upstreams=[good], router=UpstreamRouter) as proxy:
            name = proxy.router.upstreams()[0].name
            upstream = proxy.router.upstreams()[0]
            for number in range(20):
                request = RoutedRequest(f"r{number}", "/v1/chat/completions")
                for ending in (Ending.REFUSED, Ending.DONE):
                    proxy.router.started(upstream, request)
                    proxy.router.finished(upstream, request, Outcome(ending))
            assert proxy.router.fleet.standing(name) is Standing.SERVING
            assert proxy.router.fleet.case(name) is None

    story(check())
