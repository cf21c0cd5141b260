"""What goes wrong on either side: clients that leave, upstreams that break off, stall or answer garbage."""

from __future__ import annotations

import asyncio
import json
import socket

import pytest

from checkengine.engine_shim.proxy.upstream import NoUpstream

SOON = 0.1
"""Seconds in which the upstream of a client that left must be let go."""


async def forever(seen, writer):
    await seen.gone.wait()


def head_only(say):
    async def answer(seen, writer):
        writer.write(say.head)
        await writer.drain()
        await seen.gone.wait()

    return answer


def some_chunks(say):
    async def answer(seen, writer):
        writer.write(say.head)
        while not seen.gone.is_set():
            await say.put(writer, say.chunk("word "))
            await asyncio.sleep(0.01)

    return answer


@pytest.mark.parametrize(
    ("answer", "stream", "reads"),
    [(forever, True, 0), (forever, False, 0), (head_only, True, 1), (some_chunks, True, 2)],
    ids=["before a stream", "before a whole answer", "between head and first token", "in the middle"],
)
def test_a_client_that_leaves_frees_the_upstream_at_once(rig, story, say, chat, answer, stream, reads):
    async def told():
        async with rig(answer if answer is forever else answer(say)) as proxy:
            client = await proxy.client()
            await client.send(chat | {"stream": stream})
            seen = await proxy.upstream.request()
            for read in (client.head, client.part)[:reads]:
                await read()
            left = asyncio.get_running_loop().time()
            client.leave()
            await asyncio.wait_for(seen.gone.wait(), 5)
            assert seen.gone_at - left < SOON
            await proxy.quiet()
            assert proxy.router.outcomes[0][1].ending == "client_gone"
            assert proxy.observer.ends[0].error == "client_gone"
            assert proxy.router.running == 0

    story(told())


