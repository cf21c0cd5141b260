"""What passes: every byte of bodies and streams, and headers as a good proxy treats them."""

from __future__ import annotations

import asyncio
import json


def test_a_whole_answer_comes_out_byte_for_byte(rig, story, say, chat):
    body = (
        b'{ "id":"x",\n  "choices":[ {"index":0, "message":{"content":"\\u00e9\xc3\xa9"},"finish_reason":"stop"} ] }\n'
    )

    async def told():
        async with rig(say.whole(body)) as proxy:
            reply = await proxy.ask(chat)
            assert (reply.status, reply.body, reply.whole) == (200, body, True)

    story(told())


def test_the_request_goes_upstream_byte_for_byte(rig, story, say):
    sent = b'{"model":  "m",\n"messages":[{"role":"user","content":"\xc3\xa9"}], "unknown": 1e400, "stream": false}'

    async def told():
        async with rig(say.whole(say.body("hello"))) as proxy:
            await proxy.ask(sent, "/v1/chat/completions?x=%2F&y=a+b")
            assert proxy.upstream.seen[0].body == sent
            assert proxy.upstream.seen[0].target == b"/v1/chat/completions?x=%2F&y=a+b"

    story(told())


def test_a_stream_comes_out_byte_for_byte_and_as_it_comes(rig, story, say, chat):
    first, second = say.chunk("hé"), say.chunk("llo") + say.chunk("", "stop")

    async def told():
        go_on = asyncio.Event()

        async def answer(seen, writer):
            writer.write(say.head)
            await say.put(writer, first)
            await go_on.wait()
            await say.put(writer, second + say.done)
            writer.write(b"0\r\n\r\n")

        async with rig(answer) as proxy:
            client = await proxy.client()
            await client.send(chat | {"stream": True})
            assert (await client.head())[0] == 200
            assert await client.part() == first
            go_on.set()
            rest = b""
            while part := await client.part():
                rest += part
            assert rest == second + say.done

    story(told())


def test_headers_of_one_connection_stay_on_it(rig, story, say, chat):
    answer = say.whole(
        say.body("x"), headers="Connection: x-secret\r\nX-Secret: 1\r\nX-Kept: 2\r\nKeep-Alive: timeout=5\r\n"
    )
    given = ["Connection: keep-alive, X-Hop", "X-Hop: 1", "X-End: 2", "TE: trailers", "Proxy-Authorization: Basic x"]

    async def told():
        async with rig(answer) as proxy:
            reply = await proxy.ask(chat, headers=given)
            seen = proxy.upstream.seen[0]
            for name in (b"x-hop", b"te", b"proxy-authorization"):
                assert seen.header(name) is None
            assert seen.header(b"x-end") == b"2"
            assert seen.header(b"host") == proxy.router.upstream.url.removeprefix("http://").encode()
            assert seen.header(b"accept-encoding") == b"identity"
            assert seen.header(b"x-forwarded-for") == b"127.0.0.1"
            assert reply.header(b"x-kept") == b"2"
            assert reply.header(b"x-secret") is None
            assert reply.header(b"keep-alive") is None

    story(told())


def test_the_proxys_own_token_replaces_the_clients(rig, story, say, chat):
    async def told():
        async with rig(say.whole(say.body("x")), proxy={"upstream_token": "inner"}) as proxy:
            await proxy.ask(chat, headers=["Authorization: Bearer outer"])
            values = [value for name, value in proxy.upstream.seen[0].headers if name == b"authorization"]
            assert values == [b"Bearer inner"]

    story(told())


def test_errors_of_the_upstream_pass_as_they_are(rig, story, say, chat):
    body = b'{"error":{"message":"no","type":"x","param":null,"code":"y"}}'

    async def told():
        async with rig(say.whole(body, "404 Not Found")) as proxy:
            reply = await proxy.ask(chat)
            assert (reply.status, reply.body) == (404, body)
            assert proxy.router.outcomes[0][1].ending == "done"

    story(told())


def test_other_paths_and_methods_pass(rig, story, say):
    async def told():
        async with rig(say.whole(b"# HELP x\n", kind="text/plain")) as proxy:
            client = await proxy.client()
            client.writer.write(b"GET /metrics HTTP/1.1\r\nHost: x\r\nAccept-Encoding: gzip\r\n\r\n")
            reply = await client.reply()
            assert (reply.status, reply.body) == (200, b"# HELP x\n")
            assert proxy.upstream.seen[0].header(b"accept-encoding") == b"gzip"

    story(told())