def test_a_client_that_leaves_in_the_middle_of_its_body_never_reaches_the_upstream(rig, story):
    async def told():
        async with rig(forever) as proxy:
            client = await proxy.client()
            client.writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{")
            await client.writer.drain()
            while not proxy.parts.running:
                await asyncio.sleep(0)
            client.leave()
            await proxy.quiet()
            assert proxy.upstream.seen == []

    story(told())


def test_a_hundred_streams_with_random_leavers_leave_nothing_behind(rig, story, say, chat):
    async def one(proxy, number):
        client = await proxy.client()
        await client.send(chat | {"stream": True})
        if number % 5 == 0:
            return client.leave()
        await client.head()
        parts = 0
        while parts < number % 7 and await client.part():
            parts += 1
        if number % 2 or parts < number % 7:
            return client.leave()
        while await client.part():
            pass
        return None

    async def told():
        chunks = [say.chunk(f"w{index} ") for index in range(12)]
        async with rig(say.events(*chunks, say.chunk("", "stop"), say.done)) as proxy:
            await asyncio.gather(*(one(proxy, number) for number in range(100)))
            await proxy.quiet()
            assert proxy.router.running == 0
            assert len(proxy.observer.starts) == len(proxy.observer.ends) == len(proxy.router.outcomes)
            assert proxy.parts.judge.policy._live == set()

    story(told())


def test_an_upstream_that_cannot_be_reached_is_told_in_openais_shape(rig, story, chat):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        place = f"http://127.0.0.1:{taken.getsockname()[1]}"

        async def told():
            from checkengine.engine_shim.proxy.upstream import OneUpstream, Upstream

            async with rig(forever, router=lambda _: OneUpstream(Upstream.of(place))) as proxy:
                reply = await proxy.ask(chat)
                assert reply.status == 502
                assert reply.json["error"]["code"] == "upstream_unreachable"
                assert set(reply.json["error"]) == {"message", "type", "param", "code"}
                assert place.removeprefix("http://") not in reply.body.decode()

        story(told())


async def close_at_once(seen, writer):
    writer.close()


async def reset(seen, writer):
    writer.transport.get_extra_info("socket").setsockopt(
        socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00"
    )
    writer.transport.abort()


async def garbage(seen, writer):
    writer.write(b"\x00\x01SSH-2.0-OpenSSH\r\n\r\n")
    await writer.drain()
    await seen.gone.wait()


async def long_head(seen, writer):
    writer.write(b"HTTP/1.1 200 OK\r\nX: " + b"x" * 200_000 + b"\r\n\r\n")
    await writer.drain()
    writer.close()


async def short_body(seen, writer):
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{")
    await writer.drain()
    writer.close()


@pytest.mark.parametrize("answer", [close_at_once, reset, garbage, long_head, short_body])
def test_an_upstream_that_breaks_before_its_answer_is_told_in_openais_shape(rig, story, chat, answer):
    async def told():
        async with rig(answer) as proxy:
            reply = await proxy.ask(chat)
            assert (reply.status, reply.whole) == (502, True)
            assert reply.json["error"]["type"] == "server_error"

    story(told())


@pytest.mark.parametrize("how", ["close", "reset", "bad_chunk"])
def test_an_upstream_that_breaks_in_the_middle_ends_the_stream_with_an_error_event(rig, story, say, chat, how):
    first = say.chunk("hello")

    async def told():
        async def answer(seen, writer):
            writer.write(say.head)
            await say.put(writer, first + first[:10])
            while not proxy.observer.ends and not client_has.is_set():
                await asyncio.sleep(0)
            if how == "bad_chunk":
                writer.write(b"zzz\r\n")
                await seen.gone.wait()
            elif how == "reset":
                await reset(seen, writer)
            else:
                writer.close()

        client_has = asyncio.Event()
        async with rig(answer) as proxy:
            client = await proxy.client()
            await client.send(chat | {"stream": True})
            await client.head()
            assert await client.part() == first
            client_has.set()
            error = json.loads((await client.part())[6:])
            assert error["error"]["code"] in ("upstream_broken", "upstream_invalid")
            assert await client.reader.read() == b""
            await proxy.quiet()
            assert proxy.router.outcomes[0][1].ending == "broken"

    story(told())


def test_an_upstream_that_stalls_before_its_answer_is_given_up(rig, story, chat):
    async def told():
        async with rig(forever) as proxy:
            client = await proxy.client()
            await client.send(chat)
            await proxy.upstream.request()
            proxy.parts.deadlines.sweep(proxy.parts.clock() + 599)
            assert proxy.parts.running == 1
            proxy.parts.deadlines.sweep(proxy.parts.clock() + 601)
            reply = await client.reply()
            assert (reply.status, reply.json["error"]["code"]) == (504, "upstream_timeout")
            assert proxy.router.outcomes[0][1].ending == "stalled"

    story(told())


def test_an_upstream_that_stalls_in_the_middle_ends_the_stream_with_an_error_event(rig, story, say, chat):
    async def told():
        async with rig(head_only(say)) as proxy:
            client = await proxy.client()
            await client.send(chat | {"stream": True})
            await client.head()
            seen = await proxy.upstream.request()
            proxy.parts.deadlines.sweep(proxy.parts.clock() + 121)
            error = json.loads((await client.part())[6:])
            assert error["error"]["code"] == "upstream_timeout"
            await asyncio.wait_for(seen.gone.wait(), 5)

    story(told())


def test_a_client_that_sends_its_body_too_slowly_is_given_up(rig, story):
    async def told():
        async with rig(forever) as proxy:
            client = await proxy.client()
            client.writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{")
            await client.writer.drain()
            while not proxy.parts.running:
                await asyncio.sleep(0)
            proxy.parts.deadlines.sweep(proxy.parts.clock() + 121)
            assert (await client.reply()).status == 408

    story(told())


def test_a_slow_reader_slows_its_upstream_down_instead_of_filling_memory(rig, story, say, chat):
    big = say.chunk("x" * 60_000)

    async def told():
        put = 0

        async def answer(seen, writer):
            nonlocal put
            writer.transport.set_write_buffer_limits(high=65536)
            writer.write(say.head)
            for _ in range(1000):
                await say.put(writer, big)
                put += 1
            writer.write(b"0\r\n\r\n")

        async with rig(answer) as proxy:
            _, writer = await asyncio.open_connection("127.0.0.1", proxy.port, limit=4096)
            data = json.dumps(chat | {"stream": True}).encode()
            writer.write(
                b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(data) + data
            )
            before = -1
            while put != before or not put:
                before = put
                await asyncio.sleep(0.1)
            # What the kernel's sockets, the client library and the server's buffer hold together, of 60 MB.
            assert put * len(big) < 24e6
            writer.transport.abort()
            await asyncio.wait_for(proxy.upstream.seen[0].gone.wait(), 5)

    story(told())


class Two:
    """The first one first."""

    def __init__(self, places):
        self.places = places
        self.log = []
        self.running = 0

    def choose(self, request):
        for place in self.places:
            if place.name not in request.excluded:
                return place
        raise NoUpstream("all failed")

    def started(self, upstream, request):
        self.running += 1

    def finished(self, upstream, request, outcome):
        self.running -= 1
        self.log.append((self.places.index(upstream), outcome.ending))

    def upstreams(self):
        return tuple(self.places)


@pytest.mark.parametrize(
    ("answer", "ending"),
    [(close_at_once, "refused"), (short_body, "broken"), (garbage, "broken")],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_another_upstream_is_tried_while_nothing_was_sent(rig, story, say, chat, answer, ending):
    async def told():
        async with rig(answer, upstreams=[say.whole(say.body("second"))], router=Two) as proxy:
            reply = await proxy.ask(chat)
            assert reply.json["choices"][0]["message"]["content"] == "second"
            assert (0, ending) in proxy.router.log
            assert proxy.router.log[-1] == (1, "done")

    story(told())


@pytest.mark.parametrize("status", ["500 Oops", "503 Busy", "429 Slow Down"])
def test_another_upstream_is_tried_where_one_is_sick_or_busy(rig, story, say, chat, status):
    async def told():
        answer = say.whole(b'{"error":{}}', status)
        async with rig(answer, upstreams=[say.whole(say.body("second"))], router=Two) as proxy:
            assert (await proxy.ask(chat)).status == 200
        async with rig(answer, upstreams=[answer], router=Two) as proxy:
            reply = await proxy.ask(chat)
            assert (reply.status, reply.body) == (int(status[:3]), b'{"error":{}}')
            assert len(proxy.router.log) == 2

    story(told())


def test_a_stream_that_breaks_before_its_first_event_is_tried_elsewhere(rig, story, say, chat):
    async def answer(seen, writer):
        writer.write(say.head)
        await writer.drain()
        writer.close()

    second = [say.chunk("second"), say.chunk("", "stop"), say.done]

    async def told():
        async with rig(answer, upstreams=[say.events(*second)], router=Two) as proxy:
            assert (await proxy.ask(chat | {"stream": True})).body == b"".join(second)

    story(told())


def test_what_may_not_be_repeated_is_not_tried_elsewhere(rig, story, say, chat):
    async def told():
        async with rig(close_at_once, upstreams=[say.whole(say.body("second"))], router=Two) as proxy:
            assert (await proxy.ask(chat, "/v1/fine_tuning/jobs")).status == 502
            assert proxy.router.log == [(0, "refused")]

    story(told())


def test_a_kept_connection_that_the_server_closed_costs_no_request(rig, story, say, chat):
    async def told():
        async def answer(seen, writer):
            if len(proxy.upstream.seen) == 2:
                writer.close()
            else:
                await say.whole(say.body("x"))(seen, writer)

        async with rig(answer) as proxy:
            for _ in range(3):
                assert (await proxy.ask(chat)).status == 200
            assert len(proxy.upstream.seen) == 4

    story(told())


def test_a_fault_inside_the_proxy_is_an_error_of_500_and_no_hanging(rig, story, say, chat, monkeypatch):
    async def told():
        async with rig(say.whole(say.body("x"))) as proxy:
            monkeypatch.setattr(proxy.parts.sessions, "key_of", lambda *_: 1 / 0)
            reply = await proxy.ask(chat)
            assert (reply.status, reply.json["error"]["code"]) == (500, "internal_error")

    story(told())


def breaking(say):
    async def answer(seen, writer):
        writer.write(say.head)
        await say.put(writer, say.chunk("One ") + say.chunk("two ") + say.chunk("cut")[:9])
        writer.close()

    return answer


def test_a_stream_that_breaks_off_is_carried_on_where_the_client_asks_for_it(rig, story, say, chat):
    rest = [say.chunk("three"), say.chunk("", "stop"), say.done]

    async def told():
        async with rig(breaking(say), upstreams=[say.events(*rest)], router=Two) as proxy:
            reply = await proxy.ask(chat | {"stream": True, "max_tokens": 9}, headers=["X-Checkengine-Continue: 1"])
            chunks = [json.loads(line[6:]) for line in reply.body.split(b"\n\n") if line and line != b"data: [DONE]"]
            assert "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks) == "One two three"
            assert chunks[-1]["choices"][0]["finish_reason"] == "stop"
            assert reply.body.endswith(say.done)
            assert reply.whole
            assert proxy.router.log == [(0, "broken"), (1, "done")]

    story(told())


def test_a_stream_is_not_carried_on_where_nobody_asks_or_nobody_can(rig, story, say, chat):
    async def told():
        rest = say.events(say.chunk("three"))
        async with rig(breaking(say), upstreams=[rest], router=Two) as proxy:
            assert b"upstream_broken" in (await proxy.ask(chat | {"stream": True})).body
            asked = chat | {"stream": True, "response_format": {"type": "json_object"}}
            assert b"upstream_broken" in (await proxy.ask(asked, headers=["X-Checkengine-Continue: 1"])).body
        async with rig(breaking(say), upstreams=[say.whole(b"{}", "500 Oops")], router=Two) as proxy:
            reply = await proxy.ask(chat | {"stream": True}, headers=["X-Checkengine-Continue: 1"])
            assert b"upstream_broken" in reply.body

    story(told())