def test_redirects_are_not_followed(rig, story, say, chat):
    async def told():
        answer = say.whole(b"", "307 Temporary Redirect", headers="Location: http://169.254.169.254/\r\n")
        async with rig(answer) as proxy:
            reply = await proxy.ask(chat)
            assert reply.status == 307
            assert reply.header(b"location") == b"http://169.254.169.254/"
            assert len(proxy.upstream.seen) == 1

    story(told())


def test_a_kept_connection_serves_many_requests(rig, story, say, chat):
    async def told():
        async with rig(say.whole(say.body("x"))) as proxy:
            client = await proxy.client()
            for _ in range(20):
                assert (await client.ask(chat)).status == 200
            assert len(proxy.upstream.connections) == 1

    story(told())


def test_requests_are_told_to_the_observer_with_what_the_server_counted(rig, story, say, chat):
    usage = {"prompt_tokens": 9, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 4}}

    async def told():
        async with rig(say.whole(say.body("x", usage=usage))) as proxy:
            await proxy.ask(chat | {"temperature": 0.5}, headers=["traceparent: 00-1-2-01"])
            await proxy.quiet()
            start, end = proxy.observer.starts[0], proxy.observer.ends[0]
            assert (start.operation, start.model, start.sampling) == ("chat", "m", {"temperature": 0.5})
            assert start.traceparent == {"traceparent": "00-1-2-01"}
            assert (end.prompt_tokens, end.output_tokens, end.cached_tokens, end.counted) == (9, 3, 4, True)
            assert (end.status, end.finish_reasons, end.error) == (200, ("stop",), None)
            assert end.request == start.request
            assert end.ttft_seconds is not None

    story(told())


def test_an_answer_that_no_guard_can_read_passes_and_is_counted(rig, story, say, chat):
    async def told():
        async with rig(say.whole(b'{"choices": "none"}')) as proxy:
            reply = await proxy.ask(chat)
            assert reply.body == b'{"choices": "none"}'
            assert proxy.observer.passed == ["unread"]

    story(told())


def test_an_encoded_answer_passes_without_guards(rig, story, say, chat):
    async def told():
        async with rig(say.whole(b"\x1f\x8bLOOP", headers="Content-Encoding: gzip\r\n")) as proxy:
            reply = await proxy.ask(chat)
            assert (reply.body, reply.header(b"content-encoding")) == (b"\x1f\x8bLOOP", b"gzip")
            assert proxy.observer.passed == ["encoded"]

    story(told())


def test_an_answer_larger_than_is_kept_passes_whole(rig, story, say, chat):
    body = say.body("x" * 5000)

    async def told():
        async with rig(say.whole(body), proxy={"max_answer_bytes": 1024}) as proxy:
            assert (await proxy.ask(chat)).body == body
            assert proxy.observer.passed == ["too_large"]

    story(told())


def test_an_event_longer_than_is_kept_passes_and_ends_the_guarding(rig, story, say, chat):
    long = say.chunk("y" * 3000)
    parts = [say.chunk("a") + long[:2000], long[2000:], say.chunk("LOOP"), say.done]

    async def told():
        go_on = asyncio.Event()

        async def answer(seen, writer):
            writer.write(say.head)
            await say.put(writer, parts[0])
            await go_on.wait()
            for part in parts[1:]:
                await say.put(writer, part)
            writer.write(b"0\r\n\r\n")

        guards = {"repetition": {"action": "stop"}}
        async with rig(answer, proxy={"max_answer_bytes": 1024}, guards=guards) as proxy:
            client = await proxy.client()
            await client.send(chat | {"stream": True})
            await client.head()
            assert await client.part() == parts[0]
            go_on.set()
            rest = b""
            while part := await client.part():
                rest += part
            assert rest == b"".join(parts[1:])
            assert proxy.observer.passed == ["event_too_long"]

    story(told())


def test_a_request_that_is_no_json_goes_upstream_all_the_same(rig, story, say):
    async def told():
        async with rig(say.whole(b'{"error":{}}', "400 Bad Request")) as proxy:
            for body in (b"", b"[", b"[1]", b"\xff", b"[" * 100_000, json.dumps({"messages": 3, "n": "x"}).encode()):
                assert (await proxy.ask(body)).status == 400
                assert proxy.upstream.seen[-1].body == body

    story(told())
